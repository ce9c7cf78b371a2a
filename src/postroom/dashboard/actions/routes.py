"""Pages and API of actions: what was done with mail and why, how to undo it, and snoozed mail."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated
from uuid import UUID

from fastapi import Query
from pydantic import AwareDatetime, BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from postroom.actions import requests, snoozes, undo, wording
from postroom.actions import undo as undo_many
from postroom.actions.undo import Progress, UndoSpan
from postroom.dashboard.actions.queries import (
    MOST_SNOOZES,
    ActionDetail,
    ActionRow,
    ActionsWanted,
    SnoozeRow,
    account_of_action,
    action_detail,
    action_row,
    addresses,
    list_actions,
    snooze_of,
    snoozed_mail,
)
from postroom.dashboard.context import Here, RequestContext
from postroom.dashboard.forms import FilterChoice, Form, chosen, query_of
from postroom.dashboard.paging import PAGE, After, AfterId, Limit, Paged
from postroom.dashboard.routing import api_router, named_by, pages_router, permits
from postroom.dashboard.rules.queries import rule_names
from postroom.db import Tx
from postroom.domain.actions import ActionStatus, ActionType, Origin
from postroom.domain.errors import BadInput
from postroom.domain.ids import parse_id
from postroom.domain.roles import Permission

pages = pages_router()

SECTION = "actions"
SNOOZE_HOURS = {"1": "1 hour", "3": "3 hours", "24": "1 day", "72": "3 days", "168": "1 week", "720": "30 days"}
"""Hours from now, until which mail can be made to sleep on."""
TIMES = {"hour": "the last hour", "day": "the last day", "week": "the last week", "at": "a moment of your choice"}
AGO = {"hour": timedelta(hours=1), "day": timedelta(days=1), "week": timedelta(days=7)}


@pages.get("/actions")
async def actions_page(
    here: Here,
    account: FilterChoice = "",
    status: FilterChoice = "",
    type: FilterChoice = "",
    by: FilterChoice = "",
    rule: FilterChoice = "",
    text: Annotated[str, Query(max_length=200)] = "",
    after: After = None,
) -> Response:
    wanted = ActionsWanted(
        account or None,
        chosen(ActionStatus, status, "status"),
        chosen(ActionType, type, "type"),
        chosen(Origin, by, "by"),
        parse_id(rule, "rule") if rule else None,
        text.strip() or None,
        after or None,
    )
    page = await here.read(lambda tx: list_actions(tx, wanted))
    return await here.page(
        "actions/list.html",
        SECTION,
        actions=page,
        wanted=wanted,
        filter=query_of(
            account=wanted.account,
            status=wanted.status,
            type=wanted.type,
            by=wanted.origin,
            rule=wanted.rule,
            text=wanted.text,
        ),
        rule_name=None if wanted.rule is None else (await here.read(rule_names)).get(wanted.rule, "a removed rule"),
        accounts=sorted((await here.read(addresses)).values()),
        statuses=list(ActionStatus),
        types=list(ActionType),
        origins=list(Origin),
        asleep=len(await here.read(snoozed_mail)),
    )


@pages.get("/actions/snoozed")
async def snoozed_page(here: Here) -> Response:
    found = await here.read(snoozed_mail)
    return await here.page("actions/snoozed.html", SECTION, snoozes=found, most=MOST_SNOOZES, sleeps=SNOOZE_HOURS)


@pages.get("/actions/by-model")
async def by_model_page(
    here: Here,
    since: FilterChoice = "hour",
    at: Annotated[str, Query(max_length=40)] = "",
    until: Annotated[str, Query(max_length=40)] = "",
) -> Response:
    """What the model did since a moment, before it is undone; with `until`, how far the undoing is."""
    span = UndoSpan(_moment("at", at), _moment("until", until)) if until else _chosen_span(since, at, here.now)
    found = await here.read(lambda tx: undo_many.survey_undo(tx, span))
    return await here.page(
        "actions/by_model.html",
        SECTION,
        span=span,
        survey=found,
        titles=[wording.title(each.action).capitalize() for each in found.items[:100]],
        begun=bool(until),
        since=since,
        at=at,
        times=TIMES,
        progresses=list(Progress),
        open=Progress.OPEN,
        under_way=Progress.UNDER_WAY,
        failed=Progress.FAILED,
        form=Form(),
    )


@pages.post("/actions/by-model")
async def submit_undo_by_model(here: Here) -> Response:
    form = await here.form()
    span = UndoSpan(_moment("since", form["since"]), _moment("until", form["until"]))
    await here.write(lambda tx: undo_many.start_undo_many(tx, here.app.queue, span, here.actor))
    query = query_of(at=span.since.isoformat(), until=span.until.isoformat())
    return await here.go(f"/actions/by-model?{query}", "It is being undone; this page shows how far it is.")


def _chosen_span(since: str, at: str, now: datetime) -> UndoSpan:
    if since == "at" or (at and since not in AGO):
        return UndoSpan(_moment("at", at), now)
    if since not in AGO:
        raise BadInput("since", f"is not one of {', '.join(TIMES)}")
    return UndoSpan(now - AGO[since], now)


def _moment(field: str, text: str) -> datetime:
    """With its zone, or in UTC."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise BadInput(field, "is not a moment; write for example 2026-11-14T09:00") from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


@pages.get("/actions/{action_id}")
async def action_page(here: Here, action_id: str) -> Response:
    detail = await here.read(lambda tx: action_detail(tx, action_id))
    return await here.page("actions/action.html", SECTION, detail=detail, sleeps=SNOOZE_HOURS)


@pages.post("/actions/{action_id}/undo")
async def submit_undo(here: Here, action_id: str) -> Response:
    await here.write(lambda tx: undo.request_undo(tx, here.app.queue, action_id, here.actor))
    return await _back(here, action_id, "It is being undone; a worker does it now.")


@pages.post("/actions/{action_id}/retry")
async def submit_retry(here: Here, action_id: str) -> Response:
    await here.write(lambda tx: requests.retry_action(tx, here.app.queue, action_id, here.actor))
    return await _back(here, action_id, "It is tried again.")


@pages.post("/actions/{action_id}/cancel")
async def submit_cancel(here: Here, action_id: str) -> Response:
    await here.write(lambda tx: requests.cancel_action(tx, here.app.queue, action_id, here.actor))
    return await _back(here, action_id, "It is called off; nothing is done.")


@pages.post("/actions/{action_id}/wake")
async def submit_wake(here: Here, action_id: str) -> Response:
    await here.write(lambda tx: snoozes.wake_now(tx, here.app.queue, action_id, here.actor))
    return await _back(here, action_id, "It comes back as soon as a worker is free.")


@pages.post("/actions/{action_id}/sleep")
async def submit_snooze(here: Here, action_id: str) -> Response:
    """Let it sleep on, until another time."""
    hours = (await here.form()).one_of("hours", list(SNOOZE_HOURS))
    until = here.now + timedelta(hours=int(hours))
    await here.write(lambda tx: snoozes.reschedule(tx, here.app.queue, action_id, until, here.actor))
    return await _back(here, action_id, f"It comes back in {SNOOZE_HOURS[hours]}.")


async def _back(here: RequestContext, action_id: str, said: str) -> Response:
    """To the page whose button was pressed: that of the action, of its message, or of what sleeps."""
    back = (await here.form())["back"] or f"/actions/{parse_id(action_id, 'action')}"
    if not back.startswith(("/actions/", "/mail/")):
        raise BadInput("back", "is not a page that has this button")
    return await here.go(back, said)


api = api_router("actions")


def mailbox_of_action(tx: Tx, request: Request) -> str | None:
    """Whose message the action of the path is about."""
    return account_of_action(tx, parse_id(request.path_params["action_id"], "action_id"))


class SnoozeWanted(BaseModel, extra="forbid"):
    until: AwareDatetime = Field(description="when it comes back, with its zone; ten years ahead at most")


@api.get("")
@permits(Permission.READ, named_by("account"))
async def actions(
    here: Here,
    account: Annotated[str | None, Query(max_length=320, description="only of this mailbox")] = None,
    status: ActionStatus | None = None,
    type: ActionType | None = None,
    by: Annotated[Origin | None, Query(description="whose idea it was")] = None,
    rule: Annotated[UUID | None, Query(description="only of the rule with this id")] = None,
    text: Annotated[
        str | None, Query(min_length=1, max_length=200, description="in the subject or the sender of its message")
    ] = None,
    after: AfterId = None,
    limit: Limit = PAGE,
) -> Paged[ActionRow]:
    """Actions, newest first. Where few of very many match, a page may be short or empty and yet have a `next`."""
    wanted = ActionsWanted(
        account,
        status,
        type,
        by,
        None if rule is None else str(rule),
        text,
        None if after is None else str(after),
        limit,
    )
    return await here.read(lambda tx: list_actions(tx, wanted))


@api.get("/snoozed")
@permits(Permission.READ)
async def snoozed(here: Here) -> list[SnoozeRow]:
    """Mail that sleeps, the next to come back first; 200 at most."""
    return await here.read(snoozed_mail)


class SpanWanted(BaseModel, extra="forbid"):
    by: Origin = Field(Origin.MODEL, description="model or rule")
    since: AwareDatetime
    until: AwareDatetime | None = Field(None, description="not included; unset: now")


class SpanUndone(BaseModel):
    since: AwareDatetime
    until: AwareDatetime = Field(description="ask again with it to see how far the undoing is")
    total: int
    progress: dict[str, int] = Field(description="of the newest 2,000: how many can be, are being or were undone")
    left: dict[str, str] = Field(description="by action: why it is not undone")


@api.post("/survey")
@permits(Permission.READ)
async def survey(here: Here, wanted: SpanWanted) -> SpanUndone:
    """What the model, or rules, did in a stretch of time, and how far it is undone. Changes nothing."""
    return await _surveyed(here, _span(here, wanted))


@api.post("/undo-all")
@permits(Permission.ACT)
async def undo_all(here: Here, wanted: SpanWanted) -> SpanUndone:
    """Have all that undone by a worker, the newest first."""
    span = _span(here, wanted)
    await here.write(lambda tx: undo_many.start_undo_many(tx, here.app.queue, span, here.actor))
    return await _surveyed(here, span)


def _span(here: RequestContext, wanted: SpanWanted) -> UndoSpan:
    return UndoSpan(wanted.since, wanted.until or here.now, wanted.by)


async def _surveyed(here: RequestContext, span: UndoSpan) -> SpanUndone:
    found = await here.read(lambda tx: undo_many.survey_undo(tx, span))
    progress = {str(each): count for each, count in found.counts.items()}
    left = {each.action.id: str(each.reason) for each in found.not_undone}
    return SpanUndone(since=span.since, until=span.until, total=found.total, progress=progress, left=left)


@api.get("/{action_id}")
@permits(Permission.READ, mailbox_of_action)
async def action(here: Here, action_id: UUID) -> ActionDetail:
    """One action: what was done to which message, why, how it went, and whether it can be taken back."""
    return await here.read(lambda tx: action_detail(tx, str(action_id)))


@api.post("/{action_id}/undo")
@permits(Permission.ACT, mailbox_of_action)
async def take_back(here: Here, action_id: UUID) -> ActionRow:
    """Have it taken back by a worker; answers with the undo, which is an action of its own."""
    made = await here.write(lambda tx: undo.request_undo(tx, here.app.queue, str(action_id), here.actor))
    return await here.read(lambda tx: action_row(tx, made))


@api.post("/{action_id}/retry")
@permits(Permission.ACT, mailbox_of_action)
async def retry(here: Here, action_id: UUID) -> ActionRow:
    """Try a failed action again."""
    await here.write(lambda tx: requests.retry_action(tx, here.app.queue, str(action_id), here.actor))
    return await here.read(lambda tx: action_row(tx, str(action_id)))


@api.post("/{action_id}/cancel")
@permits(Permission.ACT, mailbox_of_action)
async def cancel(here: Here, action_id: UUID) -> ActionRow:
    """Call off an action that has not begun."""
    await here.write(lambda tx: requests.cancel_action(tx, here.app.queue, str(action_id), here.actor))
    return await here.read(lambda tx: action_row(tx, str(action_id)))


@api.post("/{action_id}/wake")
@permits(Permission.ACT, mailbox_of_action)
async def wake(here: Here, action_id: UUID) -> SnoozeRow:
    """Bring snoozed mail back now."""
    await here.write(lambda tx: snoozes.wake_now(tx, here.app.queue, str(action_id), here.actor))
    return await here.read(lambda tx: snooze_of(tx, str(action_id)))


@api.post("/{action_id}/sleep")
@permits(Permission.ACT, mailbox_of_action)
async def sleep(here: Here, action_id: UUID, wanted: SnoozeWanted) -> SnoozeRow:
    """Bring snoozed mail back at another time."""
    await here.write(lambda tx: snoozes.reschedule(tx, here.app.queue, str(action_id), wanted.until, here.actor))
    return await here.read(lambda tx: snooze_of(tx, str(action_id)))

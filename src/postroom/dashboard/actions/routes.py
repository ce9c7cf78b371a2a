"""Pages and API of actions: what was done with mail and why, how to undo it, and snoozed mail."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

from fastapi import Query
from pydantic import AwareDatetime, BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from postroom.actions import undo, wording
from postroom.actions.lifecycle import mailbox_of_action
from postroom.actions.undo import Progress, UndoSpan
from postroom.contract import actions as contract
from postroom.contract.tool import Id, R, ToolSignature
from postroom.dashboard.actions import queries
from postroom.dashboard.context import Here, RequestContext, api_router, named_by, pages_router, permits
from postroom.dashboard.forms import FilterChoice, Form, query_of
from postroom.dashboard.paging import Paged
from postroom.dashboard.rules.queries import rule_names
from postroom.db import Tx
from postroom.domain.actions import ActionStatus, ActionType, Origin
from postroom.domain.errors import BadInput
from postroom.domain.ids import parse_id
from postroom.domain.roles import Permission

pages = pages_router()
api = api_router("actions")

SECTION = "actions"
ActionsWanted = Annotated[queries.ActionsQuery, Query()]
SNOOZE_HOURS = {"1": "1 hour", "3": "3 hours", "24": "1 day", "72": "3 days", "168": "1 week", "720": "30 days"}
TIMES = {"hour": "the last hour", "day": "the last day", "week": "the last week", "at": "a time that you choose"}
AGO = {"hour": timedelta(hours=1), "day": timedelta(days=1), "week": timedelta(days=7)}


@pages.get("/actions")
async def actions_page(here: Here, wanted: ActionsWanted) -> Response:
    return await here.page(
        "actions/list.html",
        SECTION,
        actions=await show_actions(here, wanted),
        wanted=wanted,
        rule_name=None if wanted.rule is None else (await here.read(rule_names)).get(wanted.rule, "a removed rule"),
        accounts=sorted((await here.read(queries.addresses)).values()),
        statuses=list(ActionStatus),
        types=list(ActionType),
        origins=list(Origin),
        snoozed=len(await here.read(queries.snoozed_mail)),
    )


@api.get("")
@permits(Permission.READ, named_by("account"))
async def show_actions(here: Here, wanted: ActionsWanted) -> Paged[queries.ActionRow]:
    """Actions, newest first. If few of very many match, a page may be short or empty and still have a `next`."""
    return await here.read(lambda tx: queries.list_actions(tx, wanted))


@pages.get("/actions/snoozed")
async def snoozed_page(here: Here) -> Response:
    found = await show_snoozed(here)
    return await here.page(
        "actions/snoozed.html", SECTION, snoozes=found, most=queries.MOST_SNOOZES, hours=SNOOZE_HOURS
    )


@api.get("/snoozed")
@permits(Permission.READ)
async def show_snoozed(here: Here) -> list[queries.SnoozeRow]:
    """Snoozed mail, by the time of its return; 200 at most."""
    return await here.read(queries.snoozed_mail)


@pages.get("/actions/by-model")
async def by_model_page(
    here: Here,
    since: FilterChoice = "hour",
    at: Annotated[str, Query(max_length=40)] = "",
    until: Annotated[str, Query(max_length=40)] = "",
) -> Response:
    """What the model did since a time, before it is undone; with `until`, the progress of undoing it."""
    span = UndoSpan(_time("at", at), _time("until", until)) if until else _chosen_span(since, at, here.now)
    found = await here.read(lambda tx: undo.survey_undo(tx, span))
    titles = [wording.title(each.action) for each in found.items[:100]]
    return await here.page(
        "actions/by_model.html",
        SECTION,
        span=span,
        survey=found,
        titles=[title[:1].upper() + title[1:] for title in titles],
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
    span = UndoSpan(_time("since", form["since"]), _time("until", form["until"]))
    await here.call(contract.UNDO_ALL, {"since": span.since, "until": span.until})
    query = query_of(at=span.since.isoformat(), until=span.until.isoformat())
    return await here.go(f"/actions/by-model?{query}", "Undoing has started; this page shows the progress.")


def _chosen_span(since: str, at: str, now: datetime) -> UndoSpan:
    if since == "at" or (at and since not in AGO):
        return UndoSpan(_time("at", at), now)
    if since not in AGO:
        raise BadInput("since", f"is not one of {', '.join(TIMES)}")
    return UndoSpan(now - AGO[since], now)


def _time(field: str, text: str) -> datetime:
    """With its zone, or in UTC."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise BadInput(field, "is not a date and time; write for example 2026-11-14T09:00") from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


class SpanUndone(BaseModel):
    since: AwareDatetime
    until: AwareDatetime = Field(description="ask again with it to see the progress of undoing")
    total: int
    progress: dict[str, int] = Field(description="of the newest 2,000: how many can be, are being or were undone")
    left: dict[str, str] = Field(description="by action: why it is not undone")


@api.post("/survey")
@permits(Permission.READ)
async def survey(here: Here, wanted: contract.UndoSpanArguments) -> SpanUndone:
    """What the model, or rules, did in a period, and how much of it is undone. Changes nothing."""
    return await _surveyed(here, UndoSpan(wanted.since, wanted.until or here.now, wanted.by))


@api.post("/undo-all")
@permits(Permission.ACT)
async def undo_all(here: Here, wanted: contract.UndoSpanArguments) -> SpanUndone:
    """Let a worker undo all of that, the newest first."""
    begun = await here.call(contract.UNDO_ALL, wanted)
    return await _surveyed(here, UndoSpan(begun.since, begun.until, wanted.by))


@api.post("/take-back")
@permits(Permission.ACT, keeps_to_mailbox=True)
async def take_back_many(here: Here, given: contract.TakeBackArguments) -> contract.AnsweredManyReply:
    """Take back what you approved or ordered: before it begins it is not done, afterwards it is undone."""
    return await here.call(contract.TAKE_BACK, given)


async def _surveyed(here: RequestContext, span: UndoSpan) -> SpanUndone:
    found = await here.read(lambda tx: undo.survey_undo(tx, span))
    progress = {str(each): count for each, count in found.counts.items()}
    left = {each.action.id: str(each.reason) for each in found.not_undone}
    return SpanUndone(since=span.since, until=span.until, total=found.total, progress=progress, left=left)


def mailbox_of_path(tx: Tx, request: Request) -> str | None:
    """The mailbox of the message that the path's action is about."""
    return mailbox_of_action(tx, parse_id(request.path_params["action_id"], "action_id"))


@pages.get("/actions/{action_id}")
async def action_page(here: Here, action_id: Id) -> Response:
    return await here.page(
        "actions/action.html", SECTION, detail=await show_action(here, action_id), hours=SNOOZE_HOURS
    )


@api.get("/{action_id}")
@permits(Permission.READ, mailbox_of_path)
async def show_action(here: Here, action_id: Id) -> queries.ActionDetail:
    """One action: what was done to which message, why, its steps, and whether it can be undone."""
    return await here.read(lambda tx: queries.action_detail(tx, action_id))


_Deed = Literal["undo", "retry", "dismiss", "cancel", "wake"]


async def _steer(here: RequestContext, tool: ToolSignature[Any, R], action_id: str, **more: Any) -> R:
    return await here.call(tool, {"action": action_id, **more})


@pages.post("/actions/{action_id}/sleep")
async def submit_snooze(here: Here, action_id: Id) -> Response:
    hours = (await here.form()).one_of("hours", list(SNOOZE_HOURS))
    await _steer(here, contract.SNOOZE, action_id, until=here.now + timedelta(hours=int(hours)))
    return await _back(here, action_id, f"The message returns in {SNOOZE_HOURS[hours]}.")


_DEEDS: dict[str, tuple[ToolSignature[Any, Any], str]] = {
    "undo": (contract.UNDO, "Undoing has started; a worker does it now."),
    "retry": (contract.RETRY, "The action is queued again."),
    "dismiss": (contract.DISMISS, "Dismissed; it is no longer listed as something you need to look at."),
    "cancel": (contract.CANCEL, "The action is cancelled; nothing is changed."),
    "wake": (contract.WAKE, "The message returns as soon as a worker is free."),
}


@pages.post("/actions/{action_id}/{deed}")
async def submit_deed(here: Here, action_id: Id, deed: _Deed) -> Response:
    tool, said = _DEEDS[deed]
    await _steer(here, tool, action_id)
    return await _back(here, action_id, said)


async def _back(here: RequestContext, action_id: str, message: str) -> Response:
    """To the page whose button was pressed: that of the action, of its message, or of snoozed mail."""
    back = (await here.form())["back"] or f"/actions/{action_id}"
    if not back.startswith(("/actions/", "/mail/")):
        raise BadInput("back", "is not a page that has this button")
    return await here.go(back, message)


@api.post("/{action_id}/undo")
@permits(Permission.ACT, keeps_to_mailbox=True)
async def take_back(here: Here, action_id: Id) -> queries.ActionRow:
    """Let a worker undo it; the reply is the undo, which is an action of its own."""
    made = await _steer(here, contract.UNDO, action_id)
    return await here.read(lambda tx: queries.action_row(tx, made.undo))


@api.post("/{action_id}/wake")
@permits(Permission.ACT, keeps_to_mailbox=True)
async def wake(here: Here, action_id: Id) -> queries.SnoozeRow:
    """Return snoozed mail now."""
    await _steer(here, contract.WAKE, action_id)
    return await here.read(lambda tx: queries.snooze_of(tx, action_id))


@api.post("/{action_id}/sleep")
@permits(Permission.ACT, keeps_to_mailbox=True)
async def sleep(here: Here, action_id: Id, wanted: contract.ReturnTime) -> queries.SnoozeRow:
    """Return snoozed mail at another time."""
    await _steer(here, contract.SNOOZE, action_id, until=wanted.until)
    return await here.read(lambda tx: queries.snooze_of(tx, action_id))


@api.post("/{action_id}/{deed}")
@permits(Permission.ACT, keeps_to_mailbox=True)
async def steer(here: Here, action_id: Id, deed: Literal["retry", "dismiss", "cancel"]) -> queries.ActionRow:
    """`retry` or `dismiss` an action that failed, so that it no longer needs attention; `cancel` one that has not
    started."""
    await _steer(here, _DEEDS[deed][0], action_id)
    return await here.read(lambda tx: queries.action_row(tx, action_id))

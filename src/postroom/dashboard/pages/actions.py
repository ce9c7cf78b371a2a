"""Actions: what was done with mail and why, how to take it back, and what sleeps until when."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated

from fastapi import Query
from starlette.responses import Response

from postroom.actions import desk, undo, undo_many, waking, wording
from postroom.actions.undo_many import Progress, Span
from postroom.dashboard.choosing import Choice, chosen, query_of
from postroom.dashboard.forms import Form
from postroom.dashboard.pages import pages_router
from postroom.dashboard.paging import After
from postroom.dashboard.reading.actions import (
    MOST_SNOOZES,
    ActionsWanted,
    action_detail,
    addresses,
    list_actions,
    sleeping,
)
from postroom.dashboard.reading.rules import rule_names
from postroom.dashboard.visit import Here, Visit
from postroom.domain.actions import ActionStatus, ActionType, Origin
from postroom.domain.errors import BadInput
from postroom.domain.ids import parse_id

router = pages_router()

SECTION = "actions"
SLEEPS = {"1": "1 hour", "3": "3 hours", "24": "1 day", "72": "3 days", "168": "1 week", "720": "30 days"}
"""Hours from now, until which mail can be made to sleep on."""
TIMES = {"hour": "the last hour", "day": "the last day", "week": "the last week", "at": "a moment of your choice"}
AGO = {"hour": timedelta(hours=1), "day": timedelta(days=1), "week": timedelta(days=7)}


@router.get("/actions")
async def actions(
    here: Here,
    account: Choice = "",
    status: Choice = "",
    type: Choice = "",
    by: Choice = "",
    rule: Choice = "",
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
        asleep=len(await here.read(sleeping)),
    )


@router.get("/actions/snoozed")
async def snoozed(here: Here) -> Response:
    found = await here.read(sleeping)
    return await here.page("actions/snoozed.html", SECTION, snoozes=found, most=MOST_SNOOZES, sleeps=SLEEPS)


@router.get("/actions/by-model")
async def by_model(
    here: Here,
    since: Choice = "hour",
    at: Annotated[str, Query(max_length=40)] = "",
    until: Annotated[str, Query(max_length=40)] = "",
) -> Response:
    """What the model did since a moment, before it is undone; with `until`, how far the undoing is."""
    span = Span(_moment("at", at), _moment("until", until)) if until else _chosen_span(since, at, here.now)
    found = await here.read(lambda tx: undo_many.survey(tx, span))
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


@router.post("/actions/by-model")
async def undo_by_model(here: Here) -> Response:
    form = await here.form()
    span = Span(_moment("since", form["since"]), _moment("until", form["until"]))
    await here.write(lambda tx: undo_many.start(tx, here.app.queue, span, here.actor))
    query = query_of(at=span.since.isoformat(), until=span.until.isoformat())
    return await here.go(f"/actions/by-model?{query}", "It is being undone; this page shows how far it is.")


def _chosen_span(since: str, at: str, now: datetime) -> Span:
    if since == "at" or (at and since not in AGO):
        return Span(_moment("at", at), now)
    if since not in AGO:
        raise BadInput("since", f"is not one of {', '.join(TIMES)}")
    return Span(now - AGO[since], now)


def _moment(field: str, text: str) -> datetime:
    """With its zone, or in UTC."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise BadInput(field, "is not a moment; write for example 2026-11-14T09:00") from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


@router.get("/actions/{action_id}")
async def action(here: Here, action_id: str) -> Response:
    detail = await here.read(lambda tx: action_detail(tx, action_id))
    return await here.page("actions/action.html", SECTION, detail=detail, sleeps=SLEEPS)


@router.post("/actions/{action_id}/undo")
async def take_back(here: Here, action_id: str) -> Response:
    await here.write(lambda tx: undo.request(tx, here.app.queue, action_id, here.actor))
    return await _back(here, action_id, "It is being undone; a worker does it now.")


@router.post("/actions/{action_id}/retry")
async def retry(here: Here, action_id: str) -> Response:
    await here.write(lambda tx: desk.retry(tx, here.app.queue, action_id, here.actor))
    return await _back(here, action_id, "It is tried again.")


@router.post("/actions/{action_id}/cancel")
async def cancel(here: Here, action_id: str) -> Response:
    await here.write(lambda tx: desk.cancel(tx, here.app.queue, action_id, here.actor))
    return await _back(here, action_id, "It is called off; nothing is done.")


@router.post("/actions/{action_id}/wake")
async def wake(here: Here, action_id: str) -> Response:
    await here.write(lambda tx: waking.wake_now(tx, here.app.queue, action_id, here.actor))
    return await _back(here, action_id, "It comes back as soon as a worker is free.")


@router.post("/actions/{action_id}/sleep")
async def sleep(here: Here, action_id: str) -> Response:
    """Let it sleep on, until another time."""
    hours = (await here.form()).one_of("hours", list(SLEEPS))
    until = here.now + timedelta(hours=int(hours))
    await here.write(lambda tx: waking.reschedule(tx, here.app.queue, action_id, until, here.actor))
    return await _back(here, action_id, f"It comes back in {SLEEPS[hours]}.")


async def _back(here: Visit, action_id: str, said: str) -> Response:
    """To the page whose button was pressed: that of the action, of its message, or of what sleeps."""
    back = (await here.form())["back"] or f"/actions/{parse_id(action_id, 'action')}"
    if not back.startswith(("/actions/", "/mail/")):
        raise BadInput("back", "is not a page that has this button")
    return await here.go(back, said)

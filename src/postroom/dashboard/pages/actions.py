"""Actions: what was done with mail and why, how to take it back, and what sleeps until when."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from fastapi import Query
from starlette.responses import Response

from postroom.actions import desk, undo, waking
from postroom.dashboard.choosing import Choice, chosen, query_of
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

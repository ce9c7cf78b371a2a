"""`/api/actions`: the same as the Actions page."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import Query
from pydantic import AwareDatetime, BaseModel, Field
from starlette.requests import Request

from postroom.actions import desk, undo, undo_many, waking
from postroom.actions.undo_many import Span
from postroom.dashboard.api import api_router
from postroom.dashboard.paging import PAGE, AfterId, Limit, Paged
from postroom.dashboard.reading.actions import (
    ActionDetail,
    ActionRow,
    ActionsWanted,
    SnoozeRow,
    account_of_action,
    action_detail,
    action_row,
    list_actions,
    sleeping,
    snooze_of,
)
from postroom.dashboard.security.permits import named_by, permits
from postroom.dashboard.visit import Here, Visit
from postroom.db import Tx
from postroom.domain.actions import ActionStatus, ActionType, Origin
from postroom.domain.ids import parse_id
from postroom.domain.roles import Permission

router = api_router("actions")


def mailbox_of_action(tx: Tx, request: Request) -> str | None:
    """Whose message the action of the path is about."""
    return account_of_action(tx, parse_id(request.path_params["action_id"], "action_id"))


class Sleep(BaseModel, extra="forbid"):
    until: AwareDatetime = Field(description="when it comes back, with its zone; ten years ahead at most")


@router.get("")
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


@router.get("/snoozed")
@permits(Permission.READ)
async def snoozed(here: Here) -> list[SnoozeRow]:
    """Mail that sleeps, the next to come back first; 200 at most."""
    return await here.read(sleeping)


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


@router.post("/survey")
@permits(Permission.READ)
async def survey(here: Here, wanted: SpanWanted) -> SpanUndone:
    """What the model, or rules, did in a stretch of time, and how far it is undone. Changes nothing."""
    return await _surveyed(here, _span(here, wanted))


@router.post("/undo-all")
@permits(Permission.ACT)
async def undo_all(here: Here, wanted: SpanWanted) -> SpanUndone:
    """Have all that undone by a worker, the newest first."""
    span = _span(here, wanted)
    await here.write(lambda tx: undo_many.start(tx, here.app.queue, span, here.actor))
    return await _surveyed(here, span)


def _span(here: Visit, wanted: SpanWanted) -> Span:
    return Span(wanted.since, wanted.until or here.now, wanted.by)


async def _surveyed(here: Visit, span: Span) -> SpanUndone:
    found = await here.read(lambda tx: undo_many.survey(tx, span))
    progress = {str(each): count for each, count in found.counts.items()}
    left = {each.action.id: str(each.reason) for each in found.not_undone}
    return SpanUndone(since=span.since, until=span.until, total=found.total, progress=progress, left=left)


@router.get("/{action_id}")
@permits(Permission.READ, mailbox_of_action)
async def action(here: Here, action_id: UUID) -> ActionDetail:
    """One action: what was done to which message, why, how it went, and whether it can be taken back."""
    return await here.read(lambda tx: action_detail(tx, str(action_id)))


@router.post("/{action_id}/undo")
@permits(Permission.ACT, mailbox_of_action)
async def take_back(here: Here, action_id: UUID) -> ActionRow:
    """Have it taken back by a worker; answers with the undo, which is an action of its own."""
    made = await here.write(lambda tx: undo.request(tx, here.app.queue, str(action_id), here.actor))
    return await here.read(lambda tx: action_row(tx, made))


@router.post("/{action_id}/retry")
@permits(Permission.ACT, mailbox_of_action)
async def retry(here: Here, action_id: UUID) -> ActionRow:
    """Try a failed action again."""
    await here.write(lambda tx: desk.retry(tx, here.app.queue, str(action_id), here.actor))
    return await here.read(lambda tx: action_row(tx, str(action_id)))


@router.post("/{action_id}/cancel")
@permits(Permission.ACT, mailbox_of_action)
async def cancel(here: Here, action_id: UUID) -> ActionRow:
    """Call off an action that has not begun."""
    await here.write(lambda tx: desk.cancel(tx, here.app.queue, str(action_id), here.actor))
    return await here.read(lambda tx: action_row(tx, str(action_id)))


@router.post("/{action_id}/wake")
@permits(Permission.ACT, mailbox_of_action)
async def wake(here: Here, action_id: UUID) -> SnoozeRow:
    """Bring snoozed mail back now."""
    await here.write(lambda tx: waking.wake_now(tx, here.app.queue, str(action_id), here.actor))
    return await here.read(lambda tx: snooze_of(tx, str(action_id)))


@router.post("/{action_id}/sleep")
@permits(Permission.ACT, mailbox_of_action)
async def sleep(here: Here, action_id: UUID, wanted: Sleep) -> SnoozeRow:
    """Bring snoozed mail back at another time."""
    await here.write(lambda tx: waking.reschedule(tx, here.app.queue, str(action_id), wanted.until, here.actor))
    return await here.read(lambda tx: snooze_of(tx, str(action_id)))

"""How far the sending of an action's mail has come, and how it ends.

Action, record and job end in one transaction, so they never contradict each other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import delete, select, update

from postroom import audit
from postroom.actions import lifecycle
from postroom.actions.lifecycle import Action
from postroom.actions.outbound.loop_guard import folded
from postroom.db import Tx
from postroom.db.tables.triage import auto_replies, outbound
from postroom.domain.actions import ActionStatus
from postroom.domain.errors import BadInput, Fatal, NotAllowed, PostroomError, Retryable
from postroom.mailboxes.protocol import MailDraft
from postroom.queue import JobContext
from postroom.queue.job import Json, describe

ONE_REPLY_IN = timedelta(hours=24)


class SendStage(StrEnum):
    COMPOSING = "composing"
    """A draft may be there, but none is on record: nothing can have been sent."""
    DRAFTED = "drafted"
    SENDING = "sending"
    """From here on it may have been sent."""
    SENT = "sent"
    UNCLEAR = "unclear"
    """The draft is gone and no sent message was found: a person has to look."""
    GIVEN_UP = "given_up"
    """Refused before there was a draft."""


@dataclass(frozen=True, slots=True)
class Outbound:
    action_id: str
    stage: SendStage
    draft_id: str | None
    thread_id: str | None
    """Of the draft, in which its sent message will be."""
    sent_message_id: str | None
    created_at: datetime


def find_record(tx: Tx, action_id: str) -> Outbound | None:
    row = tx.execute(select(outbound).where(outbound.c.action_id == action_id)).one_or_none()
    if row is None:
        return None
    return Outbound(
        row.action_id, SendStage(row.state), row.draft_id, row.draft_thread_id, row.sent_message_id, row.created_at
    )


def begin_record(tx: Tx, action_id: str, now: datetime) -> None:
    """Before the first call: from here on a draft of this action may exist."""
    row = {"action_id": action_id, "state": SendStage.COMPOSING, "created_at": now, "updated_at": now}
    tx.insert_missing(outbound, row)
    _advance(tx, action_id, {SendStage.GIVEN_UP, SendStage.COMPOSING}, SendStage.COMPOSING, now)


def mark_drafted(tx: Tx, action_id: str, draft: MailDraft, now: datetime) -> bool:
    """This draft, and no other, will be sent."""
    values = {
        "draft_id": draft.id,
        "draft_message_id": draft.message_id,
        "draft_thread_id": draft.thread_id or None,
    }
    return _advance(tx, action_id, {SendStage.COMPOSING}, SendStage.DRAFTED, now, **values)


def mark_sending(tx: Tx, action_id: str, now: datetime) -> bool:
    return _advance(tx, action_id, {SendStage.DRAFTED, SendStage.SENDING, SendStage.UNCLEAR}, SendStage.SENDING, now)


def mark_sent(tx: Tx, action_id: str, sent_message_id: str, now: datetime) -> None:
    open_stages = {SendStage.DRAFTED, SendStage.SENDING, SendStage.UNCLEAR}
    _advance(tx, action_id, open_stages, SendStage.SENT, now, sent_message_id=sent_message_id)


def mark_unclear(tx: Tx, action_id: str, now: datetime) -> None:
    _advance(tx, action_id, {SendStage.DRAFTED, SendStage.SENDING, SendStage.UNCLEAR}, SendStage.UNCLEAR, now)


def mark_given_up(tx: Tx, action_id: str, now: datetime) -> None:
    """If there is no draft yet, sending ends here, and its recipients may be answered later."""
    if _advance(tx, action_id, {SendStage.COMPOSING}, SendStage.GIVEN_UP, now):
        tx.execute(delete(auto_replies).where(auto_replies.c.action_id == action_id))


def _advance(
    tx: Tx, action_id: str, from_: Collection[SendStage], to: SendStage, now: datetime, **values: str | None
) -> bool:
    here = (outbound.c.action_id == action_id) & outbound.c.state.in_(sorted(from_))
    return tx.execute(update(outbound).where(here).values(state=to, updated_at=now, **values)).rowcount == 1


def take_reply_turn(tx: Tx, account_id: str, action_id: str, addresses: Collection[str], now: datetime) -> str | None:
    """Note that this action answers these addresses; the one that was answered within a day already, if any.

    The note comes before the reply, so that two actions at once cannot both be first.
    """
    keys = sorted({folded(each) for each in addresses})
    mine = {"account_id": account_id, "action_id": action_id, "replied_at": now}
    tx.insert_missing(auto_replies, *({**mine, "address": key} for key in keys))
    here = (auto_replies.c.account_id == account_id) & auto_replies.c.address.in_(keys)
    for row in tx.execute(tx.locking(select(auto_replies).where(here).order_by(auto_replies.c.address))).all():
        if row.action_id != action_id and row.replied_at > now - ONE_REPLY_IN:
            tx.execute(delete(auto_replies).where(auto_replies.c.action_id == action_id))
            return str(row.address)
    tx.execute(update(auto_replies).where(here).values(action_id=action_id, replied_at=now))
    return None


UNCLEAR = (
    "It is not known whether the mail was sent: its draft is gone, and no sent message was found. Look into the "
    "mailbox's Sent folder. Trying the action again looks again; it never sends a second time."
)


async def nothing_to_do(context: JobContext, action: Action) -> Json:
    """End the job of an action that is over or not begun, unless the action needs it again by now."""

    def end(tx: Tx) -> Json:
        status = lifecycle.get_action(tx, action.id, lock=True).status
        if status is ActionStatus.EXECUTING:
            raise Retryable("The action was begun again just now.")
        return {"outcome": "nothing to do", "status": status}

    await context.complete(end)
    return None


async def end_sent(context: JobContext, action: Action, sent_message_id: str) -> None:
    def end(tx: Tx) -> Json:
        now = context.queue.clock.now()
        mark_sent(tx, action.id, sent_message_id, now)
        hint = {
            "action": action.type,
            "inverse_action": "none",
            "irreversible": True,
            "sent_message_id": sent_message_id,
        }
        lifecycle.move_action(
            tx, action.id, ActionStatus.EXECUTING, ActionStatus.COMPLETED, now, undo_hint=hint, error=None
        )
        audit.record(tx, audit.SYSTEM, "outbound.sent", ("action", action.id), now, after=hint)
        return {"outcome": "sent", "sent_message_id": sent_message_id}

    await context.complete(end)


async def end_refused(context: JobContext, action: Action, reason: str, *, is_routine: bool) -> None:
    """A routine refusal is no failure: a guard did what it is for."""
    becomes = ActionStatus.REFUSED if is_routine else ActionStatus.FAILED
    result = {"outcome": "refused", "reason": reason}
    await context.complete(_ending(context, action, reason, mark_given_up, result, becomes))


async def end_unclear(context: JobContext, action: Action) -> None:
    await context.complete(_ending(context, action, UNCLEAR, mark_unclear, {"outcome": "unclear"}))


async def fail_if_final(context: JobContext, action: Action, error: Exception) -> None:
    """End the action too if no further attempt is made."""
    if isinstance(error, Fatal | BadInput | NotAllowed):
        text, keep = error.message, mark_given_up
    elif context.job.is_last_attempt:
        text, keep = _exhausted(context, error), _as_it_stands
    else:
        return
    await context.write(_ending(context, action, text, keep, None))


async def fail_named(context: JobContext, reason: str) -> None:
    """A payload that cannot be used still ends the action that it names, if that is of the account that it names."""
    action_id, account_id = (str(context.job.payload.get(name)) for name in ("action_id", "account_id"))

    def end(tx: Tx) -> None:
        try:
            action = lifecycle.get_action(tx, action_id)
        except BadInput:
            return
        if action.account_id == account_id:
            now = context.queue.clock.now()
            lifecycle.move_action(tx, action.id, ActionStatus.EXECUTING, ActionStatus.FAILED, now, error=reason)

    await context.write(end)


def _exhausted(context: JobContext, error: Exception) -> str:
    said = error.message if isinstance(error, PostroomError) else describe(error)
    again = "Trying the action again goes on where it stood, and never sends a second time."
    return f"gave up after {context.job.attempt} attempts; the last: {said} {again}"


def _as_it_stands(tx: Tx, action_id: str, now: object) -> None:
    """A draft may exist, and may have been sent; the next attempt looks for it."""


def _ending(
    context: JobContext,
    action: Action,
    reason: str,
    keep: Callable[[Tx, str, Any], None],
    result: Json,
    becomes: ActionStatus = ActionStatus.FAILED,
) -> Callable[[Tx], Json]:
    def end(tx: Tx) -> Json:
        now = context.queue.clock.now()
        keep(tx, action.id, now)
        lifecycle.move_action(tx, action.id, ActionStatus.EXECUTING, becomes, now, error=reason)
        return result

    return end

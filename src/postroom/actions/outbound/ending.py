"""How a sending ends: action, record and job in one transaction, so that none of them says what the others do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from postroom import audit
from postroom.actions import store
from postroom.actions.outbound import record
from postroom.actions.store import Action
from postroom.db import Tx
from postroom.domain.actions import ActionStatus
from postroom.domain.errors import BadInput, Fatal, NotAllowed, PostroomError, Retryable
from postroom.queue import JobContext
from postroom.queue.model import Json
from postroom.queue.outcome import describe

UNCLEAR = (
    "It cannot be told whether the mail was sent: its draft is gone, and no sent message was found. Look into the "
    "mailbox's Sent folder. Trying the action again looks again; it never sends a second time."
)


async def nothing_to_do(context: JobContext, action: Action) -> Json:
    """The action was ended by others, or is not begun: its job goes away, unless it is needed again by now."""

    def end(tx: Tx) -> Json:
        status = store.get(tx, action.id, lock=True).status
        if status is ActionStatus.EXECUTING:
            raise Retryable("The action was begun again just now.")
        return {"outcome": "nothing to do", "status": status}

    await context.complete(end)
    return None


async def sent(context: JobContext, action: Action, sent_message_id: str) -> None:
    def end(tx: Tx) -> Json:
        now = context.queue.clock.now()
        record.sent(tx, action.id, sent_message_id, now)
        hint = {
            "action": action.type,
            "inverse_action": "none",
            "irreversible": True,
            "sent_message_id": sent_message_id,
        }
        store.move(tx, action.id, ActionStatus.EXECUTING, ActionStatus.COMPLETED, now, undo_hint=hint, error=None)
        audit.record(tx, audit.SYSTEM, "outbound.sent", ("action", action.id), now, after=hint)
        return {"outcome": "sent", "sent_message_id": sent_message_id}

    await context.complete(end)


async def refused(context: JobContext, action: Action, reason: str) -> None:
    await context.complete(_failing(context, action, reason, record.give_up, {"outcome": "refused", "reason": reason}))


async def unclear(context: JobContext, action: Action) -> None:
    await context.complete(_failing(context, action, UNCLEAR, record.unclear, {"outcome": "unclear"}))


async def fail_if_final(context: JobContext, action: Action, error: Exception) -> None:
    """An error that no further attempt will mend is the action's end too."""
    if isinstance(error, Fatal | BadInput | NotAllowed):
        text, keep = error.message, record.give_up
    elif context.job.is_last_attempt:
        text, keep = _exhausted(context, error), _as_it_stands
    else:
        return
    await context.write(_failing(context, action, text, keep, None))


async def fail_named(context: JobContext, reason: str) -> None:
    """A payload that cannot be used still ends the action that it names, if that is of the account that it names."""
    action_id, account_id = (str(context.job.payload.get(name)) for name in ("action_id", "account_id"))

    def end(tx: Tx) -> None:
        try:
            action = store.get(tx, action_id)
        except BadInput:
            return
        if action.account_id == account_id:
            now = context.queue.clock.now()
            store.move(tx, action.id, ActionStatus.EXECUTING, ActionStatus.FAILED, now, error=reason)

    await context.write(end)


def _exhausted(context: JobContext, error: Exception) -> str:
    said = error.message if isinstance(error, PostroomError) else describe(error)
    again = "Trying the action again goes on where it stood, and never sends a second time."
    return f"gave up after {context.job.attempt} attempts; the last: {said} {again}"


def _as_it_stands(tx: Tx, action_id: str, now: object) -> None:
    """A draft may be there, and may have been sent: the next who tries looks."""


def _failing(
    context: JobContext, action: Action, reason: str, keep: Callable[[Tx, str, Any], None], result: Json
) -> Callable[[Tx], Json]:
    def end(tx: Tx) -> Json:
        now = context.queue.clock.now()
        keep(tx, action.id, now)
        store.move(tx, action.id, ActionStatus.EXECUTING, ActionStatus.FAILED, now, error=reason)
        return result

    return end

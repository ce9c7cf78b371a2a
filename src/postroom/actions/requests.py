"""What a person asks for: a new action, another try of a failed one, the cancellation of one. Each is audited."""

from __future__ import annotations

from sqlalchemy import Row, and_, select, update

from postroom import audit
from postroom.actions import approvals, lifecycle, scheduling
from postroom.actions.lifecycle import Action, NewAction
from postroom.actions.scheduling import enqueue_action
from postroom.audit import Actor
from postroom.db import Tx
from postroom.db.tables.accounts import accounts
from postroom.db.tables.mail import messages
from postroom.db.tables.triage import actions
from postroom.domain.actions import ActionStatus as S
from postroom.domain.actions import ActionType, Origin, WantedAction
from postroom.domain.errors import BadInput, NotFound
from postroom.domain.ids import is_id
from postroom.queue import JobQueue


def message_named(tx: Tx, text: str) -> Row[*tuple[object, ...]]:
    """A message that can be acted on, by its id here or in the mailbox."""
    if is_id(text):
        condition = messages.c.id == text
    else:
        ours = select(accounts.c.email)
        condition = and_(
            messages.c.provider == "gmail",
            messages.c.endpoint_identity.in_(ours),
            messages.c.external_event_id == text,
        )
    found = tx.execute(select(messages).where(condition, messages.c.account_id.is_not(None)).limit(2)).all()
    if not found:
        raise NotFound(
            "message",
            f"{text[:60]!r} cannot be acted on: only mail that came in as new, or through a backfill, can be. "
            "Being in the archive is not enough",
        )
    if len(found) > 1:
        raise BadInput("message", f"{text[:60]!r} is a message in two mailboxes; give its id of Postroom")
    if found[0].deleted_at_source is not None:
        raise BadInput("message", "it was deleted from the mailbox")
    if found[0].direction == "outbound":
        raise BadInput("message", "it was sent by you; only mail that you received is acted on")
    return found[0]


def request_action(tx: Tx, queue: JobQueue, message: Row[*tuple[object, ...]], wanted: WantedAction, who: Actor) -> str:
    """Order a person's own action, which needs no approval; returns its id."""
    now = queue.clock.now()
    new = NewAction(
        account_id=message.account_id,
        gmail_id=message.external_event_id,
        wanted=wanted,
        origin=Origin.PERSON,
        wanted_by=f"{who.role} {who.name}",
        message_id=message.id,
        thread_id=message.external_thread_id,
    )
    action_id = lifecycle.insert_action(tx, new, now)
    enqueue_action(tx, queue, new.account_id, action_id, now)
    audit.record(tx, who, "action.want", ("action", action_id), now, after=wanted.to_json())
    return action_id


def retry_action(tx: Tx, queue: JobQueue, action_id: str, who: Actor) -> None:
    """Try a failed action again."""
    action = require_failed(tx, action_id, lock=True)
    now = queue.clock.now()
    lifecycle.move_action(tx, action.id, S.FAILED, S.QUEUED, now, error=None)
    if action.type is ActionType.SNOOZE and action.origin is not Origin.UNDO:
        # Its wake-up may be over by now: it is arranged anew before the mail is hidden.
        tx.execute(update(actions).where(actions.c.id == action.id).values(pre_image=None))
    scheduling.enqueue(tx, queue, action, now)
    audit.record(tx, who, "action.retry", ("action", action.id), now, before={"status": "failed"})


def cancel_action(tx: Tx, queue: JobQueue, action_id: str, who: Actor, why: str = "called off") -> None:
    """Cancel an action that has not begun."""
    cancel_locked(tx, queue, require_not_begun(tx, action_id, lock=True), who, why)


def cancel_locked(tx: Tx, queue: JobQueue, action: Action, who: Actor, why: str) -> None:
    now = queue.clock.now()
    before, after = {"status": str(action.status)}, {"status": str(S.CANCELED), "reason": why}
    audit.record(tx, who, "action.cancel", ("action", action.id), now, before=before, after=after)
    lifecycle.move_action(tx, action.id, action.status, S.CANCELED, now, error=why)
    if action.job_id is not None:
        queue.cancel_within(tx, action.job_id)
    if action.origin is Origin.UNDO:
        scheduling.unlink(tx, action.id)
    approvals.renew_notices(tx, queue, action)
    scheduling.call_next(tx, queue, action, now)


def require_failed(tx: Tx, action_id: str, *, lock: bool = False) -> Action:
    action = lifecycle.get_action(tx, action_id, lock=lock)
    if action.status is not S.FAILED:
        raise BadInput("action", f"{action.id} is {action.status}; only what failed can be tried again")
    return action


def require_not_begun(tx: Tx, action_id: str, *, lock: bool = False) -> Action:
    action = lifecycle.get_action(tx, action_id, lock=lock)
    if action.status not in (S.QUEUED, S.APPROVED_PENDING):
        raise BadInput("action", f"{action.id} is {action.status}; only what has not begun can be called off")
    return action

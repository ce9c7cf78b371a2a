"""Actions that wait for a person's approval, and the notices about them in other places.

Each question is answered once: answer, follow-up job and audit entry are one transaction, and a later answer
learns who was first.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import Row, Select, or_, select

from postroom import audit
from postroom.actions import lifecycle, scheduling
from postroom.actions.lifecycle import Action
from postroom.actions.scheduling import question_job
from postroom.audit import Actor
from postroom.db import Tx
from postroom.db.tables.accounts import accounts
from postroom.db.tables.mail import messages
from postroom.db.tables.triage import actions, approval_notices
from postroom.domain.actions import ActionStatus, ActionType
from postroom.domain.errors import BadInput, NotFound
from postroom.domain.ids import parse_id
from postroom.domain.limits import LONGEST_NOTE
from postroom.queue import JobContext, JobQueue
from postroom.queue.job import Json

_AT_ONCE = 1_000
_SETTLED = timedelta(minutes=1)


class NoticeState(StrEnum):
    SENDING = "sending"
    """It may have been posted, but that is not recorded."""
    SENT = "sent"
    CLOSED = "closed"
    """Its buttons are gone."""


def renew_notices(tx: Tx, queue: JobQueue, action: Action) -> None:
    """The question is closed: enqueue the update of notices posted elsewhere."""
    asked = select(approval_notices.c.action_id).where(approval_notices.c.action_id == action.id)
    if tx.execute(asked).first() is not None:
        queue.add(tx, question_job(action.account_id, action.id))


def renew_stale_notices(tx: Tx, queue: JobQueue, now: datetime) -> int:
    """Enqueue notices that could not be posted (a wrong token, for example) and updates of closed questions that still
    show buttons; returns how many."""
    is_open = actions.c.status == ActionStatus.APPROVED_PENDING
    never_asked = is_open & (approval_notices.c.state == NoticeState.SENDING)
    left_open = ~is_open & (approval_notices.c.state != NoticeState.CLOSED)
    stale = (
        select(actions.c.account_id, actions.c.id)
        .join(approval_notices, approval_notices.c.action_id == actions.c.id)
        .where(or_(never_asked, left_open), approval_notices.c.updated_at <= now - _SETTLED)
        .where(actions.c.updated_at <= now - _SETTLED)
        .order_by(actions.c.id)
        .limit(_AT_ONCE)
    )
    found = tx.execute(stale).all()
    queue.add(tx, *(question_job(account_id, action_id) for account_id, action_id in found))
    return len(found)


MOST_LISTED = 1_000


class ApprovalVerdict(StrEnum):
    APPROVE = "approve"
    REJECT = "reject"


_BECOMES = {ApprovalVerdict.APPROVE: ActionStatus.QUEUED, ApprovalVerdict.REJECT: ActionStatus.REJECTED}


@dataclass(frozen=True, slots=True)
class ApprovalQuestion:
    """What a person needs to know to decide."""

    action: Action
    account: str
    sender: str | None
    subject: str | None
    received_at: datetime | None
    answers_go_to: str | None = None
    """Where the message asks for answers; None if that is the sender."""

    @property
    def is_open(self) -> bool:
        return self.action.status is ActionStatus.APPROVED_PENDING


@dataclass(frozen=True, slots=True)
class ApprovalOutcome:
    """Whether this answer counted, and how the question stands now."""

    counted: bool
    question: ApprovalQuestion

    @property
    def said(self) -> str:
        """In a person's words, with who answered."""
        return standing(self.question.action)


def list_questions(tx: Tx, limit: int = 100) -> list[ApprovalQuestion]:
    """Open questions, the oldest first."""
    if not 1 <= limit <= MOST_LISTED:
        raise BadInput("limit", f"{limit} is not within 1 to {MOST_LISTED}")
    query = _questions().where(actions.c.status == ActionStatus.APPROVED_PENDING).order_by(actions.c.id).limit(limit)
    return [_question(row) for row in tx.execute(query)]


def get_question(tx: Tx, action_id: str) -> ApprovalQuestion:
    """An action with what is known of its message, whether it is open or answered."""
    action_id = parse_id(action_id, "action")
    row = tx.execute(_questions().where(actions.c.id == action_id)).one_or_none()
    if row is None:
        raise NotFound("action", f"there is no action {action_id}")
    return _question(row)


def answer(
    tx: Tx, queue: JobQueue, action_id: str, verdict: ApprovalVerdict, who: Actor, *, note: str | None = None
) -> ApprovalOutcome:
    """Answer a question. One that is answered already, or too old, stays as it is."""
    if note is not None and len(note) > LONGEST_NOTE:
        raise BadInput("note", f"has {len(note)} characters; the most is {LONGEST_NOTE}")
    action, now = lifecycle.get_action(tx, action_id, lock=True), queue.clock.now()
    if action.status is not ActionStatus.APPROVED_PENDING:
        return ApprovalOutcome(False, get_question(tx, action.id))
    if action.expires_at is not None and action.expires_at <= now:
        _expire(tx, queue, action, now)
        return ApprovalOutcome(False, get_question(tx, action.id))
    becomes = _BECOMES[verdict]
    by = f"{who.role} {who.name}"
    if not lifecycle.move_action(tx, action.id, action.status, becomes, now, answered_by=by, answered_at=now):
        return ApprovalOutcome(False, get_question(tx, action.id))
    _follow_up(tx, queue, action, becomes, now)
    after = {"status": str(becomes)} | ({"note": note} if note else {})
    before = {"status": str(action.status)}
    audit.record(tx, who, f"action.{verdict}", ("action", action.id), now, before=before, after=after)
    return ApprovalOutcome(True, get_question(tx, action.id))


def standing(action: Action) -> str:
    """How a question stands, with who answered it."""
    by = f" by {action.answered_by}" if action.answered_by else ""
    when = f" at {action.answered_at:%Y-%m-%d %H:%M} UTC" if action.answered_at else ""
    match action.status:
        case ActionStatus.APPROVED_PENDING:
            return "waits for approval"
        case ActionStatus.REJECTED:
            return f"rejected{by}{when}"
        case ActionStatus.EXPIRED:
            return "expired: no answer in time"
        case ActionStatus.CANCELED if not action.answered_by:
            return f"called off: {action.error or 'it is no longer wanted'}"
        case status if action.answered_by:
            return f"approved{by}{when}; it is {status}"
        case status:
            return f"needed no approval; it is {status}"


async def expire(context: JobContext) -> Json:
    """The job `approvals.expire`: expires questions without an answer, and closes notices that are still open."""

    def run(tx: Tx) -> Json:
        now = context.queue.clock.now()
        late = select(actions).where(actions.c.status == ActionStatus.APPROVED_PENDING, actions.c.expires_at <= now)
        rows = tx.execute(tx.locking(late.order_by(actions.c.id).limit(_AT_ONCE), skip_locked=True)).all()
        for row in rows:
            _expire(tx, context.queue, lifecycle.action_from_row(row), now)
        return {"expired": len(rows), "notices": renew_stale_notices(tx, context.queue, now)}

    await context.complete(run)
    return None


def _expire(tx: Tx, queue: JobQueue, action: Action, now: datetime) -> None:
    if not lifecycle.move_action(tx, action.id, ActionStatus.APPROVED_PENDING, ActionStatus.EXPIRED, now):
        return
    _follow_up(tx, queue, action, ActionStatus.EXPIRED, now)
    before, after = {"status": str(action.status)}, {"status": str(ActionStatus.EXPIRED)}
    audit.record(tx, audit.SYSTEM, "action.expire", ("action", action.id), now, before=before, after=after)


def _follow_up(tx: Tx, queue: JobQueue, action: Action, becomes: ActionStatus, now: datetime) -> None:
    """Start the action if it was approved, else let the next one begin; update notices posted elsewhere."""
    if becomes is ActionStatus.QUEUED:
        scheduling.enqueue(tx, queue, action, now)
    else:
        scheduling.call_next(tx, queue, action, now)
    renew_notices(tx, queue, action)


def _questions() -> Select[*tuple[Any, ...]]:
    return (
        select(
            actions,
            accounts.c.email.label("its_account"),
            messages.c.sender_identity.label("its_sender"),
            messages.c.sender_name.label("its_sender_name"),
            messages.c.subject.label("its_subject"),
            messages.c.received_at.label("its_received_at"),
            messages.c.headers.label("its_headers"),
        )
        .join(accounts, accounts.c.id == actions.c.account_id)
        .join(messages, messages.c.id == actions.c.message_id, isouter=True)
    )


def _question(row: Row[*tuple[Any, ...]]) -> ApprovalQuestion:
    sender = f"{row.its_sender_name} <{row.its_sender}>" if row.its_sender_name else row.its_sender
    action = lifecycle.action_from_row(row)
    answers_go_to = (row.its_headers or {}).get("reply-to") if action.type is ActionType.AUTO_REPLY else None
    return ApprovalQuestion(action, row.its_account, sender, row.its_subject, row.its_received_at, answers_go_to)

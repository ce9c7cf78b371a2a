"""Actions that wait for a person's approval, and the notices about them in other places.

Each question is answered once: answer, follow-up job and audit entry are one transaction, and a later answer
learns who was first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import Row, Select, func, or_, select

from postroom import audit
from postroom.actions import lifecycle, scheduling
from postroom.actions.lifecycle import Action
from postroom.actions.scheduling import question_job
from postroom.actions.wording import LetterPreview, letter_of
from postroom.audit import Actor
from postroom.db import Tx
from postroom.db.tables.accounts import accounts
from postroom.db.tables.mail import messages
from postroom.db.tables.triage import actions, approval_notices, decisions
from postroom.domain.actions import ActionStatus, ActionType
from postroom.domain.errors import BadInput, NotFound
from postroom.domain.ids import parse_id
from postroom.domain.validation import LONGEST_NOTE
from postroom.mail.addresses import parse_addresses
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
    """The question is closed, or open again: enqueue the update of notices posted elsewhere."""
    asked = select(approval_notices.c.action_id).where(approval_notices.c.action_id == action.id)
    if tx.execute(asked).first() is not None:
        queue.add(tx, question_job(action.account_id, action.id))


def renew_stale_notices(tx: Tx, queue: JobQueue, now: datetime, *, has_channel: bool) -> int:
    """Enqueue notices that could not be posted (a wrong token, or no channel at that time) and updates of closed
    questions that still show buttons; returns how many."""
    if not has_channel:
        return 0
    is_open = actions.c.status == ActionStatus.APPROVED_PENDING
    settled = approval_notices.c.updated_at <= now - _SETTLED
    not_posted = is_open & (approval_notices.c.state == NoticeState.SENDING) & settled
    never_asked = is_open & approval_notices.c.action_id.is_(None)
    left_open = ~is_open & (approval_notices.c.state != NoticeState.CLOSED) & settled
    stale = (
        select(actions.c.account_id, actions.c.id)
        .join(approval_notices, approval_notices.c.action_id == actions.c.id, isouter=True)
        .where(or_(not_posted, never_asked, left_open), actions.c.updated_at <= now - _SETTLED)
        .order_by(actions.c.id)
        .limit(_AT_ONCE)
    )
    found = tx.execute(stale).all()
    queue.add(tx, *(question_job(account_id, action_id) for account_id, action_id in found))
    return len(found)


MOST_LISTED = 1_000
MOST_TEXT = 2_000
"""Characters of the message that a question shows."""


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
    """With the name, where there is one."""
    subject: str | None
    received_at: datetime | None
    address: str | None = None
    """Of the sender, alone."""
    answers_go_to: str | None = None
    """Where the message asks for answers; None if that is the sender."""
    letter: LetterPreview | None = None
    """The mail that would be sent."""
    why: str | None = None
    """Why the rule or the model wants it, in its own words."""
    confidence: float | None = None
    """How sure the model is."""
    text: str | None = None
    """The beginning of the message that it is about."""

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


def get_questions(tx: Tx, action_ids: Sequence[str]) -> list[ApprovalQuestion]:
    """The same for several, in their order; those that do not exist are passed over."""
    ids = [parse_id(each, "action") for each in action_ids]
    found = {row.id: _question(row) for row in tx.execute(_questions().where(actions.c.id.in_(ids)))}
    return [found[each] for each in ids if each in found]


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


def reopen(tx: Tx, queue: JobQueue, action: Action, who: Actor) -> None:
    """Take back the approval of an action that has not begun, or a rejection: its question is open again, and asked
    where it was.

    The caller holds the lock of the action. Its job, if it still comes, finds nothing to do.
    """
    now = queue.clock.now()
    pending = ActionStatus.APPROVED_PENDING
    lifecycle.move_action(tx, action.id, action.status, pending, now, answered_by=None, answered_at=None)
    before, after = {"status": str(action.status), "answered_by": action.answered_by}, {"status": str(pending)}
    audit.record(tx, who, "action.reopen", ("action", action.id), now, before=before, after=after)
    scheduling.call_next(tx, queue, action, now)
    renew_notices(tx, queue, action)


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


class ApprovalUpkeep:
    """The job `approvals.expire`: expires questions without an answer, asks those that no channel has, and closes
    notices that are still open."""

    def __init__(self, *, has_channel: bool) -> None:
        self._has_channel = has_channel

    async def __call__(self, context: JobContext) -> Json:
        await context.complete(lambda tx: self._run(tx, context.queue))
        return None

    def _run(self, tx: Tx, queue: JobQueue) -> Json:
        now = queue.clock.now()
        late = select(actions).where(actions.c.status == ActionStatus.APPROVED_PENDING, actions.c.expires_at <= now)
        rows = tx.execute(tx.locking(late.order_by(actions.c.id).limit(_AT_ONCE), skip_locked=True)).all()
        for row in rows:
            _expire(tx, queue, lifecycle.action_from_row(row), now)
        return {"expired": len(rows), "notices": renew_stale_notices(tx, queue, now, has_channel=self._has_channel)}


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
            func.coalesce(messages.c.sender_identity, actions.c.sender).label("its_sender"),
            messages.c.sender_name.label("its_sender_name"),
            func.coalesce(messages.c.subject, actions.c.subject).label("its_subject"),
            messages.c.received_at.label("its_received_at"),
            messages.c.headers.label("its_headers"),
            messages.c.attachments.label("its_files"),
            lifecycle.list_header(),
            func.substr(messages.c.normalized_text, 1, MOST_TEXT).label("its_text"),
            decisions.c.reason.label("its_reason"),
            decisions.c.confidence.label("its_confidence"),
            decisions.c.source.label("its_source"),
        )
        .join(accounts, accounts.c.id == actions.c.account_id)
        .join(messages, messages.c.id == actions.c.message_id, isouter=True)
        .join(decisions, decisions.c.id == actions.c.decision_id, isouter=True)
    )


def _question(row: Row[*tuple[Any, ...]]) -> ApprovalQuestion:
    sender = f"{row.its_sender_name} <{row.its_sender}>" if row.its_sender_name else row.its_sender
    action = lifecycle.action_from_row(row)
    answers_go_to = (row.its_headers or {}).get("reply-to") if action.type is ActionType.AUTO_REPLY else None
    files = tuple(str(each.get("filename") or "a file without a name") for each in row.its_files or ())
    return ApprovalQuestion(
        action,
        row.its_account,
        sender,
        row.its_subject,
        row.its_received_at,
        address=row.its_sender,
        answers_go_to=answers_go_to,
        letter=letter_of(action, _answered(answers_go_to, sender), row.its_subject, files),
        why=row.its_reason,
        confidence=row.its_confidence if row.its_source in ("llm", "learned") else None,
        text=row.its_text,
    )


def _answered(answers_go_to: str | None, sender: str | None) -> tuple[str, ...]:
    """Whom a reply goes to that names no one: who is asked for, else the sender."""
    asked = tuple(str(each) for each in parse_addresses(answers_go_to)) if answers_go_to else ()
    return asked or ((sender,) if sender else ())

"""What a person asks for: a new action, the same action on many messages, another try of a failed one or of a failed
job, the cancellation of one. Each is audited.

A job that stands for an action is never queued again alone: the action is over by then, and the job would find nothing
to do. Both go back together. Of many messages each gets an action of its own; what cannot be acted on is named with the
reason, and does not keep the others from being done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import NamedTuple, Protocol

from sqlalchemy import and_, select, update

from postroom import audit
from postroom.accounts.account import Account, account_with_id, list_accounts
from postroom.actions import approvals, lifecycle, scheduling
from postroom.actions.lifecycle import Action, NewAction
from postroom.archive.backend import ArchiveBackend, MailReader
from postroom.archive.messages import ArchivedMessage, account_name
from postroom.archive.service import read_apart
from postroom.audit import Actor
from postroom.db import Database, Tx
from postroom.db.tables.accounts import accounts
from postroom.db.tables.mail import messages
from postroom.db.tables.triage import actions
from postroom.domain import jobs
from postroom.domain.actions import FOR_GOOD, ActionType, Origin, WantedAction
from postroom.domain.actions import ActionStatus as S
from postroom.domain.errors import BadInput, NotAllowed, NotFound
from postroom.domain.ids import is_id
from postroom.mailboxes.gmail.methods import missing_scope
from postroom.queue import FailedJobs, JobQueue, JobState
from postroom.queue.inspection import JobRecord, show_job

OWN_MAIL = frozenset({"SENT", "DRAFT"})


@dataclass(frozen=True, slots=True)
class ActionTarget:
    """A message that can be acted on: it is in a mailbox of ours."""

    account_id: str
    gmail_id: str
    thread_id: str | None
    message_id: str | None
    """None where only the archive has it."""
    subject: str | None
    sender: str | None


def message_named(tx: Tx, text: str) -> ActionTarget:
    """A message that was taken in, by its id here or in the mailbox."""
    found = find_taken_in(tx, text)
    if found is None:
        raise NotFound("message", f"{text[:60]!r} is not known here; `postroom search` shows the ids of archived mail")
    return found


def find_taken_in(tx: Tx, text: str, mailbox: str | None = None) -> ActionTarget | None:
    """The same; None if it is not among what was taken in, or not in this mailbox."""
    if is_id(text):
        condition = messages.c.id == text
    else:
        identity = messages.c.endpoint_identity
        condition = and_(
            messages.c.provider == "gmail",
            identity.in_(select(accounts.c.email)) if mailbox is None else identity == mailbox,
            messages.c.external_event_id == text,
        )
    found = tx.execute(select(messages).where(condition, messages.c.account_id.is_not(None)).limit(2)).all()
    if not found:
        return None
    if len(found) > 1:
        raise BadInput("message", f"{text[:60]!r} is a message in two mailboxes; give its id of Postroom")
    [row] = found
    _require_there(is_deleted=row.deleted_at_source is not None, is_own=row.direction == "outbound")
    return ActionTarget(
        row.account_id, row.external_event_id, row.external_thread_id, row.id, row.subject, row.sender_identity
    )


class InArchive(Protocol):
    """What the archive knows of a message that decides whether it can be acted on."""

    @property
    def account(self) -> str: ...

    @property
    def gmail_id(self) -> str | None: ...

    @property
    def labels(self) -> tuple[str, ...]: ...

    @property
    def deleted_at_source(self) -> datetime | None: ...


def archived_target(tx: Tx, message: ArchivedMessage) -> ActionTarget:
    """A message that the archive has and the mailbox still has too, whether or not it was taken in."""
    account, gmail_id = require_in_mailbox(tx, message)
    taken_in = find_taken_in(tx, gmail_id, account.email)
    if taken_in is not None and taken_in.account_id == account.id:
        return taken_in
    return ActionTarget(account.id, gmail_id, message.thread_id, None, message.subject, message.sender)


def require_in_mailbox(tx: Tx, message: InArchive) -> tuple[Account, str]:
    """Its account and its id there. BadInput says why it cannot be acted on."""
    account = next((each for each in list_accounts(tx) if account_name(each.email) == message.account), None)
    if account is None:
        raise BadInput("message", f"it is of {message.account}, which is not connected; see `postroom account add`")
    if message.gmail_id is None:
        raise BadInput("message", "it was imported from a file, and is in no mailbox that could be changed")
    _require_there(is_deleted=message.deleted_at_source is not None, is_own=not OWN_MAIL.isdisjoint(message.labels))
    return account, message.gmail_id


def _require_there(*, is_deleted: bool, is_own: bool) -> None:
    if is_deleted:
        raise BadInput("message", "it was deleted from the mailbox")
    if is_own:
        raise BadInput("message", "it was sent by you; only mail that you received is acted on")


async def find_target(
    database: Database, archive: ArchiveBackend, text: str, mailbox: str | None = None
) -> ActionTarget:
    """The message that a person names: by its id here or in the mailbox, its key in the archive, or its Message-ID.

    `mailbox` is the only one that the caller may act in; None: any.
    """
    found = await database.read(lambda tx: find_taken_in(tx, text))
    if found is None:
        found = await _find_archived(database, archive, text, mailbox)
    if mailbox is not None and await database.read(lambda tx: _mailbox_of(tx, found)) != mailbox:
        raise NotAllowed(f"This token is for {mailbox} only.")
    return found


async def _find_archived(database: Database, archive: ArchiveBackend, text: str, mailbox: str | None) -> ActionTarget:
    if is_id(text):
        raise NotFound("message", f"there is no message {text}; `postroom search` shows the ids of archived mail")
    try:
        archived = await read_apart(archive, lambda reader: reader.find(text, mailbox))
    except BadInput as error:
        raise type(error)("message", error.problem) from None
    return await database.read(lambda tx: archived_target(tx, archived))


def _mailbox_of(tx: Tx, target: ActionTarget) -> str | None:
    return tx.execute(select(accounts.c.email).where(accounts.c.id == target.account_id)).scalar()


def request_action(tx: Tx, queue: JobQueue, target: ActionTarget, wanted: WantedAction, who: Actor) -> str:
    """Order a person's own action, which needs no approval; returns its id.

    The same mail ordered twice within a minute, as by a second click, is one order.
    """
    _require_permitted(tx, target, wanted)
    now = queue.clock.now()
    new = replace(_new_action(target, wanted), origin=Origin.PERSON, wanted_by=f"{who.role} {who.name}")
    if wanted.type in _ONCE and (before := _just_ordered(tx, new, now - _SECOND_CLICK)) is not None:
        return before
    action_id = lifecycle.insert_action(tx, new, now)
    scheduling.enqueue(tx, queue, lifecycle.get_action(tx, action_id), now)
    audit.record(tx, who, "action.want", ("action", action_id), now, after=wanted.outline().to_json())
    return action_id


_SECOND_CLICK = timedelta(minutes=1)
_ONCE = scheduling.SENDING | {ActionType.UNSUBSCRIBE}


def _just_ordered(tx: Tx, new: NewAction, since: datetime) -> str | None:
    """The same order by the same person, unless it is over without having been sent."""
    tx.execute(tx.locking(select(accounts.c.id).where(accounts.c.id == new.account_id)))  # two clicks at once, in turn
    query = select(actions.c.id, actions.c.parameters).where(
        actions.c.account_id == new.account_id,
        actions.c.gmail_id == new.gmail_id,
        actions.c.type == new.wanted.type,
        actions.c.origin == new.origin,
        actions.c.wanted_by == new.wanted_by,
        actions.c.status.in_((S.QUEUED, S.EXECUTING, S.COMPLETED)),
        actions.c.created_at > since,
    )
    same = new.wanted.outline().parameters_json()
    return next((str(row.id) for row in tx.execute(query) if row.parameters == same), None)


MOST_PROPOSED = 200


def propose_action(
    tx: Tx, queue: JobQueue, target: ActionTarget, wanted: WantedAction, why: str, who: Actor, patience: timedelta
) -> str:
    """Put an action before the owner, who approves or rejects it; returns its id.

    One that proposes may have a few hundred open questions, so that it cannot bury those of others.
    """
    _require_permitted(tx, target, wanted)
    now, name = queue.clock.now(), f"{who.role} {who.name}"
    mine = select(actions.c.id).where(actions.c.status == S.APPROVED_PENDING, actions.c.wanted_by == name)
    if len(tx.execute(mine.limit(MOST_PROPOSED)).all()) >= MOST_PROPOSED:
        raise NotAllowed(f"{MOST_PROPOSED} proposals of {who.name} need an answer first.")
    new = replace(
        _new_action(target, wanted),
        wanted_by=name,
        status=S.APPROVED_PENDING,
        reasons=(f"{who.name} proposes it: {why}",),
        expires_at=now + patience,
    )
    action_id = lifecycle.insert_action(tx, new, now)
    queue.add(tx, scheduling.question_job(target.account_id, action_id))
    audit.record(tx, who, "action.propose", ("action", action_id), now, after=wanted.outline().to_json())
    return action_id


def _require_permitted(tx: Tx, target: ActionTarget, wanted: WantedAction) -> None:
    """A login that is known not to allow it is not tried: the refusal says how to allow it."""
    account = account_with_id(tx, target.account_id) if wanted.type is ActionType.DELETE else None
    if account is None or not account.scopes:
        return
    if (problem := missing_scope(account.scopes, account.email, full_access=True)) is not None:
        raise NotAllowed(problem)


def _new_action(target: ActionTarget, wanted: WantedAction) -> NewAction:
    only_archived = target.message_id is None
    return NewAction(
        account_id=target.account_id,
        gmail_id=target.gmail_id,
        wanted=wanted,
        origin=Origin.MODEL,
        wanted_by="",
        message_id=target.message_id,
        thread_id=target.thread_id,
        subject=target.subject if only_archived else None,
        sender=target.sender if only_archived else None,
    )


def dismiss_action(tx: Tx, queue: JobQueue, action_id: str, who: Actor) -> None:
    """A person has seen that it failed: it asks for no more attention, and can still be tried again."""
    action = lifecycle.get_action(tx, action_id, lock=True)
    if action.status is not S.FAILED:
        raise BadInput("action", f"{action.id} is {action.status}; only what failed can be dismissed")
    now = queue.clock.now()
    lifecycle.move_action(tx, action.id, S.FAILED, S.DISMISSED, now)
    after = {"status": str(S.DISMISSED)}
    audit.record(tx, who, "action.dismiss", ("action", action.id), now, before={"status": str(S.FAILED)}, after=after)


def retry_action(tx: Tx, queue: JobQueue, action_id: str, who: Actor) -> None:
    """Try a failed action again."""
    action = require_failed(tx, action_id, lock=True)
    if action.type is ActionType.UNSUBSCRIBE:
        # A person asks for this one again, knowing that the first request may have arrived; no retry of many does.
        tx.execute(update(actions).where(actions.c.id == action.id).values(pre_image=None))
    _queue_again(tx, queue, action, who)


def _queue_again(tx: Tx, queue: JobQueue, action: Action, who: Actor) -> None:
    now = queue.clock.now()
    lifecycle.move_action(tx, action.id, action.status, S.QUEUED, now, error=None)
    if action.type is ActionType.SNOOZE and action.origin is not Origin.UNDO:
        # Its wake-up may be over by now: it is arranged anew before the mail is hidden.
        tx.execute(update(actions).where(actions.c.id == action.id).values(pre_image=None))
    scheduling.enqueue(tx, queue, action, now)
    audit.record(tx, who, "action.retry", ("action", action.id), now, before={"status": str(action.status)})


@dataclass(frozen=True, slots=True)
class JobsRetried:
    queued: list[str]
    left: Mapping[str, str]
    """By job: why there is nothing to try again."""


def retry_job(tx: Tx, queue: JobQueue, job_id: str, who: Actor) -> None:
    """Queue a failed or cancelled job again, and the failed action that it stands for."""
    if (reason := _retry(tx, queue, show_job(tx, job_id)[0], who)) is not None:
        raise BadInput("job", reason)
    audit.record(tx, who, "job.retry", ("job", job_id), queue.clock.now(), after={"state": JobState.QUEUED})


def retry_failed_jobs(tx: Tx, queue: JobQueue, which: FailedJobs, who: Actor) -> JobsRetried:
    """The same for all failed jobs of a type or of a time, in the order in which they were first accepted."""
    found = queue.retry_failed_within(tx, which, dry_run=True)
    left = {job_id: _retry(tx, queue, show_job(tx, job_id)[0], who) for job_id in found}
    reasons = {job_id: reason for job_id, reason in left.items() if reason is not None}
    queued = [job_id for job_id in found if job_id not in reasons]
    if queued:
        what = ("job_type", which.type or "any")
        audit.record(tx, who, "job.retry_failed", what, queue.clock.now(), after={"jobs": len(queued)})
    return JobsRetried(queued, reasons)


_OF_AN_ACTION = frozenset({jobs.ACTION.name, jobs.OUTBOUND_SEND.name})
_OVER = MappingProxyType(
    {
        S.COMPLETED: "its action was completed since, so there is nothing to try again",
        S.APPROVED_PENDING: "its action needs approval first; see `postroom approvals list`",
        S.REJECTED: "its action was rejected, so it is not done",
        S.EXPIRED: "its action expired without an answer; ask for it again with `postroom actions do`",
        S.CANCELED: "its action was cancelled; ask for it again with `postroom actions do`",
        S.REFUSED: "its action was refused by a guard, so it is not done",
    }
)


def _retry(tx: Tx, queue: JobQueue, job: JobRecord, who: Actor) -> str | None:
    """Why it cannot be tried again; None if it is queued now."""
    action = _action_of(tx, job) if job.type in _OF_AN_ACTION else None
    if action is not None and (over := _OVER.get(action.status)) is not None:
        return f"{job.id} cannot be retried: {over}"
    has_ended = job.state in (JobState.FAILED, JobState.CANCELED)
    if action is not None and action.status in lifecycle.RETRYABLE and has_ended:
        _queue_again(tx, queue, action, who)  # of a sending too: it goes on where it stood, and never sends twice
    else:
        queue.retry_within(tx, job.id)
    return None


def _action_of(tx: Tx, job: JobRecord) -> Action | None:
    action_id = job.payload.get("action_id") if isinstance(job.payload, dict) else None
    return lifecycle.find_action(tx, str(action_id), lock=True) if is_id(str(action_id)) else None


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
    if action.status not in lifecycle.RETRYABLE:
        raise BadInput("action", f"{action.id} is {action.status}; only what failed can be tried again")
    return action


def require_not_begun(tx: Tx, action_id: str, *, lock: bool = False) -> Action:
    action = lifecycle.get_action(tx, action_id, lock=lock)
    if action.status not in (S.QUEUED, S.APPROVED_PENDING):
        raise BadInput("action", f"{action.id} is {action.status}; only what has not begun can be called off")
    return action


ONE_BY_ONE = FOR_GOOD
"""What cannot be taken back is not done to many messages with one press."""


class MailKey(NamedTuple):
    mailbox: str
    key: str


async def find_targets(
    database: Database, archive: ArchiveBackend, wanted: Sequence[MailKey]
) -> dict[MailKey, ActionTarget | str]:
    """For each message the target, or the reason why it cannot be acted on."""
    found = await read_apart(archive, lambda reader: _archived(reader, wanted))
    return await database.read(lambda tx: {each: _target(tx, found.get(each)) for each in wanted})


def _archived(reader: MailReader, wanted: Sequence[MailKey]) -> Mapping[MailKey, ArchivedMessage]:
    found: dict[MailKey, ArchivedMessage] = {}
    for mailbox in dict.fromkeys(each.mailbox for each in wanted):
        keys = [each.key for each in wanted if each.mailbox == mailbox]
        here = reader.find_many(account_name(mailbox), keys)
        found |= {MailKey(mailbox, key): message for key, message in here.items()}
    return found


def _target(tx: Tx, message: ArchivedMessage | None) -> ActionTarget | str:
    if message is None:
        return "it is not in the archive"
    try:
        return archived_target(tx, message)
    except BadInput as error:
        return error.problem

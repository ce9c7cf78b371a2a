"""Undoing one action (job `undo.action`), or everything that the model or a rule did in a period (`undo.span`).

An undo is an action of its own, linked to its original by a unique link. A failed one can be retried. The bulk
job requests undos newest first, in batches, after a survey that shows what they come to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, and_, func, or_, select

from postroom import audit
from postroom.accounts.account_jobs import account_of
from postroom.accounts.mailbox_state import labels_of, record_label_change
from postroom.actions import approvals, label_changes, lifecycle, requests, running, scheduling, snoozes
from postroom.actions.browsing import its_subject_and_sender
from postroom.actions.lifecycle import Action, NewAction
from postroom.actions.running import Taken
from postroom.actions.snoozes import SnoozeState
from postroom.audit import Actor
from postroom.db import Tx
from postroom.db.tables.mail import messages
from postroom.db.tables.triage import action_links, actions
from postroom.domain import jobs
from postroom.domain.actions import ActionStatus as S
from postroom.domain.actions import ActionType, Origin, WantedAction, parse_action
from postroom.domain.clock import require_utc
from postroom.domain.errors import BadInput, Fatal
from postroom.mailboxes.protocol import Mailbox
from postroom.queue import JobContext, JobQueue, NewJob, Postponed
from postroom.queue.job import Json, describe

_FOR_GOOD = {
    ActionType.DELETE: "the message was deleted for ever",
    ActionType.FORWARD: "the message was forwarded, and cannot be called back",
    ActionType.AUTO_REPLY: "the reply was sent, and cannot be called back",
    ActionType.UNSUBSCRIBE: "the list was asked to remove you; subscribe again on its web site",
}


_FOUND_CHANGED = "its undo found nothing left to take back: the message was changed since"


def why_impossible(action: Action) -> str | None:
    """Why this action could never be undone, for people; None if it could, or has been."""
    hint = action.undo_hint or {}
    if action.origin is Origin.UNDO:
        return "it is an undo itself; do the action again instead"
    if action.status is not S.COMPLETED:
        return f"it is {action.status}, and only what was completed can be undone"
    if hint.get("nothing_changed"):
        return "it changed nothing"
    if hint.get("irreversible") or hint.get("inverse_action", "none") == "none":
        return _FOR_GOOD.get(action.type, "it cannot be taken back")
    return None


def why_not_now(tx: Tx, action: Action) -> str | None:
    """Why this action cannot be undone now, for people; None if it can."""
    if (reason := why_impossible(action)) is not None:
        return reason
    existing = scheduling.undo_of(tx, action.id)
    if existing is None or existing.status in (S.FAILED, S.DISMISSED, S.CANCELED):
        return "a later snooze replaced it; undo that one instead" if snoozes.is_replaced(tx, action) else None
    if existing.status is not S.COMPLETED:
        return "it is being undone"
    return _FOUND_CHANGED if (existing.undo_hint or {}).get("nothing_changed") else "it was undone already"


def request_undo(tx: Tx, queue: JobQueue, action_id: str, who: Actor) -> str:
    """Order the undo of an action; the id of the undo. Row, link, job and audit entry are one transaction."""
    original = lifecycle.get_action(tx, action_id, lock=True)
    if (reason := why_not_now(tx, original)) is not None:
        raise BadInput("action", f"{original.id} cannot be undone: {reason}")
    now = queue.clock.now()
    undo = _begin(tx, original, f"{who.role} {who.name}", now)
    scheduling.enqueue(tx, queue, undo, now)
    audit.record(tx, who, "action.undo", ("action", original.id), now, after={"undo_action_id": undo.id})
    return undo.id


WAITS_AGAIN = "waits for approval again"
REJECTION_STANDS_AFTER = timedelta(minutes=1)
"""The page offers *Undo* for ten seconds; without script it stays until the next page."""


def take_back(tx: Tx, queue: JobQueue, action_id: str, who: Actor) -> str:
    """Take back a person's approval, rejection or order; how the action stands now, in words. BadInput if that is too
    late.

    What was approved and has not begun waits for approval again, as what was just rejected does; what was ordered is
    cancelled; what was done is undone.
    """
    action = lifecycle.get_action(tx, action_id, lock=True)
    by_person = action.answered_by is not None or action.origin is Origin.PERSON
    if action.status is S.REJECTED and _can_ask_again(action, who, queue.clock.now()):
        approvals.reopen(tx, queue, action, who)
        return WAITS_AGAIN
    if not by_person or action.status in (S.APPROVED_PENDING, S.REJECTED, S.FAILED, S.DISMISSED):
        raise BadInput("action", f"{action.id} is {action.status}; only what you approved or ordered is taken back")
    if action.status is S.QUEUED and action.origin is Origin.PERSON:
        requests.cancel_locked(tx, queue, action, who, "taken back")
        return "is cancelled"
    if action.status is S.QUEUED:
        approvals.reopen(tx, queue, action, who)
        return WAITS_AGAIN
    if action.status is S.EXECUTING:
        raise BadInput("action", f"{action.id} is being done right now; undo it in a moment")
    request_undo(tx, queue, action.id, who)
    return "is being undone"


def _can_ask_again(action: Action, who: Actor, now: datetime) -> bool:
    """Whether this person rejected it just now, and its question is not too old."""
    is_own = action.answered_by == f"{who.role} {who.name}"
    is_new = action.answered_at is not None and now - action.answered_at <= REJECTION_STANDS_AFTER
    return is_own and is_new and (action.expires_at is None or action.expires_at > now)


def _begin(tx: Tx, original: Action, wanted_by: str, now: datetime) -> Action:
    """The row of the undo, queued: a new one, or that of a try that failed."""
    existing = scheduling.undo_of(tx, original.id)
    if existing is not None and existing.status is S.CANCELED:
        scheduling.unlink(tx, existing.id)
        existing = None
    if existing is not None:
        if existing.status in lifecycle.RETRYABLE:
            lifecycle.move_action(tx, existing.id, existing.status, S.QUEUED, now, error=None)
        return lifecycle.get_action(tx, existing.id)
    new = NewAction(
        account_id=original.account_id,
        gmail_id=original.gmail_id,
        wanted=inverse_wanted(original, {each.label_id: each.name for each in labels_of(tx, original.account_id)}),
        origin=Origin.UNDO,
        wanted_by=wanted_by,
        message_id=original.message_id,
        thread_id=original.thread_id,
        rule_id=original.rule_id,
        rule_name=original.rule_name,
        subject=original.subject,
        sender=original.sender,
    )
    undo_id = lifecycle.insert_action(tx, new, now)
    if not scheduling.link(tx, undo_id, original.id, now):
        raise AssertionError("the original is locked, so no other transaction links to it")
    return lifecycle.get_action(tx, undo_id)


def inverse_wanted(original: Action, names: Mapping[str, str]) -> WantedAction:
    """The undo as an action, for people to read, with the labels' names by their ids; what is done follows the hint."""
    hint = original.undo_hint or {}
    if hint.get("inverse_action") == label_changes.UNSNOOZE:
        return parse_action(ActionType.REMOVE_LABEL, {"label": str(hint.get("snooze_label"))})
    parameters = hint.get("inverse_parameters") or {}
    label_id = parameters.get("label")
    label = {"label": names.get(label_id, label_id)} if label_id else None
    return parse_action(hint.get("inverse_action"), label)


@dataclass(frozen=True, slots=True)
class _Pair:
    undo: Action
    original: Action


class UndoHandler:
    def __init__(self, mailboxes: label_changes.ActionMailboxes) -> None:
        self._mailboxes = mailboxes

    async def __call__(self, context: JobContext) -> Json:
        account_id, original_id = running.named(context, "account_id"), running.named(context, "original_action_id")
        undo = await running.taken(context, lambda tx: self._take(tx, context, account_id, original_id))
        if undo is not None:
            original = await context.queue.database.read(lambda tx: lifecycle.get_action(tx, original_id))
            await running.guarded(context, undo, lambda: self._work(context, _Pair(undo, original)))
        return None

    def _take(self, tx: Tx, context: JobContext, account_id: str, original_id: str) -> Taken:
        now, job_id = context.queue.clock.now(), context.job.id
        original = lifecycle.get_action(tx, original_id, lock=True)
        running.require_account(original, account_id)
        ours = scheduling.undo_of(tx, original.id)
        if ours is None or ours.status not in (S.QUEUED, S.EXECUTING):
            if (reason := why_not_now(tx, original)) is not None:
                raise BadInput("action", f"{original.id} cannot be undone: {reason}")
            ours = _begin(tx, original, "job undo.action", now)
        return running.take(tx, ours.id, job_id, now)

    async def _work(self, context: JobContext, pair: _Pair) -> None:
        inverse = label_changes.inverse_of(pair.original.undo_hint or {})
        mailbox = await self._mailboxes.of(await account_of(context))
        now = await self._look(context, mailbox, pair.undo)
        before = frozenset((pair.original.pre_image or {}).get("labels") or ())
        hidden = await context.queue.database.read(lambda tx: snoozes.is_replaced(tx, pair.original))
        change = (
            label_changes.NOTHING if hidden else label_changes.undoing(inverse, before, now)
        )  # a later snooze still hides it
        async with context.step("undo") as step:
            after = await label_changes.apply(mailbox, pair.undo.gmail_id, change, now)
            step.result = {"added": sorted(after - now), "removed": sorted(now - after)}
        if inverse.cancel_job is not None:
            # Not before the mail is back: an undo that fails for good must not leave it hidden without a wake-up.
            await _cancel_wake_up(context, pair.original, inverse.cancel_job)
        await context.complete(lambda tx: _complete(tx, context, pair, now, after))

    async def _look(self, context: JobContext, mailbox: Mailbox, undo: Action) -> label_changes.Labels:
        """The labels before the undo; those of its first try, if it was cut off."""
        if undo.pre_image is None:
            async with context.step("pre_image"):
                image = {"labels": sorted(await label_changes.labels_now(mailbox, undo.gmail_id))}
                clock = context.queue.clock
                undo = await context.write(lambda tx: lifecycle.save_pre_image(tx, undo, image, clock.now()))
        return frozenset((undo.pre_image or {}).get("labels") or ())


async def _cancel_wake_up(context: JobContext, original: Action, job_id: str) -> None:
    """Cancel the wake-up; one that is over or gone is fine."""

    def cancel(tx: Tx) -> str:
        outcome = context.queue.cancel_within(tx, job_id)
        snoozes.end_snooze(tx, original.id, SnoozeState.CANCELED, context.queue.clock.now())
        return str(outcome)

    async with context.step("cancel_unsnooze") as step:
        step.result = {"outcome": await context.write(cancel)}


def _complete(
    tx: Tx, context: JobContext, pair: _Pair, before: label_changes.Labels, after: label_changes.Labels
) -> Json:
    nothing_changed = before == after
    hint = label_changes.irreversible(pair.undo.type, undo_of=pair.original.id)
    hint |= {"nothing_changed": True} if nothing_changed else {}
    now = context.queue.clock.now()
    running.finish(tx, context.queue, pair.undo, S.COMPLETED, now, undo_hint=hint, error=None)
    record_label_change(tx, pair.undo.account_id, pair.undo.gmail_id, before, after)
    outcome = _FOUND_CHANGED if nothing_changed else "undone"
    return {"outcome": outcome, "undo_action_id": pair.undo.id}


MOST_SURVEYED = 2_000
_AT_ONCE = 50
_UNTIL_DONE = timedelta(seconds=20)
_CHANGED_SINCE = "the message was changed since, and is left as it is"
_BY = (Origin.MODEL, Origin.RULE)


@dataclass(frozen=True, slots=True)
class UndoSpan:
    """What the model or the rules did in a period, of one account or of all."""

    since: datetime
    until: datetime
    by: Origin = Origin.MODEL
    account_id: str | None = None
    application_id: str | None = None
    """Only what this application of a rule to past mail did, and all of that: also what ends after `until`."""

    def __post_init__(self) -> None:
        for name in ("since", "until"):
            object.__setattr__(self, name, require_utc(getattr(self, name), name))
        if self.since >= self.until:
            raise BadInput("since", "does not lie before until")
        if self.by not in _BY:
            raise BadInput("by", f"only what the model or a rule did is taken back together, not by {self.by}")

    def conditions(self) -> list[ColumnElement[bool]]:
        done = actions.c.finished_at
        found = [actions.c.status == S.COMPLETED, actions.c.origin == self.by, done >= self.since]
        if self.application_id is None:
            found.append(done < self.until)
        for name in ("account_id", "application_id"):
            if (value := getattr(self, name)) is not None:
                found.append(actions.c[name] == value)
        return found

    def to_json(self) -> Json:
        fields = {"by": str(self.by), "since": self.since.isoformat(), "until": self.until.isoformat()}
        more = {"account_id": self.account_id, "application_id": self.application_id}
        return fields | {name: value for name, value in more.items() if value is not None}


class Progress(StrEnum):
    OPEN = "can be undone"
    UNDER_WAY = "is being undone"
    UNDONE = "undone"
    FAILED = "failed"
    LEFT = "cannot be undone"


@dataclass(frozen=True, slots=True)
class Surveyed:
    action: Action
    subject: str | None
    sender: str | None
    progress: Progress
    reason: str | None
    """Why it failed, cannot be undone, or was left as it is."""


@dataclass(frozen=True, slots=True)
class Survey:
    total: int
    """All actions within the span."""
    items: Sequence[Surveyed]
    """The newest of them, first."""

    @property
    def counts(self) -> Counter[Progress]:
        return Counter(item.progress for item in self.items)

    @property
    def is_whole(self) -> bool:
        return len(self.items) == self.total

    @property
    def not_undone(self) -> list[Surveyed]:
        """What failed, cannot be undone, or was changed since."""
        return [item for item in self.items if item.reason is not None]


def survey_undo(tx: Tx, span: UndoSpan) -> Survey:
    """How the actions of a span stand: before anything is undone, and while it is."""
    total = tx.execute(select(func.count()).select_from(actions).where(*span.conditions())).scalar_one()
    rows = tx.execute(_surveyed(span).limit(MOST_SURVEYED)).all()
    return Survey(int(total), [_read(row) for row in rows])


def start_undo_many(tx: Tx, queue: JobQueue, span: UndoSpan, who: Actor) -> str:
    """Enqueue a job that undoes the whole span; returns its id. The audit log gets one entry for it and one for each
    undo."""
    now, fields = queue.clock.now(), span.to_json()
    payload = {**fields, "who": [who.role, who.name]}
    key = ":".join([jobs.UNDO_MANY.name, *fields.values()])
    job_id = queue.add(tx, NewJob(jobs.UNDO_MANY.name, payload, key=key))[0].job_id
    audit.record(tx, who, "actions.undo_span", ("job", job_id), now, after=fields)
    return job_id


def undo_application(tx: Tx, queue: JobQueue, application_id: str, since: datetime, who: Actor) -> tuple[str, int]:
    """Undo all that one application of a rule did, and cancel what has not begun: the job, and how many those are. It
    may be a hundred thousand actions, so the job cancels all but the first few."""
    count = select(func.count()).select_from(actions).where(*_not_begun(application_id))
    waiting = int(tx.execute(count).scalar_one())
    _cancel_some(tx, queue=queue, application_id=application_id, who=who)
    span = UndoSpan(since, queue.clock.now() + timedelta(seconds=1), Origin.RULE, application_id=application_id)
    return start_undo_many(tx, queue, span, who), waiting


def _not_begun(application_id: str) -> tuple[ColumnElement[bool], ...]:
    return actions.c.application_id == application_id, actions.c.status == S.QUEUED


def _cancel_some(tx: Tx, *, queue: JobQueue, application_id: str, who: Actor) -> int:
    """The last of those that have not begun come first, so that none begins because the one before it is gone."""
    query = select(actions).where(*_not_begun(application_id)).order_by(actions.c.id.desc()).limit(_AT_ONCE)
    found = tx.execute(tx.locking(query)).all()
    for row in found:
        requests.cancel_locked(tx, queue, lifecycle.action_from_row(row), who, "its application was undone")
    return len(found)


async def undo_many(context: JobContext) -> Json:
    """The job `undo.span`. When run again after a crash, it skips what it has requested already."""
    span, who = _payload(context)
    place: tuple[datetime, str] | None = None
    asked = left = 0
    if (application_id := span.application_id) is not None:
        cancel = partial(_cancel_some, queue=context.queue, application_id=application_id, who=who)
        while await context.write(cancel):
            pass
    # Asked before the first of them is undone: what ends after this may come too late to be among them.
    has_more_to_come = await context.queue.database.read(lambda tx: _has_more_to_come(tx, span))
    while rows := await context.write(partial(_ask, queue=context.queue, span=span, who=who, place=place)):
        asked += sum(done for _, done in rows)
        left += sum(not done for _, done in rows)
        place = rows[-1][0]
    if has_more_to_come:
        raise Postponed(_UNTIL_DONE, "some of it is being done; it is undone after that")
    return {"asked": asked, "left": left}


def _has_more_to_come(tx: Tx, span: UndoSpan) -> bool:
    """Whether a part of an application is at work, and so could not be undone yet."""
    mine = (actions.c.application_id == span.application_id, actions.c.status == S.EXECUTING)
    return (
        span.application_id is not None and tx.execute(select(actions.c.id).where(*mine).limit(1)).first() is not None
    )


def _ask(
    tx: Tx, *, queue: JobQueue, span: UndoSpan, who: Actor, place: tuple[datetime, str] | None
) -> list[tuple[tuple[datetime, str], bool]]:
    """Ask for the undo of the next few; for each its place in the order, and whether it is undone."""
    query = _surveyed(span).limit(_AT_ONCE)
    if place is not None:
        done, action_id = place
        earlier = and_(actions.c.finished_at == done, actions.c.id < action_id)
        query = query.where(or_(actions.c.finished_at < done, earlier))
    found: list[tuple[tuple[datetime, str], bool]] = []
    for row in tx.execute(query).all():
        wanted = _read(row).progress in (Progress.OPEN, Progress.FAILED)
        wanted = wanted and why_not_now(tx, lifecycle.get_action(tx, row.id)) is None
        if wanted:
            request_undo(tx, queue, row.id, who)
        found.append(((row.finished_at, row.id), wanted))
    return found


_undos = actions.alias("undos")


def _surveyed(span: UndoSpan) -> Select[*tuple[Any, ...]]:
    """The newest first, so that the last change is taken back before the one beneath it."""
    return (
        select(
            actions,
            *its_subject_and_sender(),
            _undos.c.status.label("undo_status"),
            _undos.c.error.label("undo_error"),
            _undos.c.undo_hint.label("undo_outcome"),
        )
        .join(messages, messages.c.id == actions.c.message_id, isouter=True)
        .join(action_links, action_links.c.effect_action_id == actions.c.id, isouter=True)
        .join(_undos, _undos.c.id == action_links.c.cause_action_id, isouter=True)
        .where(*span.conditions())
        .order_by(actions.c.finished_at.desc(), actions.c.id.desc())
    )


def _read(row: Row[*tuple[Any, ...]]) -> Surveyed:
    action = lifecycle.action_from_row(row)
    progress, reason = _standing(row, action)
    return Surveyed(action, row.its_subject, row.its_sender, progress, reason)


def _standing(row: Row[*tuple[Any, ...]], action: Action) -> tuple[Progress, str | None]:
    match row.undo_status:
        case None | S.CANCELED:
            reason = why_impossible(action)
            return (Progress.OPEN, None) if reason is None else (Progress.LEFT, reason)
        case S.COMPLETED:
            unchanged = (row.undo_outcome or {}).get("nothing_changed")
            return Progress.UNDONE, _CHANGED_SINCE if unchanged else None
        case S.FAILED | S.DISMISSED:
            return Progress.FAILED, row.undo_error or "it failed"
        case _:
            return Progress.UNDER_WAY, None


def _payload(context: JobContext) -> tuple[UndoSpan, Actor]:
    given = context.job.payload
    try:
        since, until = (datetime.fromisoformat(str(given[name])) for name in ("since", "until"))
        role, name = given["who"]
        only = given.get("account_id"), given.get("application_id")
        return UndoSpan(since, until, Origin(given["by"]), *only), Actor(str(role), str(name))
    except (KeyError, ValueError, TypeError, BadInput) as error:
        raise Fatal(f"The job's payload cannot be used: {describe(error)}") from None

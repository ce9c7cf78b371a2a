"""Snoozed mail: its rows, hiding it, the job `unsnooze.gmail` that brings it back, and changing the time.

The wake-up job is committed before the mail is hidden, so a crash cannot lose it.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import Row, func, select, update

from postroom import audit
from postroom.accounts.account_jobs import account_of
from postroom.accounts.mailbox_state import record_label_change
from postroom.actions import label_changes, lifecycle, running
from postroom.actions.lifecycle import Action, save_pre_image
from postroom.audit import Actor
from postroom.db import Tx
from postroom.db.database import insert
from postroom.db.tables.mail import messages
from postroom.db.tables.triage import actions, snoozes
from postroom.domain import jobs
from postroom.domain.actions import ActionStatus, ActionType, SnoozeParameters
from postroom.domain.clock import require_utc
from postroom.domain.errors import BadInput, NotFound, Retryable
from postroom.domain.ids import parse_id
from postroom.mailboxes.errors import CallRefused, Gone, LabelGone
from postroom.mailboxes.protocol import Mailbox, MailboxChange
from postroom.queue import JobContext, JobQueue, NewJob
from postroom.queue.job import Json
from postroom.settings import GmailSettings


class SnoozeState(StrEnum):
    WAITING = "waiting"
    WOKEN = "woken"
    CANCELED = "canceled"


@dataclass(frozen=True, slots=True)
class Snooze:
    action_id: str
    account_id: str
    message_id: str | None
    gmail_id: str
    subject: str | None
    until: datetime
    label_id: str
    label_name: str
    job_id: str
    state: SnoozeState


def wake_job(
    account_id: str, message_id: str | None, action_id: str, label_id: str, not_before: datetime | None
) -> NewJob:
    payload = {
        "account_id": account_id,
        "message_id": message_id,
        "action_id": action_id,
        "snooze_label_id": label_id,
    }
    return NewJob(
        jobs.UNSNOOZE.name, payload, key=f"{jobs.UNSNOOZE.name}:{account_id}:{action_id}", not_before=not_before
    )


def write_snooze(tx: Tx, action: Action, until: datetime, label: tuple[str, str], job_id: str, now: datetime) -> None:
    """A snooze that is retried by hand replaces its first attempt."""
    row = {
        "action_id": action.id,
        "account_id": action.account_id,
        "until": until,
        "label_id": label[0],
        "label_name": label[1],
        "job_id": job_id,
        "state": SnoozeState.WAITING,
        "updated_at": now,
    }
    written = insert(tx, snoozes).values(row)
    tx.execute(written.on_conflict_do_update(index_elements=["action_id"], set_=row))


def find_snooze(tx: Tx, action_id: str, *, lock: bool = False) -> Snooze | None:
    if lock:
        tx.execute(tx.locking(select(snoozes.c.action_id).where(snoozes.c.action_id == action_id)))
    row = tx.execute(_joined().where(snoozes.c.action_id == action_id)).one_or_none()
    return None if row is None else _snooze(row)


def waiting_snoozes(tx: Tx, account_id: str | None = None, most: int | None = None) -> list[Snooze]:
    """The next to come back first."""
    query = _joined().where(snoozes.c.state == SnoozeState.WAITING).order_by(snoozes.c.until, snoozes.c.action_id)
    if account_id is not None:
        query = query.where(snoozes.c.account_id == account_id)
    return [_snooze(row) for row in tx.execute(query.limit(most))]


def end_snooze(tx: Tx, action_id: str, state: SnoozeState, now: datetime) -> bool:
    """False if it was over before."""
    mine = (snoozes.c.action_id == action_id) & (snoozes.c.state == SnoozeState.WAITING)
    return tx.execute(update(snoozes).where(mine).values(state=state, updated_at=now)).rowcount == 1


def call_off_first_try(tx: Tx, queue: JobQueue, action_id: str) -> bool:
    """Whether the same snooze was tried before: while its wake-up is queued, a new one with the same key would be
    ignored."""
    first = find_snooze(tx, action_id)
    if first is not None:
        queue.cancel_within(tx, first.job_id)
    return first is not None


def replace_earlier(tx: Tx, queue: JobQueue, action: Action, now: datetime) -> bool:
    """End earlier snoozes of the message; whether there were any."""
    earlier = _joined().where(
        snoozes.c.state == SnoozeState.WAITING,
        snoozes.c.action_id != action.id,
        actions.c.account_id == action.account_id,
        actions.c.gmail_id == action.gmail_id,
    )
    found = [_snooze(row) for row in tx.execute(earlier).all()]
    for each in found:
        queue.cancel_within(tx, each.job_id)
        end_snooze(tx, each.action_id, SnoozeState.CANCELED, now)
    return bool(found)


def is_replaced(tx: Tx, action: Action) -> bool:
    """Whether this is a snooze, and a later one hides the message now."""
    if action.type is not ActionType.SNOOZE:
        return False
    later = _joined().where(
        snoozes.c.state == SnoozeState.WAITING,
        snoozes.c.action_id != action.id,
        actions.c.account_id == action.account_id,
        actions.c.gmail_id == action.gmail_id,
    )
    return tx.execute(later.limit(1)).first() is not None


def set_snooze_until(tx: Tx, action_id: str, until: datetime, job_id: str, now: datetime) -> None:
    mine = snoozes.c.action_id == action_id
    tx.execute(update(snoozes).where(mine).values(until=until, job_id=job_id, updated_at=now))


def _joined() -> Any:
    subject = func.coalesce(messages.c.subject, actions.c.subject).label("subject")
    return (
        select(snoozes, actions.c.gmail_id, actions.c.message_id, subject)
        .join(actions, actions.c.id == snoozes.c.action_id)
        .join(messages, messages.c.id == actions.c.message_id, isouter=True)
    )


def _snooze(row: Row[*tuple[Any, ...]]) -> Snooze:
    return Snooze(
        action_id=row.action_id,
        account_id=row.account_id,
        message_id=row.message_id,
        gmail_id=row.gmail_id,
        subject=row.subject,
        until=row.until,
        label_id=row.label_id,
        label_name=row.label_name,
        job_id=row.job_id,
        state=SnoozeState(row.state),
    )


class Snoozing:
    def __init__(self, labels: label_changes.LabelFinder, settings: GmailSettings) -> None:
        self._labels = labels
        self._label_name = settings.snooze_label

    async def arrange(
        self, context: JobContext, mailbox: Mailbox, action: Action, wanted: SnoozeParameters, before: frozenset[str]
    ) -> Action:
        """Create the label; then schedule the wake-up and record the labels of before, in one transaction."""
        label = await self._labels.find_or_create(mailbox, action.account_id, self._label_name), self._label_name
        until = wanted.wakes_at(context.queue.clock.now())

        def write(tx: Tx) -> Action:
            now = context.queue.clock.now()
            hidden_before = call_off_first_try(tx, context.queue, action.id) and label[0] in before
            job = wake_job(action.account_id, action.message_id, action.id, label[0], until)
            job_id = context.queue.add(tx, job)[0].job_id
            write_snooze(tx, action, until, label, job_id, now)
            image = _image(before, label, until, job_id)
            image["replaces"] = replace_earlier(tx, context.queue, action, now) or hidden_before
            return save_pre_image(tx, action, image, now)

        return await context.write(write)

    def hint(self, action: Action, change: label_changes.LabelEdit) -> Json:
        image = action.pre_image or {}
        if image.get("replaces"):
            # It was hidden by an earlier snooze, or by a first try of this one, whose wake-up this one has replaced:
            # the undo must not leave it so.
            change = label_changes.modification(change.add | {image["label_id"]}, change.remove | {label_changes.INBOX})
        return label_changes.snooze_hint(
            change, image["until"], (image["label_id"], image["label_name"]), image["job_id"]
        )


def _image(before: frozenset[str], label: tuple[str, str], until: datetime, job_id: str) -> Json:
    return {
        "labels": sorted(before),
        "label_id": label[0],
        "label_name": label[1],
        "until": until.isoformat(),
        "job_id": job_id,
    }


_UNTIL_HIDDEN = timedelta(seconds=5)
_HURRIED_ATTEMPTS = 5
_LONGEST_SNOOZE = timedelta(days=3_660)


class UnsnoozeHandler:
    def __init__(
        self, mailboxes: label_changes.ActionMailboxes, labels: label_changes.LabelFinder, settings: GmailSettings
    ) -> None:
        self._mailboxes = mailboxes
        self._labels = labels
        self._label_name = settings.snooze_label

    async def __call__(self, context: JobContext) -> Json:
        account_id, action_id = running.named(context, "account_id"), running.named(context, "action_id")
        action = await context.queue.database.read(lambda tx: lifecycle.get_action(tx, action_id))
        running.require_account(action, account_id)
        if action.status in (ActionStatus.QUEUED, ActionStatus.EXECUTING):
            raise _too_early(context)
        mailbox = await self._mailboxes.of(await account_of(context))
        async with context.step("wake") as step:
            change, outcome = await self._wake(context, mailbox, action)
            step.result = {"outcome": outcome}
        await context.complete(lambda tx: _woken(tx, context, action, change, outcome))
        return None

    async def _wake(
        self, context: JobContext, mailbox: Mailbox, action: Action
    ) -> tuple[tuple[label_changes.Labels, label_changes.Labels] | None, str]:
        """The labels before and after, and what came of it; None if the message is gone."""
        label_id = await self._label_id(context, mailbox, action)
        try:
            now = await label_changes.labels_now(mailbox, action.gmail_id)
            if not _may_be_hidden(action, now, label_id):
                return (now, now), "it was never hidden"
            after, outcome = await self._show(mailbox, action, now, label_id)
            return (now, after), outcome
        except Gone:
            return None, "the message is no longer in the mailbox"

    async def _show(
        self, mailbox: Mailbox, action: Action, now: label_changes.Labels, label_id: str | None
    ) -> tuple[label_changes.Labels, str]:
        """Mail that was thrown away meanwhile stays in the trash; only the label is taken off."""
        add = (
            frozenset[str]()
            if label_changes.INBOX in now or label_changes.TRASH in now
            else frozenset({label_changes.INBOX})
        )
        remove = now & {label_id} if label_id else frozenset[str]()
        outcome = "it is in the trash" if label_changes.TRASH in now else "in the inbox"
        if not add and not remove:
            return now, outcome
        try:
            return await label_changes.modified(mailbox, action.gmail_id, MailboxChange(add, remove)), outcome
        except (CallRefused, LabelGone):
            if not add or not remove:
                raise
            # The label was deleted in this moment, and the mail is still hidden.
            return await label_changes.modified(mailbox, action.gmail_id, MailboxChange(add)), outcome

    async def _label_id(self, context: JobContext, mailbox: Mailbox, action: Action) -> str | None:
        """The label that was used; the settings may name another by now."""
        given = context.job.payload.get("snooze_label_id")
        if isinstance(given, str) and given:
            return given
        return await self._labels.find(mailbox, action.account_id, self._label_name)


def _may_be_hidden(action: Action, now: label_changes.Labels, label_id: str | None) -> bool:
    """A failed snooze may have hidden its mail, and one that replaced another must bring back what that one hid."""
    took_over = bool((action.pre_image or {}).get("replaces"))
    return action.status is ActionStatus.COMPLETED or took_over or label_id in now


def _too_early(context: JobContext) -> Retryable:
    """A short snooze can end before the mail is even hidden; ending it then would leave the mail hidden for good."""
    hurried = context.job.attempt <= _HURRIED_ATTEMPTS
    return Retryable("The message is still being hidden.", retry_after=_UNTIL_HIDDEN if hurried else None)


def _woken(
    tx: Tx,
    context: JobContext,
    action: Action,
    change: tuple[label_changes.Labels, label_changes.Labels] | None,
    outcome: str,
) -> Json:
    end_snooze(tx, action.id, SnoozeState.WOKEN, context.queue.clock.now())
    if change is not None:
        record_label_change(tx, action.account_id, action.gmail_id, *change)
    return {"outcome": outcome}


class SnoozeCheckHandler:
    """The job `snooze.check.gmail`: where the owner has brought a snoozed message back himself, it no longer waits.

    What history tells may be older than the snooze itself, so the mailbox is asked.
    """

    def __init__(self, mailboxes: label_changes.ActionMailboxes) -> None:
        self._mailboxes = mailboxes

    async def __call__(self, context: JobContext) -> Json:
        action_id = running.named(context, "action_id")
        snooze = await context.queue.database.read(lambda tx: find_snooze(tx, action_id))
        if snooze is None or snooze.state is not SnoozeState.WAITING:
            return {"outcome": "it does not wait"}
        running.require_account(
            await context.queue.database.read(lambda tx: lifecycle.get_action(tx, action_id)),
            running.named(context, "account_id"),
        )
        mailbox = await self._mailboxes.of(await account_of(context))
        with suppress(Gone):  # then nothing is left that could wait
            now = await label_changes.labels_now(mailbox, snooze.gmail_id)
            if label_changes.INBOX not in now:
                return {"outcome": "it waits"}
            if snooze.label_id in now:
                await label_changes.modified(
                    mailbox, snooze.gmail_id, MailboxChange(remove=frozenset({snooze.label_id}))
                )
        await context.complete(lambda tx: _end_waiting(tx, context.queue, snooze))
        return None


def _end_waiting(tx: Tx, queue: JobQueue, snooze: Snooze) -> Json:
    queue.cancel_within(tx, snooze.job_id)
    end_snooze(tx, snooze.action_id, SnoozeState.CANCELED, queue.clock.now())
    return {"outcome": "its owner brought it back"}


def reschedule(
    tx: Tx, queue: JobQueue, action_id: str, until: datetime, who: Actor, *, dry_run: bool = False
) -> Snooze:
    """Let a snoozed message come back at another time."""
    until, now = require_utc(until, "until"), queue.clock.now()
    if until - now > _LONGEST_SNOOZE:
        raise BadInput("until", "ten years are the longest")
    return _wake_at(tx, queue, action_id, until, who, "snooze.reschedule", dry_run=dry_run)


def wake_now(tx: Tx, queue: JobQueue, action_id: str, who: Actor, *, dry_run: bool = False) -> Snooze:
    """Let a snoozed message come back as soon as a worker is free."""
    return _wake_at(tx, queue, action_id, queue.clock.now(), who, "snooze.wake", dry_run=dry_run)


def _wake_at(
    tx: Tx, queue: JobQueue, action_id: str, until: datetime, who: Actor, deed: str, *, dry_run: bool
) -> Snooze:
    snooze = find_snooze(tx, parse_id(action_id, "action"), lock=True)
    if snooze is None:
        raise NotFound("action", f"{action_id} is not a snooze")
    if snooze.state is not SnoozeState.WAITING:
        raise BadInput("action", f"the snooze {action_id} is over: {snooze.state}")
    if dry_run:
        return snooze
    now = queue.clock.now()
    queue.cancel_within(tx, snooze.job_id)  # whether it waits, runs, failed or is gone: the next one counts
    job = wake_job(snooze.account_id, snooze.message_id, snooze.action_id, snooze.label_id, until)
    job_id = queue.add(tx, job)[0].job_id
    set_snooze_until(tx, snooze.action_id, until, job_id, now)
    _update_hint(tx, snooze.action_id, until, job_id)
    before, after = {"until": snooze.until.isoformat()}, {"until": until.isoformat()}
    audit.record(tx, who, deed, ("action", snooze.action_id), now, before=before, after=after)
    return find_snooze(tx, snooze.action_id) or snooze


def _update_hint(tx: Tx, action_id: str, until: datetime, job_id: str) -> None:
    """Keep the snooze's undo hint in step with its new time."""
    hint = lifecycle.get_action(tx, action_id).undo_hint
    if hint is None:
        return
    parameters = {**(hint.get("inverse_parameters") or {}), "cancel_unsnooze_job_id": job_id}
    changes = {"snooze_until": until.isoformat(), "unsnooze_job_id": job_id, "inverse_parameters": parameters}
    tx.execute(update(actions).where(actions.c.id == action_id).values(undo_hint={**hint, **changes}))

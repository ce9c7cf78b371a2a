"""The job `unsnooze.gmail`, which brings snoozed mail back, and what a person may do about the time of it."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timedelta

from sqlalchemy import update

from postroom import audit
from postroom.accounts.jobs import account_of
from postroom.accounts.mailstate import record_label_ids
from postroom.actions import running, snoozes, store
from postroom.actions.changes import INBOX, TRASH, Labels
from postroom.actions.mailbox import LabelFinder, Mailboxes, labels_now
from postroom.actions.snoozes import Snooze, SnoozeState
from postroom.actions.store import Action
from postroom.audit import Actor
from postroom.db import Tx
from postroom.db.tables.actions import actions
from postroom.domain.actions import ActionStatus
from postroom.domain.clock import require_utc
from postroom.domain.errors import BadInput, NotFound, Retryable
from postroom.domain.ids import parse_id
from postroom.gmail.client import GmailClient
from postroom.gmail.errors import Gone, Refused
from postroom.queue import JobContext, JobQueue
from postroom.queue.model import Json
from postroom.settings import GmailSettings

_UNTIL_HIDDEN = timedelta(seconds=5)
_HURRIED_ATTEMPTS = 5
_LONGEST_SNOOZE = timedelta(days=3_660)


class UnsnoozeHandler:
    def __init__(self, mailboxes: Mailboxes, labels: LabelFinder, settings: GmailSettings) -> None:
        self._mailboxes = mailboxes
        self._labels = labels
        self._label_name = settings.snooze_label

    async def __call__(self, context: JobContext) -> Json:
        account_id, action_id = running.named(context, "account_id"), running.named(context, "action_id")
        action = await context.queue.database.read(lambda tx: store.get(tx, action_id))
        running.require_account(action, account_id)
        if action.status in (ActionStatus.QUEUED, ActionStatus.EXECUTING):
            raise _too_early(context)
        client = await self._mailboxes.of(await account_of(context))
        async with context.step("wake") as step:
            after, outcome = await self._wake(context, client, action)
            step.result = {"outcome": outcome}
        await context.complete(lambda tx: _woken(tx, context, action, after, outcome))
        return None

    async def _wake(self, context: JobContext, client: GmailClient, action: Action) -> tuple[Labels | None, str]:
        label_id = await self._label_id(context, client, action)
        try:
            now = await labels_now(client, action.gmail_id)
            if not _may_be_hidden(action, now, label_id):
                return now, "it was never hidden"
            return await self._show(client, action, now, label_id)
        except Gone:
            return None, "the message is no longer in the mailbox"

    async def _show(self, client: GmailClient, action: Action, now: Labels, label_id: str | None) -> tuple[Labels, str]:
        """Mail that was thrown away meanwhile stays in the trash; only the label is taken off."""
        add = frozenset[str]() if INBOX in now or TRASH in now else frozenset({INBOX})
        remove = now & {label_id} if label_id else frozenset[str]()
        outcome = "it is in the trash" if TRASH in now else "in the inbox"
        if not add and not remove:
            return now, outcome
        try:
            return (await client.modify_message(action.gmail_id, add=add, remove=remove)).label_ids, outcome
        except Refused:
            if not add or not remove:
                raise
            # The label was deleted in this moment, and the mail is still hidden.
            return (await client.modify_message(action.gmail_id, add=add)).label_ids, outcome

    async def _label_id(self, context: JobContext, client: GmailClient, action: Action) -> str | None:
        """The label of then; the settings may name another by now."""
        given = context.job.payload.get("snooze_label_id")
        if isinstance(given, str) and given:
            return given
        return await self._labels.find(client, action.account_id, self._label_name)


def _may_be_hidden(action: Action, now: Labels, label_id: str | None) -> bool:
    """Also a snooze that failed may have got through; and one that took the place of another has its mail to bring
    back, hidden by that other."""
    took_over = bool((action.pre_image or {}).get("replaces"))
    return action.status is ActionStatus.COMPLETED or took_over or label_id in now


def _too_early(context: JobContext) -> Retryable:
    """A short snooze can end before the mail is even hidden; ending it then would leave the mail hidden for good."""
    hurried = context.job.attempt <= _HURRIED_ATTEMPTS
    return Retryable("The message is still being hidden.", retry_after=_UNTIL_HIDDEN if hurried else None)


def _woken(tx: Tx, context: JobContext, action: Action, after: Labels | None, outcome: str) -> Json:
    snoozes.end(tx, action.id, SnoozeState.WOKEN, context.queue.clock.now())
    if after is not None:
        record_label_ids(tx, action.account_id, action.gmail_id, after)
    return {"outcome": outcome}


class SnoozeCheckHandler:
    """The job `snooze.check.gmail`: where the owner has brought a snoozed message back himself, it no longer waits.

    What history tells may be older than the snooze itself, so the mailbox is asked.
    """

    def __init__(self, mailboxes: Mailboxes) -> None:
        self._mailboxes = mailboxes

    async def __call__(self, context: JobContext) -> Json:
        action_id = running.named(context, "action_id")
        snooze = await context.queue.database.read(lambda tx: snoozes.find(tx, action_id))
        if snooze is None or snooze.state is not SnoozeState.WAITING:
            return {"outcome": "it does not wait"}
        running.require_account(
            await context.queue.database.read(lambda tx: store.get(tx, action_id)),
            running.named(context, "account_id"),
        )
        client = await self._mailboxes.of(await account_of(context))
        with suppress(Gone):  # then nothing is left that could wait
            now = await labels_now(client, snooze.gmail_id)
            if INBOX not in now:
                return {"outcome": "it waits"}
            if snooze.label_id in now:
                await client.modify_message(snooze.gmail_id, remove=[snooze.label_id])
        await context.complete(lambda tx: _end_waiting(tx, context.queue, snooze))
        return None


def _end_waiting(tx: Tx, queue: JobQueue, snooze: Snooze) -> Json:
    queue.cancel_within(tx, snooze.job_id)
    snoozes.end(tx, snooze.action_id, SnoozeState.CANCELED, queue.clock.now())
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
    snooze = snoozes.find(tx, parse_id(action_id, "action"), lock=True)
    if snooze is None:
        raise NotFound("action", f"{action_id} is not a snooze")
    if snooze.state is not SnoozeState.WAITING:
        raise BadInput("action", f"the snooze {action_id} is over: {snooze.state}")
    if dry_run:
        return snooze
    now = queue.clock.now()
    queue.cancel_within(tx, snooze.job_id)  # whether it waits, runs, failed or is gone: the next one counts
    job = snoozes.wake_job(snooze.account_id, snooze.message_id, snooze.action_id, snooze.label_id, until)
    job_id = queue.add(tx, job)[0].job_id
    snoozes.set_until(tx, snooze.action_id, until, job_id, now)
    _tell_hint(tx, snooze.action_id, until, job_id)
    before, after = {"until": snooze.until.isoformat()}, {"until": until.isoformat()}
    audit.record(tx, who, deed, ("action", snooze.action_id), now, before=before, after=after)
    return snoozes.find(tx, snooze.action_id) or snooze


def _tell_hint(tx: Tx, action_id: str, until: datetime, job_id: str) -> None:
    """What is told of the snooze stays true."""
    hint = store.get(tx, action_id).undo_hint
    if hint is None:
        return
    parameters = {**(hint.get("inverse_parameters") or {}), "cancel_unsnooze_job_id": job_id}
    told = {"snooze_until": until.isoformat(), "unsnooze_job_id": job_id, "inverse_parameters": parameters}
    tx.execute(update(actions).where(actions.c.id == action_id).values(undo_hint={**hint, **told}))

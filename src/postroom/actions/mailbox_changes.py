"""What changes in the mailbox mean for actions and rules: deleted or returned messages, and the list of labels.

Actions on deleted mail are cancelled. `labels.sync.gmail` disables rules that use a deleted label.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from sqlalchemy import select

from postroom import audit
from postroom.accounts.account_jobs import account_of
from postroom.accounts.mailbox_state import DeletedLabel, take_listing
from postroom.actions import lifecycle, snoozes
from postroom.actions.label_changes import INBOX, ActionMailboxes
from postroom.actions.requests import cancel_locked
from postroom.actions.snoozes import SnoozeState
from postroom.db import Tx
from postroom.db.tables.triage import actions
from postroom.db.tables.triage import snoozes as snoozes_table
from postroom.domain import jobs
from postroom.domain.actions import ActionStatus
from postroom.domain.errors import Retryable
from postroom.mailboxes.protocol import MailboxLabel
from postroom.queue import JobContext, JobQueue, NewJob
from postroom.queue.job import Json
from postroom.telemetry import logs

_AT_ONCE = 500
_NOT_BEGUN = (ActionStatus.QUEUED, ActionStatus.APPROVED_PENDING)


class ActionsMailboxObserver:
    """Called with an account's changes, in the transaction that records them."""

    def __init__(self, queue: JobQueue) -> None:
        self._queue = queue

    def changed(self, tx: Tx, account_id: str, labels: Mapping[str, Collection[str]], deleted: Sequence[str]) -> None:
        for some in _chunks(deleted):
            self._gone(tx, account_id, some)
        in_inbox = [gmail_id for gmail_id, names in labels.items() if INBOX in names]
        for some in _chunks(in_inbox):
            self._perhaps_back(tx, account_id, some)

    def _gone(self, tx: Tx, account_id: str, gmail_ids: Sequence[str]) -> None:
        query = select(actions).where(
            actions.c.account_id == account_id, actions.c.gmail_id.in_(gmail_ids), actions.c.status.in_(_NOT_BEGUN)
        )
        for row in tx.execute(tx.locking(query).order_by(actions.c.id)).all():
            cancel_locked(
                tx,
                self._queue,
                lifecycle.action_from_row(row),
                audit.SYSTEM,
                "The message was deleted from the mailbox.",
            )
        for action_id, job_id in self._snoozed(tx, account_id, gmail_ids):
            self._queue.cancel_within(tx, job_id)
            snoozes.end_snooze(tx, action_id, SnoozeState.CANCELED, self._queue.clock.now())

    def _perhaps_back(self, tx: Tx, account_id: str, gmail_ids: Sequence[str]) -> None:
        """History may report a time before the snooze, so the mailbox has to be checked, even if a check is running:
        it may have read the state of before."""
        for action_id, _ in self._snoozed(tx, account_id, gmail_ids):
            payload = {"account_id": account_id, "action_id": action_id}
            self._queue.add(tx, NewJob(jobs.SNOOZE_CHECK.name, payload))

    def _snoozed(self, tx: Tx, account_id: str, gmail_ids: Sequence[str]) -> list[tuple[str, str]]:
        """The snoozes of these messages that wait, with the jobs that would wake them."""
        query = (
            select(snoozes_table.c.action_id, snoozes_table.c.job_id)
            .join(actions, actions.c.id == snoozes_table.c.action_id)
            .where(actions.c.account_id == account_id, actions.c.gmail_id.in_(gmail_ids))
            .where(snoozes_table.c.state == SnoozeState.WAITING)
        )
        return [(row.action_id, row.job_id) for row in tx.execute(query)]


def _chunks(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(ids), _AT_ONCE):
        yield ids[start : start + _AT_ONCE]


log = logs.get(__name__)


class DisableRules(Protocol):
    def __call__(self, tx: Tx, account_id: str, label: DeletedLabel, now: datetime) -> Sequence[str]:
        """The label was deleted: disable every rule that looks at it or sets it, for this account's mail. The names of
        those that were."""


class FollowRenames(Protocol):
    def __call__(self, tx: Tx, account_id: str, now: datetime) -> Sequence[str]:
        """Labels were renamed: write their new names into rules. The names of those that were changed."""


class GuidanceNaming(Protocol):
    def __call__(self, tx: Tx, account_id: str, label_name: str) -> Sequence[str]:
        """The names of guidance whose text mentions this label."""


@dataclass(frozen=True)
class LabelListing:
    """What a new list of a mailbox's labels does to rules, and which guidance a person should look at."""

    disable_rules: DisableRules
    follow_renames: FollowRenames
    guidance_naming: GuidanceNaming

    def take(
        self, tx: Tx, account_id: str, listed: Sequence[MailboxLabel], asked_at: datetime, now: datetime
    ) -> dict[str, Any]:
        effect = take_listing(tx, account_id, listed, asked_at, now)
        disabled = [name for label in effect.deleted for name in self.disable_rules(tx, account_id, label, now)]
        followed = self.follow_renames(tx, account_id, now)
        # Words are not changed: only a person can say whether they still hold.
        past = [*(label.name for label in effect.deleted), *(old for old, _ in effect.renamed)]
        speak_of_it = [name for label in past for name in self.guidance_naming(tx, account_id, label)]
        if past:
            counts = {"deleted": len(effect.deleted), "renamed": len(effect.renamed)}
            affected = {"rules_disabled": len(disabled), "rules_changed": len(followed), "guidance": len(speak_of_it)}
            log.info("labels.changed", account=account_id, **counts, **affected)
        return {
            "labels": len(listed),
            "added": effect.added,
            "renamed": [list(each) for each in effect.renamed],
            "deleted": [label.name for label in effect.deleted],
            "disabled_rules": disabled,
            "changed_rules": list(followed),
            "guidance_to_look_at": speak_of_it,
        }


class LabelsSyncHandler:
    def __init__(self, mailboxes: ActionMailboxes, listing: LabelListing) -> None:
        self._mailboxes = mailboxes
        self._listing = listing

    async def __call__(self, context: JobContext) -> Json:
        account = await account_of(context)
        mailbox = await self._mailboxes.of(account)
        clock = context.queue.clock
        asked_at = clock.now()
        async with context.step("list") as step:
            listed = plausible(await mailbox.labels())
            step.result = {"labels": len(listed)}
        await context.complete(lambda tx: self._listing.take(tx, account.id, listed, asked_at, clock.now()))
        return None


def plausible(listed: Sequence[MailboxLabel]) -> Sequence[MailboxLabel]:
    """Raises Retryable for a list without the inbox, which every mailbox has."""
    if not any(label.id == INBOX for label in listed):
        raise Retryable(f"The mailbox's list of {len(listed)} labels lacks the inbox, so it is not believed.")
    return listed

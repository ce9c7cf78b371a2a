"""What changes at the source means for actions: mail that is gone needs no answer, mail that came back no wake-up."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from sqlalchemy import select

from postroom import audit
from postroom.actions import snoozes, store
from postroom.actions.changes import INBOX
from postroom.actions.desk import call_off
from postroom.actions.snoozes import SnoozeState
from postroom.db import Tx
from postroom.db.tables.actions import actions
from postroom.db.tables.actions import snoozes as snoozes_table
from postroom.domain import jobs
from postroom.domain.actions import ActionStatus
from postroom.queue import JobQueue, NewJob

_AT_ONCE = 500
_NOT_BEGUN = (ActionStatus.QUEUED, ActionStatus.APPROVED_PENDING)


class SourceWatch:
    """Told of an account's changes in the transaction that records them."""

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
            call_off(tx, self._queue, store.from_row(row), audit.SYSTEM, "The message was deleted from the mailbox.")
        for action_id, job_id in self._asleep(tx, account_id, gmail_ids):
            self._queue.cancel_within(tx, job_id)
            snoozes.end(tx, action_id, SnoozeState.CANCELED, self._queue.clock.now())

    def _perhaps_back(self, tx: Tx, account_id: str, gmail_ids: Sequence[str]) -> None:
        """History may tell of a time before the snooze, so somebody has to look; also where somebody looks just now,
        who may have seen how it was before."""
        for action_id, _ in self._asleep(tx, account_id, gmail_ids):
            payload = {"account_id": account_id, "action_id": action_id}
            self._queue.add(tx, NewJob(jobs.SNOOZE_CHECK, payload))

    def _asleep(self, tx: Tx, account_id: str, gmail_ids: Sequence[str]) -> list[tuple[str, str]]:
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

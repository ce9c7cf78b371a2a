"""Prunes finished jobs. A `once` key outlives its job as a tombstone, so deduplication never ends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from sqlalchemy import ColumnElement, Select, and_, delete, func, or_, select

from postroom.db import Database, Tx
from postroom.db.tables.queue import jobs
from postroom.domain.clock import Clock
from postroom.domain.jobs import JobCatalogue, JobState, JobType
from postroom.queue.context import Handler, JobContext
from postroom.queue.job import FINISHED
from postroom.queue.sql import bind_ids, statements
from postroom.settings import QueueSettings

_PRUNED_AT_ONCE = 1_000


@dataclass(frozen=True, slots=True)
class Retention:
    """How long finished jobs stay inspectable: by age for all, and by number for the types that say so."""

    completed: timedelta
    failed: timedelta

    @classmethod
    def from_settings(cls, settings: QueueSettings) -> Retention:
        return cls(timedelta(days=settings.keep_completed_days), timedelta(days=settings.keep_failed_days))

    def too_old(self, now: datetime) -> ColumnElement[bool]:
        done = jobs.c.state.in_([JobState.COMPLETED, JobState.CANCELED])
        return or_(
            and_(done, jobs.c.finished_at < now - self.completed),
            and_(jobs.c.state == JobState.FAILED, jobs.c.finished_at < now - self.failed),
        )


async def prune(
    database: Database, catalogue: JobCatalogue, retention: Retention, clock: Clock, *, dry_run: bool = False
) -> int:
    """Remove jobs past their retention, in short transactions; returns how many."""
    queries = [_expired(retention, clock.now()), *_surplus(catalogue)]
    if dry_run:
        found = [await database.read(partial(_ids, query=query)) for query in queries]
        return len({job_id for ids in found for job_id in ids})
    pruned = 0
    for query in queries:
        while count := await database.write(partial(_prune_some, query=query)):
            pruned += count
    return pruned


async def prune_surplus(database: Database, types: Iterable[JobType]) -> int:
    """Remove jobs of these types beyond the number that they keep; returns how many."""
    pruned = 0
    for query in _surplus(types):
        while count := await database.write(partial(_prune_some, query=query)):
            pruned += count
    return pruned


def prune_handler(retention: Retention) -> Handler:
    async def handle(context: JobContext) -> dict[str, int]:
        queue = context.queue
        return {"pruned": await prune(queue.database, queue.catalogue, retention, queue.clock)}

    return handle


def _expired(retention: Retention, now: datetime) -> Select[tuple[str]]:
    return select(jobs.c.id).where(jobs.c.finished_at.is_not(None), retention.too_old(now))


def _surplus(types: Iterable[JobType]) -> Iterator[Select[tuple[str]]]:
    """For each type with a limit: every finished job beyond the newest ones."""
    for job_type in types:
        for state, keep in (
            (JobState.COMPLETED, job_type.keep_completed),
            (JobState.FAILED, job_type.keep_failed),
        ):
            if keep is None:
                continue
            newest_first = func.row_number().over(order_by=(jobs.c.finished_at.desc(), jobs.c.id.desc())).label("place")
            ranked = (
                select(jobs.c.id, newest_first)
                .where(jobs.c.state == state, jobs.c.type == job_type.name, jobs.c.finished_at.is_not(None))
                .subquery()
            )
            yield select(ranked.c.id).where(ranked.c.place > keep)


def _ids(tx: Tx, query: Select[tuple[str]]) -> list[str]:
    return list(tx.execute(query).scalars())


def _prune_some(tx: Tx, query: Select[tuple[str]]) -> int:
    """Prune one portion; returns how many. A job armed again since the candidates were read stays, being unfinished."""
    candidates = _ids(tx, query.limit(_PRUNED_AT_ONCE))
    still_finished = select(jobs.c.id).where(jobs.c.id.in_(candidates), jobs.c.state.in_(list(FINISHED)))
    ids = list(tx.execute(tx.locking(still_finished, skip_locked=True)).scalars())
    tx.rows(statements(tx.dialect).bury, {"ids": bind_ids(tx.dialect, ids)})
    tx.execute(delete(jobs).where(jobs.c.id.in_(ids)))
    return len(ids)

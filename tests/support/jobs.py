"""Small things that many queue tests need."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import func, select

from postroom.db import Database
from postroom.db.tables.queue import jobs
from postroom.domain.clock import Clock
from postroom.queue import Catalogue, ClaimedJob, JobQueue, JobState, JobType, KeyUse, RetryPolicy
from postroom.queue.claims import Claimant, Turn
from postroom.queue.inspection import JobRecord, show_job
from postroom.queue.outcome import Settlement
from postroom.queue.plan import Slots

LEASE = timedelta(seconds=60)

CATALOGUE = Catalogue(
    [
        JobType("noop"),
        JobType("hourly", key_use=KeyUse.REPEATABLE),
        JobType("brief", retry=RetryPolicy(max_attempts=2), keep_completed=3, keep_failed=2),
        JobType("quick", time_limit=timedelta(milliseconds=50), retry=RetryPolicy(max_attempts=1)),
    ]
)


def make_queue(database: Database, clock: Clock) -> JobQueue:
    return JobQueue(database, CATALOGUE, clock)


async def take_turn(
    queue: JobQueue,
    free: int = 0,
    settlements: Sequence[tuple[ClaimedJob, Settlement]] = (),
    *,
    worker: str = "w",
    guard_limit: int = 10,
    held: Collection[str] = (),
) -> Turn:
    claimant = Claimant(worker, LEASE, guard_limit)
    now = queue.clock.now()
    return await queue.database.write(
        lambda tx: claimant.take_turn(tx, now, settlements, Slots(free, history=free) if free else None, held=held)
    )


async def claim(queue: JobQueue, count: int = 1, worker: str = "w") -> list[ClaimedJob]:
    turn = await take_turn(queue, count, worker=worker)
    return [job for _, job in turn.claimed]


async def complete(queue: JobQueue, job: ClaimedJob) -> set[str]:
    """Settle as done; returns what was refused."""
    turn = await take_turn(queue, settlements=[(job, Settlement(JobState.COMPLETED, job.attempt))])
    return turn.refused


async def fail(queue: JobQueue, job: ClaimedJob, error: str = "broken") -> None:
    await take_turn(queue, settlements=[(job, Settlement(JobState.FAILED, job.attempt, error=error))])


async def record_of(queue: JobQueue, job_id: str) -> JobRecord:
    record, _ = await queue.database.read(lambda tx: show_job(tx, job_id))
    return record


async def count_jobs(database: Database, **columns: Any) -> int:
    query = select(func.count()).select_from(jobs).where(*(jobs.c[name] == value for name, value in columns.items()))
    return int(await database.read(lambda tx: tx.execute(query).scalar_one()))


def later(clock: Clock, seconds: float) -> datetime:
    return clock.now() + timedelta(seconds=seconds)

"""A queue with a few job types, single turns of a worker, and a worker that runs inside a test.

As a program it is a worker to be killed: `python -m tests.support.queues DATABASE_URL`. Its jobs record an effect in
the same transaction as their completion.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from random import Random
from typing import Any

import pytest
from sqlalchemy import Column, MetaData, Table, Text, func, insert, select

from postroom.db import Database, Tx, connect
from postroom.db.tables.queue import jobs
from postroom.domain.clock import Clock, SystemClock
from postroom.queue import (
    ClaimedJob,
    Handler,
    JobCatalogue,
    JobContext,
    JobQueue,
    JobState,
    JobType,
    KeyUse,
    RetryPolicy,
)
from postroom.queue.claims import Claimant, ClaimTurn
from postroom.queue.inspection import JobRecord, show_job
from postroom.queue.job import Settlement
from postroom.queue.marks import Marks
from postroom.queue.plan import Slots
from postroom.queue.worker import Worker
from postroom.settings import DatabaseSettings, WorkerSettings
from postroom.telemetry import logs

LEASE = timedelta(seconds=60)

CATALOGUE = JobCatalogue(
    [
        JobType("noop"),
        JobType("hourly", key_use=KeyUse.REPEATABLE),
        JobType("brief", retry=RetryPolicy(max_attempts=2), keep_completed=3, keep_failed=2),
        JobType("quick", time_limit=timedelta(milliseconds=50), retry=RetryPolicy(max_attempts=1)),
        JobType("short", brief=True),
        JobType("lingering", time_limit=timedelta(seconds=1), retry=RetryPolicy(max_attempts=1)),
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
    marks: Marks | None = None,
) -> ClaimTurn:
    claimant = Claimant(worker, LEASE, guard_limit, marks)
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


def count_writes(queue: JobQueue, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many writes are under way when each one begins, itself included."""
    write, under_way, seen = queue.database.write, 0, list[int]()

    async def counted(transaction: Any) -> Any:
        nonlocal under_way
        under_way += 1
        seen.append(under_way)
        try:
            return await write(transaction)
        finally:
            under_way -= 1

    monkeypatch.setattr(queue.database, "write", counted)
    return seen


async def count_jobs(database: Database, **columns: Any) -> int:
    query = select(func.count()).select_from(jobs).where(*(jobs.c[name] == value for name, value in columns.items()))
    return int(await database.read(lambda tx: tx.execute(query).scalar_one()))


def later(clock: Clock, seconds: float) -> datetime:
    return clock.now() + timedelta(seconds=seconds)


WORKER_SETTINGS = WorkerSettings(concurrency=8, poll_s=30)


@asynccontextmanager
async def running(
    queue: JobQueue, handlers: Mapping[str, Handler], settings: WorkerSettings = WORKER_SETTINGS
) -> AsyncIterator[Worker]:
    """A worker that serves while the block runs and has drained when it ends."""
    worker = Worker(queue, handlers, settings, random=Random(0))
    async with asyncio.TaskGroup() as group:
        group.create_task(worker.run())
        yield worker
        worker.stop()


async def run_until_idle(
    queue: JobQueue, handlers: Mapping[str, Handler], settings: WorkerSettings = WORKER_SETTINGS
) -> None:
    await Worker(queue, handlers, settings, random=Random(0), until_idle=True).run()


async def until(condition: Callable[[], bool]) -> None:
    """Let others run until this holds; the test's own time limit is the only deadline."""
    while not condition():
        await asyncio.sleep(0.005)


# NORMAL: a killed process loses nothing that it committed; only a power cut could, and none is played here.
KILLED_WORKER_DATABASE = DatabaseSettings(synchronous="normal")
KILLED_WORKER_SETTINGS = WorkerSettings(concurrency=25, lease_s=2.0, poll_s=0.5)

effects = Table(
    "test_effects", MetaData(), Column("job_id", Text, nullable=False), Column("worker", Text, nullable=False)
)


async def serve_until_killed(url: str) -> None:
    database = await connect(url, KILLED_WORKER_DATABASE)
    queue = make_queue(database, SystemClock())

    async def act(context: JobContext) -> None:
        def record(tx: Tx) -> None:
            tx.execute(insert(effects).values(job_id=context.job.id, worker=worker.id))

        await context.complete(record)

    worker = Worker(queue, {"noop": act}, KILLED_WORKER_SETTINGS)
    print("ready", flush=True)
    await worker.run()


if __name__ == "__main__":
    logs.configure(level="error")
    asyncio.run(serve_until_killed(sys.argv[1]))

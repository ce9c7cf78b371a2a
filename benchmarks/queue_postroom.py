"""Postroom's own queue: throughput, latency of an idle worker, and the cost of a claim as the table fills up.

For claims, every level has a database of its own and the samples go round the levels in turn, so that noise affects
all alike. Timed is the turn without its commit: waiting for the disk does not depend on the level.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from statistics import median

import psycopg
from sqlalchemy import func, select

from benchmarks.queue_contract import Load, Measure, Stopwatch, Store, batches, check_all_done
from postroom import eventloop
from postroom.db import Dialect, Tx, connect
from postroom.db.tables.queue import jobs
from postroom.domain.clock import SystemClock
from postroom.queue import JobCatalogue, JobContext, JobQueue, JobState, JobType, NewJob, QueueName
from postroom.queue.claims import Claimant, ClaimTurn, settle_within
from postroom.queue.job import Settlement
from postroom.queue.plan import Slots
from postroom.queue.worker import Worker
from postroom.settings import DatabaseSettings, WorkerSettings

CALLERS = 16
_LATENCY_WARM_UP = 5


@asynccontextmanager
async def open_queue(store: Store) -> AsyncIterator[JobQueue]:
    settings = DatabaseSettings.model_validate({"synchronous": store.synchronous})
    database = await connect(store.url, settings)
    try:
        yield JobQueue(database, JobCatalogue([JobType("noop")]), SystemClock())
    finally:
        await database.close()


def noop_job(number: int) -> NewJob:
    return NewJob("noop", {"n": number}, QueueName.LIVE)


def throughput(store: Store, load: Load, options: Mapping[str, int]) -> dict[Measure, float]:
    return eventloop.run(_throughput(store, load, options.get("concurrency", 500)))


async def _throughput(store: Store, load: Load, concurrency: int) -> dict[Measure, float]:
    async def noop(context: JobContext) -> None:
        return None

    watch = Stopwatch()
    async with open_queue(store) as queue:
        with watch.time(Measure.ENQUEUE_SINGLE, load.single):
            for number in range(load.single):
                await queue.enqueue(noop_job(number))
        with watch.time(Measure.ENQUEUE_BATCH, load.batched):
            for batch in batches(load.batched):
                await queue.enqueue(*map(noop_job, batch))
        worker = Worker(queue, {"noop": noop}, WorkerSettings(concurrency=concurrency), until_idle=True)
        with watch.time(Measure.DRAIN, load.total):
            await worker.run()
        check_all_done(await _count_completed(queue), load.total)
        each = max(load.single // CALLERS, 1)
        with watch.time(Measure.ENQUEUE_CALLERS, each * CALLERS):
            await asyncio.gather(*(_enqueue_one_by_one(queue, each) for _ in range(CALLERS)))
    return watch.rates


async def _enqueue_one_by_one(queue: JobQueue, count: int) -> None:
    for number in range(count):
        await queue.enqueue(noop_job(number))


async def _count_completed(queue: JobQueue) -> int | None:
    completed = select(func.count()).select_from(jobs).where(jobs.c.state == JobState.COMPLETED)
    return await queue.database.read(lambda tx: tx.execute(completed).scalar())


def latency(store: Store, samples: int) -> list[float]:
    """Milliseconds from the call that enqueues into an idle system to the first line of the handler."""
    return eventloop.run(_latency(store, samples))


async def _latency(store: Store, samples: int) -> list[float]:
    started: asyncio.Queue[float] = asyncio.Queue()

    async def handler(context: JobContext) -> None:
        started.put_nowait(time.perf_counter())

    measured = []
    # Two connections, so that the wake-up travels as it does between processes.
    async with open_queue(store) as queue, open_queue(store) as other, asyncio.TaskGroup() as group:
        worker = Worker(queue, {"noop": handler})
        group.create_task(worker.run())
        for number in range(_LATENCY_WARM_UP + samples):
            await asyncio.sleep(0.02)  # let the worker settle the last job and go idle
            asked = time.perf_counter()
            await other.enqueue(noop_job(number))
            measured.append((await started.get() - asked) * 1_000)
        worker.stop()
    return measured[_LATENCY_WARM_UP:]


CLAIM_SIZES = (1, 100)
_CLAIMANT = Claimant("benchmark", timedelta(minutes=5), guard_limit=10)
_WARM_UP = 3


@dataclass(frozen=True, slots=True)
class Level:
    """So many jobs beside those that are claimed."""

    scheduled: int = 0
    finished: int = 0


@dataclass(frozen=True, slots=True)
class ClaimCost:
    level: Level
    claim_size: int
    median_us: float


_SERIES = {
    Dialect.SQLITE: "WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < {count})",
    Dialect.POSTGRESQL: "WITH s AS (SELECT n FROM generate_series(1, {count}) AS n)",
}
_ID = {
    Dialect.SQLITE: "printf('{prefix}-0000-7000-8000-%012x', n)",
    Dialect.POSTGRESQL: "CAST('{prefix}-0000-7000-8000-' || lpad(to_hex(n), 12, '0') AS uuid)",
}
_MOMENT = {
    Dialect.SQLITE: "strftime('%Y-%m-%dT%H:%M:%S', {seconds} + n, 'unixepoch') || '.000000Z'",
    Dialect.POSTGRESQL: "to_timestamp({seconds} + n)",
}
_FILL = """
    {series}
    INSERT INTO jobs (id, type, queue_name, policy_tier, seq, payload_json, state, ready, attempts, repeatable, fence,
                      idempotency_key, not_before, finished_at, created_at, queued_at, updated_at)
    SELECT {id}, 'noop', 'live', 'default', -n, '{{"n":1}}', '{state}', FALSE, {attempts}, FALSE, {attempts},
           '{state}-' || n, {not_before}, {finished_at}, {past}, {past}, {past}
    FROM s"""
_LONG_AGO, _FAR_AHEAD = 1_700_000_000, 4_000_000_000


async def measure_claim_cost(stores: Sequence[tuple[Level, Store]], samples: int) -> list[ClaimCost]:
    async with AsyncExitStack() as stack:
        queues = [(level, await stack.enter_async_context(open_queue(store))) for level, store in stores]
        for (level, queue), (_, store) in zip(queues, stores, strict=True):
            await _fill_table(queue, level, ready=(samples + _WARM_UP) * sum(CLAIM_SIZES))
            _settle_statistics(queue.database.dialect, store)
        costs: dict[tuple[Level, int], list[float]] = {}
        for _ in range(_WARM_UP + samples):
            for size in CLAIM_SIZES:
                for level, queue in queues:
                    costs.setdefault((level, size), []).append(await _claim_once(queue, size))
    return [ClaimCost(level, size, median(taken[_WARM_UP:])) for (level, size), taken in costs.items()]


async def _fill_table(queue: JobQueue, level: Level, ready: int) -> None:
    moment = _MOMENT[queue.database.dialect]
    past, future = moment.format(seconds=_LONG_AGO), moment.format(seconds=_FAR_AHEAD)
    finished = {"state": "completed", "attempts": 1, "not_before": "NULL", "finished_at": past, "past": past}
    scheduled = {"state": "queued", "attempts": 0, "not_before": future, "finished_at": "NULL", "past": past}

    def fill(tx: Tx) -> None:
        for prefix, count, columns in (
            ("00000000", level.finished, finished),
            ("00000001", level.scheduled, scheduled),
        ):
            if count:
                job_id = _ID[tx.dialect].format(prefix=prefix)
                statement = _FILL.format(series=_SERIES[tx.dialect].format(count=count), id=job_id, **columns)
                tx.connection.exec_driver_sql(statement)

    await queue.database.write(fill)
    for batch in batches(ready):
        await queue.enqueue(*map(noop_job, batch))


def _settle_statistics(dialect: Dialect, store: Store) -> None:
    """What autovacuum would have done by the time that a table has grown so far."""
    if dialect is Dialect.POSTGRESQL:
        with psycopg.connect(store.url, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE jobs")


async def _claim_once(queue: JobQueue, size: int) -> float:
    """Microseconds of one turn that claims `size` jobs; they are completed afterwards, off the clock."""
    now = queue.clock.now()

    def claim(tx: Tx) -> tuple[float, ClaimTurn]:
        start = time.perf_counter()
        turn = _CLAIMANT.take_turn(tx, now, (), Slots(free=size, history=size))
        return (time.perf_counter() - start) * 1e6, turn

    taken, turn = await queue.database.write(claim)
    if len(turn.claimed) != size:
        raise RuntimeError(f"{len(turn.claimed)} jobs were claimed instead of {size}")
    done = [(job, Settlement(JobState.COMPLETED, job.attempt)) for _, job in turn.claimed]
    await queue.database.write(lambda tx: settle_within(tx, done, now))
    return taken

"""Postroom's own queue: how fast it takes jobs in and works them off, and how soon an idle worker starts one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from sqlalchemy import func, select

from benchmarks.contract import Load, Measure, Stopwatch, Store, batches, check_all_done
from postroom import eventloop
from postroom.db import connect
from postroom.db.tables.queue import jobs
from postroom.domain.clock import SystemClock
from postroom.queue import Catalogue, JobContext, JobQueue, JobState, JobType, NewJob, QueueName, Worker
from postroom.settings import DatabaseSettings, WorkerSettings

_LATENCY_WARM_UP = 5


@asynccontextmanager
async def open_queue(store: Store) -> AsyncIterator[JobQueue]:
    settings = DatabaseSettings.model_validate({"synchronous": store.synchronous})
    database = await connect(store.url, settings)
    try:
        yield JobQueue(database, Catalogue([JobType("noop")]), SystemClock())
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
    return watch.rates


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

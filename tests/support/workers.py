"""Running a worker inside a test, without sleeping and without leaving it behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from random import Random

from postroom.queue import Handler, JobQueue, Worker
from postroom.settings import WorkerSettings

SETTINGS = WorkerSettings(concurrency=8, poll_s=30)


@asynccontextmanager
async def running(
    queue: JobQueue, handlers: Mapping[str, Handler], settings: WorkerSettings = SETTINGS
) -> AsyncIterator[Worker]:
    """A worker that serves while the block runs and has drained when it ends."""
    worker = Worker(queue, handlers, settings, random=Random(0))
    async with asyncio.TaskGroup() as group:
        group.create_task(worker.run())
        yield worker
        worker.stop()


async def run_until_idle(queue: JobQueue, handlers: Mapping[str, Handler], settings: WorkerSettings = SETTINGS) -> None:
    await Worker(queue, handlers, settings, random=Random(0), until_idle=True).run()


async def until(condition: Callable[[], bool]) -> None:
    """Let others run until this holds; the test's own time limit is the only deadline."""
    while not condition():
        await asyncio.sleep(0.005)

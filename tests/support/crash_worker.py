"""A worker process that exists to be killed: `python -m tests.support.crash_worker DATABASE_URL`.

Its jobs record an effect in the database, in the same transaction as their completion.
"""

from __future__ import annotations

import asyncio
import sys

from sqlalchemy import Column, MetaData, Table, Text, insert

from postroom.db import Tx, connect
from postroom.domain.clock import SystemClock
from postroom.queue import JobContext, Worker
from postroom.settings import DatabaseSettings, WorkerSettings
from postroom.telemetry import logs
from tests.support.jobs import make_queue

# NORMAL: a killed process loses nothing that it committed; only a power cut could, and none is played here.
DATABASE = DatabaseSettings(synchronous="normal")
SETTINGS = WorkerSettings(concurrency=25, lease_s=2.0, poll_s=0.5)

effects = Table(
    "test_effects", MetaData(), Column("job_id", Text, nullable=False), Column("worker", Text, nullable=False)
)


async def serve(url: str) -> None:
    database = await connect(url, DATABASE)
    queue = make_queue(database, SystemClock())

    async def act(context: JobContext) -> None:
        def record(tx: Tx) -> None:
            tx.execute(insert(effects).values(job_id=context.job.id, worker=worker.id))

        await context.complete(record)

    worker = Worker(queue, {"noop": act}, SETTINGS)
    print("ready", flush=True)
    await worker.run()


if __name__ == "__main__":
    logs.configure(level="error")
    asyncio.run(serve(sys.argv[1]))

"""A worker of web pages as a process of its own: `python -m tests.support.page_worker DATABASE_URL DELAYS CONCURRENT`.

DELAYS is `MIN-MAX` in seconds. It ends by itself when nothing is left to do.
"""

from __future__ import annotations

import asyncio
import sys

from sqlalchemy import func, select

from postroom.db import Tx, connect
from postroom.db.tables.queue import jobs
from postroom.domain.clock import SystemClock
from postroom.queue import Catalogue, JobQueue, Worker
from postroom.settings import BackfillSettings, DatabaseSettings, WebSettings, WorkerSettings
from postroom.telemetry import logs
from postroom.websources.fetching.ports import DomainLimits
from postroom.websources.jobs import FETCH, VERIFY
from postroom.websources.pages import PagePipeline
from postroom.websources.road import open_road
from tests.support.websites import ReaderHere

SETTINGS = WebSettings(timeout_s=10.0, fetches_per_minute=6_000, allow_private_hosts="127.0.0.1")


async def serve(url: str, delays: str, concurrent: int) -> None:
    low, high = (float(part) for part in delays.split("-"))

    def limits_of(host: str) -> DomainLimits:
        return DomainLimits(host, low, high, concurrent)

    database = await connect(url, DatabaseSettings(synchronous="normal"))
    queue = JobQueue(database, Catalogue([FETCH, VERIFY]), SystemClock())
    async with open_road(database, queue.clock, SETTINGS, limits_of) as road:
        handler = PagePipeline(
            road.fetcher, road.pace, limits_of, ReaderHere(), SETTINGS, BackfillSettings(enabled=True)
        )
        worker = Worker(queue, {FETCH.name: handler}, WorkerSettings(concurrency=4, poll_s=0.2))
        running = asyncio.create_task(worker.run())
        print("ready", flush=True)
        while await database.read(_unfinished):
            await asyncio.sleep(0.1)
        worker.stop()
        await running
    await database.close()


def _unfinished(tx: Tx) -> int:
    return int(tx.execute(select(func.count()).select_from(jobs).where(jobs.c.finished_at.is_(None))).scalar_one())


if __name__ == "__main__":
    logs.configure(level="error")
    asyncio.run(serve(sys.argv[1], sys.argv[2], int(sys.argv[3])))

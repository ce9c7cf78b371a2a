"""Fetching for tests: the real fetcher onto the stand-in site, without delays unless a test asks for them.

As a program it is a worker of web pages: `python -m tests.support.web_fetching DATABASE_URL DELAYS CONCURRENT`, with
DELAYS as `MIN-MAX` in seconds. It ends when nothing is left to do.
"""

from __future__ import annotations

import asyncio
import ssl
import sys
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random
from typing import Any

from sqlalchemy import func, insert, select

from postroom.db import Database, Tx, connect
from postroom.db.tables.queue import jobs
from postroom.db.tables.web import discovered_items, web_endpoints
from postroom.domain.clock import Clock, SystemClock
from postroom.domain.ids import new_id
from postroom.domain.jobs import WEB_FETCH, WEB_VERIFY
from postroom.queue import JobCatalogue, JobQueue
from postroom.queue.worker import Worker
from postroom.settings import BackfillSettings, DatabaseSettings, WebSettings, WorkerSettings
from postroom.telemetry import logs
from postroom.web.discovery import DiscoveryMethod, fetch_job
from postroom.web.extraction.child_tasks import read_document
from postroom.web.extraction.web_reader import DocumentReader, Extracted, WebDocument
from postroom.web.fetching.fetcher import PinnedTransport, WebFetcher
from postroom.web.fetching.interface import DomainLimits, FetchLimits, LimitsOf
from postroom.web.fetching.targets import AddressGuard, SystemResolver, Target
from postroom.web.page_pipeline import PagePipeline
from postroom.web.web_service import WebClient, open_web_client

LOOPBACK = ("127.0.0.1",)
PAGE_LIMITS = FetchLimits(largest_body=12_000_000, total_s=5.0, connect_s=2.0, read_s=2.0)


def at_once(host: str) -> DomainLimits:
    return DomainLimits(host, 0.0, 0.0, 8)


class NoPace:
    """It is always every domain's turn; records which were put on hold."""

    def __init__(self) -> None:
        self.held: list[tuple[str, timedelta]] = []

    @asynccontextmanager
    async def turn(
        self, limits: DomainLimits, *, crawl_delay_s: float = 0.0, patience: timedelta | None = None
    ) -> AsyncIterator[None]:
        yield

    async def hold(self, domain: str, wait: timedelta) -> None:
        self.held.append((domain, wait))


class NoRobots:
    async def crawl_delay(self, target: Target, fetch: WebFetcher, patience: timedelta | None) -> float:
        return 0.0


@dataclass
class NameServer:
    """Answers for each name with the next of its answers, and with the last one for ever."""

    answers: dict[str, list[Sequence[str]]]
    asked: list[str] = field(default_factory=list)

    async def lookup(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        if host not in self.answers:
            raise OSError(f"no such name: {host}")
        answers = self.answers[host]
        return answers.pop(0) if len(answers) > 1 else answers[0]


@asynccontextmanager
async def plain_fetcher(
    *,
    allowed: Collection[str] = LOOPBACK,
    resolver: NameServer | None = None,
    limits: FetchLimits = PAGE_LIMITS,
    pace: NoPace | None = None,
    tls: ssl.SSLContext | None = None,
    transport: Any = None,
) -> AsyncIterator[WebFetcher]:
    """A fetcher that asks no database: safety alone."""
    wire = PinnedTransport(AddressGuard(resolver or SystemResolver(), allowed), limits, "Postroom/test", tls, transport)
    try:
        yield WebFetcher(wire, pace or NoPace(), NoRobots(), at_once, limits, SystemClock())
    finally:
        await wire.close()


@asynccontextmanager
async def web_client_to(
    database: Database,
    clock: Clock,
    limits_of: LimitsOf = at_once,
    *,
    settings: WebSettings | None = None,
    resolver: NameServer | None = None,
) -> AsyncIterator[WebClient]:
    settings = settings or WebSettings(timeout_s=5.0)
    async with open_web_client(
        database, clock, settings, limits_of, private_hosts=LOOPBACK, resolver=resolver, dice=Random(0)
    ) as client:
        yield client


class ReaderHere:
    """Reads in this process, for tests whose pages mean no harm: a child takes a second to start."""

    async def extract(self, document: WebDocument) -> Extracted:
        return read_document(document)


@dataclass
class Pages:
    """The pipeline of pages on one database: discovered items in, jobs run, evidence out."""

    queue: JobQueue
    handler: PagePipeline
    endpoint_id: str

    async def discover(
        self, url: str, method: DiscoveryMethod = DiscoveryMethod.BACKFILL, *, enqueue: bool = True
    ) -> str:
        item_id = new_id()
        key = f"backfill:gazette:{item_id[-12:]}"
        now = self.queue.clock.now()

        def add(tx: Tx) -> None:
            values = {
                "id": item_id,
                "endpoint_id": self.endpoint_id,
                "url": url,
                "fetch_url": url,
                "status": "PENDING",
                "discovery_method": method,
                "job_key": key,
                "discovered_at": now,
                "updated_at": now,
            }
            tx.execute(insert(discovered_items).values(**values))
            if enqueue:
                self.queue.add(tx, fetch_job(item_id, key, method))

        await self.queue.database.write(add)
        return item_id


@asynccontextmanager
async def pages_on(
    database: Database,
    clock: Clock,
    limits_of: LimitsOf = at_once,
    *,
    settings: WebSettings | None = None,
    backfill: BackfillSettings | None = None,
    reader: DocumentReader | None = None,
) -> AsyncIterator[Pages]:
    settings = settings or WebSettings(timeout_s=5.0, fetches_per_minute=6_000)
    queue = JobQueue(database, JobCatalogue([WEB_FETCH, WEB_VERIFY]), clock)
    endpoint_id = await database.write(lambda tx: _endpoint(tx, clock))
    backfill = backfill or BackfillSettings(enabled=True)
    async with web_client_to(database, clock, limits_of, settings=settings) as client:
        handler = PagePipeline(client.fetcher, client.pace, limits_of, reader or ReaderHere(), settings, backfill)
        yield Pages(queue, handler, endpoint_id)


def _endpoint(tx: Tx, clock: Clock) -> str:
    endpoint_id = new_id()
    row = {
        "id": endpoint_id,
        "source_slug": "gazette",
        "name": endpoint_id,
        "mode": "SITEMAP",
        "url": "http://127.0.0.1/sitemap.xml",
        "created_at": clock.now(),
    }
    tx.execute(insert(web_endpoints).values(**row))
    return endpoint_id


SETTINGS = WebSettings(timeout_s=10.0, fetches_per_minute=6_000, allow_private_hosts="127.0.0.1")


async def serve(url: str, delays: str, concurrent: int) -> None:
    low, high = (float(part) for part in delays.split("-"))

    def limits_of(host: str) -> DomainLimits:
        return DomainLimits(host, low, high, concurrent)

    database = await connect(url, DatabaseSettings(synchronous="normal"))
    queue = JobQueue(database, JobCatalogue([WEB_FETCH, WEB_VERIFY]), SystemClock())
    async with open_web_client(database, queue.clock, SETTINGS, limits_of) as client:
        handler = PagePipeline(
            client.fetcher, client.pace, limits_of, ReaderHere(), SETTINGS, BackfillSettings(enabled=True)
        )
        worker = Worker(queue, {WEB_FETCH.name: handler}, WorkerSettings(concurrency=4, poll_s=0.2))
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

"""The story of `postroom demo`: simulated mail in a home folder of its own that is gone afterwards.

Each chapter does the real thing, with the real queue on a real database, and returns what happened.
"""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from sqlalchemy import func, select

from postroom.archive.files import FilesPlace
from postroom.archive.model import ArchivedMessage, IncomingMail, Provenance
from postroom.db import Tx, connect
from postroom.db.tables.queue import jobs
from postroom.domain.clock import SystemClock
from postroom.domain.tiers import TIERS, Tier
from postroom.gmail.client import connected
from postroom.gmail.fetching import Got
from postroom.gmail.limiter import limiter_for
from postroom.gmail.oauth import StaticCredentials
from postroom.gmail.resources import Message
from postroom.gmail.sim.mailbox import GeneratedMailbox
from postroom.gmail.sim.server import running_sim
from postroom.gmail.transport import TransportConfig
from postroom.gmail.tuner import TunerLimits
from postroom.queue import Catalogue, JobContext, JobQueue, JobState, JobType, NewJob, QueueName, Worker
from postroom.queue.inspection import stats
from postroom.settings import WorkerSettings
from postroom.telemetry import logs

CATALOGUE = Catalogue([JobType("demo.mail", time_limit=timedelta(seconds=30))])
ONE_AT_A_TIME = WorkerSettings(concurrency=1)
DEMO_QUERY = "(invoice OR receipt) newer_than:5y"
SHORT_LEASE = WorkerSettings(concurrency=4, lease_s=1.0, poll_s=0.2)

MORNING: Sequence[tuple[str, Tier]] = [
    *((f"Newsletter {number}", Tier.DEFAULT) for number in range(1, 9)),
    ("Your appointment at 10:30 is confirmed (doctor)", Tier.HIGH_PRIORITY),
    *((f"Newsletter {number}", Tier.DEFAULT) for number in range(9, 16)),
]


@dataclass(frozen=True)
class Fairness:
    """How one tier fared while all three were busy."""

    tier: Tier
    served: int
    longest_gap: int


@dataclass(frozen=True)
class Crash:
    jobs: int
    done_before_the_kill: int
    done_in_the_end: int
    attempts: int


@dataclass(frozen=True)
class Mailbox:
    fetched: int
    newest_found: list[ArchivedMessage]
    found: int
    verified: int
    is_sound: bool


@asynccontextmanager
async def demo_queue(folder: Path) -> AsyncIterator[JobQueue]:
    database = await connect(f"sqlite:///{folder / 'demo.db'}")
    try:
        yield JobQueue(database, CATALOGUE, SystemClock())
    finally:
        await database.close()


async def eight_in_the_morning(folder: Path) -> list[str]:
    """Fifteen newsletters and one doctor's confirmation arrive together; returns the subjects in order of service."""
    served: list[str] = []

    async def read(context: JobContext) -> None:
        served.append(context.job.payload["subject"])

    async with demo_queue(folder) as queue:
        await queue.enqueue(
            *(NewJob("demo.mail", {"subject": subject}, QueueName.LIVE, tier) for subject, tier in MORNING)
        )
        await Worker(queue, {"demo.mail": read}, ONE_AT_A_TIME, until_idle=True).run()
    return served


async def all_tiers_busy(folder: Path, services: int = 1_110) -> list[Fairness]:
    """A backlog in every tier; returns what each got of the first services, and how long it was passed over."""
    order: list[Tier] = []

    async def read(context: JobContext) -> None:
        order.append(context.job.tier)

    async with demo_queue(folder) as queue:
        await queue.enqueue(*(NewJob("demo.mail", {}, QueueName.LIVE, tier) for tier in TIERS for _ in range(services)))
        worker = Worker(queue, {"demo.mail": read}, WorkerSettings(concurrency=100), until_idle=True)
        await worker.run()
    return [_fairness(tier, order[:services]) for tier in TIERS]


def _fairness(tier: Tier, order: Sequence[Tier]) -> Fairness:
    places = [-1, *(place for place, served in enumerate(order) if served is tier), len(order)]
    gaps = [after - before - 1 for before, after in itertools.pairwise(places)]
    return Fairness(tier, len(places) - 2, max(gaps))


async def kill_a_worker(folder: Path, count: int = 400) -> Crash:
    """A worker process is killed with SIGKILL in the middle of its work; another one finishes what it left."""
    async with demo_queue(folder) as queue:
        await queue.enqueue(*(NewJob("demo.mail", {"n": n}, QueueName.LIVE) for n in range(count)))
        victim = multiprocessing.get_context("spawn").Process(target=_victim, args=(str(folder),))
        victim.start()
        before = 0
        while before < count // 4:
            await asyncio.sleep(0.02)
            before = await _completed(queue)
        os.kill(victim.pid or 0, signal.SIGKILL)
        victim.join()
        before = await _completed(queue)
        worker = Worker(queue, {"demo.mail": _read_slowly}, SHORT_LEASE)
        task = asyncio.create_task(worker.run())
        while await _completed(queue) < count:
            await asyncio.sleep(0.02)
        worker.stop()
        await task
        done, attempts = await _completed(queue), await queue.database.read(_attempts)
    return Crash(count, before, done, attempts)


async def ten_years_of_mail(folder: Path, count: int = 600) -> Mailbox:
    """A simulated Gmail account is fetched, stored in an archive, searched, and proved byte by byte."""
    owner, clock = "you@example.org", SystemClock()
    limiter = limiter_for(None, clock, tuning=TunerLimits(start_rps=60, max_rps=60))
    async with (
        running_sim(GeneratedMailbox(count, 7, owner)) as sim,
        connected(
            StaticCredentials(sim.token, owner), limiter, clock, config=TransportConfig(api_base=sim.url)
        ) as client,
    ):
        pages = [page async for page in client.list_messages(include_spam_trash=True)]
        answers = await client.get_messages([message.id for page in pages for message in page.messages])
    fetched = [answer.message for answer in answers if isinstance(answer, Got)]
    archive = FilesPlace(folder)
    await asyncio.to_thread(_store, archive, owner, fetched)
    with archive.search() as search:
        page = await asyncio.to_thread(search.search, DEMO_QUERY, limit=3)
        found = await asyncio.to_thread(search.count, DEMO_QUERY)
    report = await asyncio.to_thread(archive.verify)
    return Mailbox(len(fetched), [hit.message for hit in page.hits], found.messages, report.messages, report.is_sound)


def _store(place: FilesPlace, owner: str, messages: Sequence[Message]) -> None:
    with place.writer("postroom demo") as archive:
        archive.store(
            owner,
            [
                IncomingMail(
                    mail.raw or b"", Provenance.API, mail.id, mail.thread_id, mail.label_ids, mail.internal_date
                )
                for mail in messages
            ],
        )


def _victim(folder: str) -> None:
    logs.configure(level="error")

    async def run() -> None:
        async with demo_queue(Path(folder)) as queue:
            await Worker(queue, {"demo.mail": _read_slowly}, SHORT_LEASE).run()

    asyncio.run(run())


async def _read_slowly(context: JobContext) -> None:
    await asyncio.sleep(0.005)


async def _completed(queue: JobQueue) -> int:
    lines = await queue.database.read(stats)
    return sum(line.jobs for line in lines if line.state is JobState.COMPLETED)


def _attempts(tx: Tx) -> int:
    return int(tx.execute(select(func.sum(jobs.c.attempts))).scalar_one())


@contextmanager
def temporary_home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="postroom-demo-") as folder:
        yield Path(folder)

"""Politeness as the site sees it: two worker processes, and the stand-in's own log.

What is measured is time, which is the same on both databases; that turns are, `test_politeness` asks of both.
"""

from __future__ import annotations

import asyncio
import sys

import pytest
from sqlalchemy import func, select

from postroom.db import connect
from postroom.db.tables.web import evidence
from postroom.domain.clock import SystemClock
from postroom.sim.web.server import SiteSim, running_site
from postroom.web.discovery import DiscoveryMethod
from tests.support.databases import DatabaseFactory, on_sqlite
from tests.support.web_fetching import pages_on

PAGES = 8
LATE_S = 1.5
"""How late a turn may begin on a busy machine: waking up, a transaction, a connection. It is never early."""


async def _two_workers(sim: SiteSim, url: str, delays: str, concurrent: int, path: str) -> int:
    database = await connect(url)
    async with pages_on(database, SystemClock()) as pages:
        for number in range(PAGES):
            await pages.discover(f"{sim.url}{path.format(number=number + 1)}", DiscoveryMethod.SENTINEL)
    workers = [await _worker(url, delays, concurrent) for _ in range(2)]
    try:
        codes = await asyncio.gather(*(worker.wait() for worker in workers))
    finally:
        for worker in workers:
            if worker.returncode is None:
                worker.kill()
    assert codes == [0, 0]
    kept = await database.read(lambda tx: tx.execute(select(func.count()).select_from(evidence)).scalar_one())
    await database.close()
    return int(kept)


async def _worker(url: str, delays: str, concurrent: int) -> asyncio.subprocess.Process:
    arguments = ("-m", "tests.support.web_fetching", url, delays, str(concurrent))
    return await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.DEVNULL)


@pytest.mark.req("WB-3")
@on_sqlite
async def test_two_workers_keep_the_delay_and_never_come_together(database_factory: DatabaseFactory) -> None:
    async with running_site(30) as sim:
        assert await _two_workers(sim, database_factory.url(), "0.2-0.4", 1, "/about/{number}") == PAGES
        gaps = sim.journal.gaps()
        assert sim.journal.most_in_flight == 1
        assert min(gaps) >= 0.2
        assert sorted(gaps)[len(gaps) // 2] <= 0.4 + LATE_S
        assert len({round(gap, 2) for gap in gaps}) > 3
        fetched = [visit.path for visit in sim.journal.visits]
        assert len(fetched) == len(set(fetched)) == PAGES + 1  # and robots.txt, once for both


@pytest.mark.req("WB-3")
@on_sqlite
async def test_two_workers_share_the_concurrency(database_factory: DatabaseFactory) -> None:
    async with running_site(30) as sim:
        assert await _two_workers(sim, database_factory.url(), "0.0-0.0", 2, "/slow?seconds=1&n={number}") == PAGES
        assert sim.journal.most_in_flight == 2

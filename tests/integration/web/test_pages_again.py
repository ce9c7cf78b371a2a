"""Pages that could not be had: why, and how they are asked for once more."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import select

from postroom.db import Database
from postroom.db.tables.queue import jobs
from postroom.db.tables.web import discovered_items
from postroom.domain.clock import ManualClock
from postroom.kill_switch import SwitchedOff
from postroom.web.web_service import WebService, handlers
from tests.support.databases import on_sqlite
from tests.support.queues import run_until_idle
from tests.support.web_fetching import ReaderHere
from tests.support.web_servers import Page, TinySite
from tests.support.web_sources import ME, backfilled, count, make_web, sources_file, turn, with_sitemap, write_sources


@pytest.fixture
def web(database: Database, tmp_path: Path, site: TinySite, clock: ManualClock) -> WebService:
    write_sources(tmp_path, sources_file(site.url))
    return make_web(database, tmp_path, clock, fetches_per_minute=6_000)


async def work(web: WebService, clock: ManualClock, *, rounds: int = 4) -> None:
    """With all its attempts."""
    for _ in range(rounds):
        await run_until_idle(web.queue, handlers(web, ReaderHere()))
        clock.advance(600)


@pytest.mark.req("WB-7", "WB-10")
@on_sqlite
async def test_pages_that_failed_are_had_by_a_retry_also_when_their_jobs_are_pruned(
    web: WebService, site: TinySite, clock: ManualClock
) -> None:
    database = web.queue.database
    with_sitemap(site, 52)
    await web.look()
    await work(web, clock, rounds=1)
    await web.upkeep()
    assert await count(database, discovered_items, status="FAILED") == 52
    assert await count(database, jobs, type="web.fetch") == 50
    site.pages["*"] = Page(b"here it is", "text/plain")
    assert [look.new for look in await web.look()] == [0]

    assert len(await web.retry(ME, dry_run=True)) == 52
    assert await count(database, jobs, type="web.verify") == 0
    assert len(await web.retry(ME, ["tiny"])) == 52
    await work(web, clock, rounds=1)
    assert await count(database, discovered_items, status="FETCHED") == 52
    assert await web.retry(ME) == []


@pytest.mark.req("WB-6")
async def test_a_retry_of_what_backfill_found_obeys_the_switch(
    web: WebService, site: TinySite, clock: ManualClock
) -> None:
    with_sitemap(site, 1)
    await backfilled(web)
    await work(web, clock)
    await turn(web, on=False)
    with pytest.raises(SwitchedOff):
        await web.retry(ME)
    assert await count(web.queue.database, jobs, type="web.verify") == 0
    await turn(web, on=True)
    await web.retry(ME)
    await turn(web, on=False)
    asked = len(site.asked)
    await work(web, clock)
    assert len(site.asked) == asked


@on_sqlite
async def test_pages_of_a_source_that_is_not_followed_any_more_are_not_fetched(
    web: WebService, tmp_path: Path, site: TinySite, clock: ManualClock
) -> None:
    [url] = with_sitemap(site, 1)
    await backfilled(web)
    write_sources(tmp_path, "")
    await work(web, clock)
    row = await web.queue.database.read(lambda tx: tx.execute(select(discovered_items)).one())
    assert (row.status, row.error) == ("FAILED", "The source tiny is no longer followed.")
    assert url.removeprefix(site.url) not in site.asked
    assert await web.retry(ME) == []


@pytest.mark.req("WB-6")
@on_sqlite
async def test_while_backfill_is_off_its_jobs_look_at_the_switch_one_by_one(
    database: Database, tmp_path: Path, site: TinySite, clock: ManualClock
) -> None:
    write_sources(tmp_path, sources_file(site.url))
    web = make_web(database, tmp_path, clock, fetches_per_minute=2)
    with_sitemap(site, 10)
    await backfilled(web)
    await turn(web, on=False)
    await run_until_idle(web.queue, handlers(web, ReaderHere()))
    query = select(jobs.c.not_before).where(jobs.c.type == "web.fetch").order_by(jobs.c.not_before)
    times = list(await database.read(lambda tx: tx.execute(query).scalars().all()))
    assert times == [clock.now() + timedelta(seconds=60 + 30 * n) for n in range(10)]

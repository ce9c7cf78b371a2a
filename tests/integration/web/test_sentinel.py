"""The daily look at the sources."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import select

from postroom.app.schedules import schedules
from postroom.db import Database
from postroom.db.tables.queue import jobs
from postroom.db.tables.web import backfill_runs, discovered_items, evidence, web_endpoints
from postroom.domain.clock import ManualClock
from postroom.domain.errors import NotFound
from postroom.queue import schedules as cadence
from postroom.settings import RecurringSettings, Settings
from postroom.web.extraction.web_reader import WebReader
from postroom.web.web_service import handlers
from tests.support.databases import on_sqlite
from tests.support.queues import run_until_idle
from tests.support.web_fetching import ReaderHere
from tests.support.web_servers import Page, TinySite
from tests.support.web_sources import backfilled, count, make_web, sources_file, with_sitemap, write_sources


@pytest.mark.req("WB-1")
def test_the_sentinel_comes_every_day_at_six_unless_it_is_switched_off(tmp_path: Path) -> None:
    [schedule] = [s for s in schedules(Settings(home=tmp_path)) if s.name == "web.sentinel"]
    assert cadence.parse_cadence(schedule.cadence).first(datetime(2026, 1, 1, 7, tzinfo=UTC)) == datetime(
        2026, 1, 2, 6, tzinfo=UTC
    )
    off = Settings(home=tmp_path, recurring=RecurringSettings(sentinel="off"))
    assert [s for s in schedules(off) if s.name == "web.sentinel"] == []


@pytest.mark.req("WB-1")
async def test_the_sentinel_takes_what_is_new_and_leaves_what_is_known(
    database: Database, tmp_path: Path, site: TinySite
) -> None:
    write_sources(tmp_path, sources_file(site.url))
    web = make_web(database, tmp_path)
    with_sitemap(site, 3)
    await backfilled(web)
    with_sitemap(site, 5)
    [look] = await web.look()
    assert (look.new, look.known, look.problems) == (2, 3, [])
    rows = await database.read(lambda tx: tx.execute(select(discovered_items)).all())
    assert sorted(row.discovery_method for row in rows) == ["BACKFILL"] * 3 + ["SENTINEL"] * 2
    queues = await database.read(
        lambda tx: tx.execute(select(jobs.c.queue_name).order_by(jobs.c.queue_name)).scalars().all()
    )
    assert list(queues) == ["history"] * 3 + ["work"] * 2
    assert await count(database, backfill_runs) == 1
    looked = await database.read(lambda tx: tx.execute(select(web_endpoints.c.sentinel_at)).scalar_one())
    assert looked is not None


@pytest.mark.req("WB-1")
async def test_a_source_that_cannot_be_read_does_not_keep_others_from_being_looked_at(
    database: Database, tmp_path: Path, site: TinySite
) -> None:
    write_sources(tmp_path, sources_file(site.url, "gone", "tiny"))
    with_sitemap(site, 2)
    looks = await make_web(database, tmp_path).look()
    assert [(look.source, look.new, bool(look.problems)) for look in looks] == [("gone", 0, True), ("tiny", 2, False)]


@on_sqlite
async def test_the_sentinel_looks_at_the_newest_days_and_pages_only(
    database: Database, tmp_path: Path, site: TinySite
) -> None:
    clock = ManualClock(datetime(2026, 3, 10, 6, tzinfo=UTC))
    archive = (
        sources_file(site.url, "a", mode="archive", url=f"{site.url}/{{yyyy}}-{{mm}}-{{dd}}")
        + "first_day = 2000-01-01\n"
    )
    write_sources(
        tmp_path, archive + sources_file(site.url, "b", mode="pagination", url=f"{site.url}/1", links='["item"]')
    )
    for n in range(1, 9):
        site.list_page(f"/{n}", [f"/item/{n}"], f"/{n + 1}")
    _, second = await make_web(database, tmp_path, clock, sentinel_days=2, sentinel_pages=3).look()
    assert [path for path in site.asked if path != "/robots.txt"] == [
        *("/2026-03-10", "/2026-03-09", "/2026-03-08"),
        *("/1", "/2", "/3"),
    ]
    assert (second.new, second.problems) == (3, [])


@on_sqlite
async def test_one_look_takes_no_more_than_the_cap_of_a_source(
    database: Database, tmp_path: Path, site: TinySite
) -> None:
    write_sources(tmp_path, sources_file(site.url))
    with_sitemap(site, 90)
    web = make_web(database, tmp_path, max_urls_per_source=60)
    assert [look.new for look in await web.look()] == [60]
    assert [look.new for look in await web.look()] == [30]


async def test_a_page_that_the_site_says_has_changed_is_looked_at_again(
    database: Database, tmp_path: Path, site: TinySite
) -> None:
    write_sources(tmp_path, sources_file(site.url))
    web = make_web(database, tmp_path)
    site.sitemap("/tiny.xml", ["/law"])
    site.pages["/law"] = Page(b"<html><body><p>first</p></body></html>")
    await web.look()
    reader = WebReader()
    await run_until_idle(web.queue, handlers(web, reader))
    site.pages["/law"] = Page(b"<html><body><p>second</p></body></html>")
    site.sitemap("/tiny.xml", ["/law"], {"/law": "2999-01-01"})
    [look] = await web.look()
    assert (look.new, look.changed) == (0, 1)
    await run_until_idle(web.queue, handlers(web, reader))
    kept = select(evidence.c.raw_content).order_by(evidence.c.fetched_at)
    assert list(await database.read(lambda tx: tx.execute(kept).scalars().all())) == [
        b"<html><body><p>first</p></body></html>",
        b"<html><body><p>second</p></body></html>",
    ]


@on_sqlite
async def test_a_source_that_is_not_there_is_named(database: Database, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="there is no source 'x'"):
        await make_web(database, tmp_path).look(["x"])


@pytest.mark.req("WB-1")
@on_sqlite
async def test_a_page_that_changed_on_the_day_on_which_it_was_looked_at_is_looked_at_again(
    database: Database, tmp_path: Path, site: TinySite
) -> None:
    clock = ManualClock(datetime(2026, 3, 10, 6, tzinfo=UTC))
    write_sources(tmp_path, sources_file(site.url))
    web = make_web(database, tmp_path, clock)
    site.sitemap("/tiny.xml", ["/law"], {"/law": "2026-03-10"})
    site.pages["/law"] = Page(b"the law of the morning", "text/plain")
    await web.look()
    work = handlers(web, ReaderHere())
    await run_until_idle(web.queue, work)
    changes = []
    for _ in range(3):
        clock.advance(86_400)
        [look] = await web.look()
        changes.append(look.changed)
        await run_until_idle(web.queue, work)
    assert changes == [1, 0, 0]


@pytest.mark.req("WB-1", "WB-3")
@on_sqlite
async def test_a_site_that_wants_to_be_left_alone_does_not_keep_others_from_being_looked_at(
    database: Database, tmp_path: Path, site: TinySite, clock: ManualClock
) -> None:
    away = sources_file(site.url, "away").replace("127.0.0.1", "localhost")
    write_sources(tmp_path, away + sources_file(site.url))
    with_sitemap(site, 2)
    web = make_web(database, tmp_path, clock)
    async with web.open_client(web.sources()) as client:
        await client.pace.hold("localhost", timedelta(days=1))
    begun = clock.now()
    first, second = await web.look()
    assert "It is not the turn of localhost" in first.problems[-1]
    assert (second.new, second.problems) == (2, [])
    assert clock.now() - begun < timedelta(hours=1)

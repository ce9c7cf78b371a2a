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
from tests.support.web_sources import (
    backfilled,
    count,
    item_urls,
    make_web,
    numbered,
    sources_file,
    with_sitemap,
    write_sources,
)


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
async def test_the_first_look_takes_the_newest_days_and_pages_only(
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
    async with web.open_client(await web.sources()) as client:
        await client.pace.hold("localhost", timedelta(days=1))
    begun = clock.now()
    first, second = await web.look()
    assert "It is not the turn of localhost" in first.problems[-1]
    assert (second.new, second.problems) == (2, [])
    assert clock.now() - begun < timedelta(hours=1)


MONTH = timedelta(days=31)
START = datetime(2026, 3, 10, 6, tzinfo=UTC)


@pytest.mark.req("WB-1", "WB-5")
async def test_a_sentinel_that_was_off_for_a_month_finds_everything_over_several_looks(
    database: Database, tmp_path: Path, site: TinySite
) -> None:
    """Pages are dated long before the look at which they are first listed, and there are more than a look may take."""
    clock = ManualClock(START)
    write_sources(tmp_path, sources_file(site.url))
    web = make_web(database, tmp_path, clock, max_urls_per_source=60)
    site.sitemap_index("/tiny.xml", ["/a.xml", "/b.xml"])
    before, since = numbered("before", 5), numbered("since", 150)
    site.sitemap("/a.xml", before, dict.fromkeys(before, "2020-01-01"))
    site.sitemap("/b.xml", ["/today"], {"/today": "2026-03-10"})
    [first] = await web.look()
    assert (first.found, first.new, first.older, first.known, first.not_reached) == (6, 1, 5, 0, 0)

    clock.advance(MONTH.total_seconds())
    dates = {path: f"2026-03-{11 + number % 20}" if number % 3 else "2019-05-05" for number, path in enumerate(since)}
    site.sitemap("/a.xml", before + since[:100], dict.fromkeys(before, "2020-01-01") | dates)
    site.sitemap("/b.xml", ["/today", *since[100:]], {"/today": "2026-03-10"})
    looks = []
    for _ in range(4):
        [look] = await web.look()
        looks.append((look.new, look.not_reached, look.lists_left))
        clock.advance(86_400)
    assert looks == [(60, 40, 1), (60, 30, 0), (30, 0, 0), (0, 0, 0)]
    assert await item_urls(database) == sorted(site.url + path for path in ["/today", *since])


@pytest.mark.req("WB-1", "WB-5")
@on_sqlite
async def test_a_list_is_read_back_to_what_was_known_and_an_archive_to_the_last_look(
    database: Database, tmp_path: Path, site: TinySite
) -> None:
    clock = ManualClock(START)
    archive = (
        sources_file(site.url, "a", mode="archive", url=f"{site.url}/{{yyyy}}-{{mm}}-{{dd}}", links='["issue"]')
        + "first_day = 2000-01-01\n"
    )
    listed = sources_file(site.url, "b", mode="pagination", url=f"{site.url}/1", links='["item"]')
    write_sources(tmp_path, archive + listed)
    web = make_web(database, tmp_path, clock, sentinel_pages=1, max_urls_per_source=8)
    site.list_page("/1", ["/item/0"], "/2")
    site.list_page("/2", ["/item/long-ago"])
    assert [(look.new, look.lists_left) for look in await web.look()] == [(0, 0), (1, 0)]

    clock.advance(MONTH.total_seconds())
    for n in range(31):
        day = START + timedelta(days=n + 1)
        site.list_page(f"/{day:%Y-%m-%d}", [f"/issue/{n}"])
    for page in range(1, 12):
        site.list_page(f"/{page}", [f"/item/{2 * (12 - page)}", f"/item/{2 * (12 - page) - 1}"], f"/{page + 1}")
    site.list_page("/12", ["/item/0"], "/13")
    for _ in range(5):
        await web.look()
        clock.advance(3_600)
    found = [url.removeprefix(site.url) for url in await item_urls(database)]
    assert sorted(found) == sorted([*numbered("issue", 31), *numbered("item", 23)])
    assert "/13" not in site.asked


@pytest.mark.req("WB-3")
async def test_lists_and_pages_that_have_not_changed_are_only_asked_whether_they_have(
    database: Database, tmp_path: Path, site: TinySite
) -> None:
    clock = ManualClock(START)
    write_sources(tmp_path, sources_file(site.url))
    web = make_web(database, tmp_path, clock)
    site.sitemap_index("/tiny.xml", ["/child.xml"])
    site.sitemap("/child.xml", ["/law"])
    site.pages["/law"] = Page(b"the law", "text/plain")
    site.guarded = {"/tiny.xml", "/child.xml", "/law"}
    work = handlers(web, ReaderHere())
    await web.look()
    await run_until_idle(web.queue, work)
    clock.advance(2 * 86_400)
    [look] = await web.look()
    await run_until_idle(web.queue, work)
    assert (look.new, look.due, look.problems) == (0, 1, [])
    assert site.not_modified == ["/tiny.xml", "/child.xml", "/law"]
    site.sitemap("/child.xml", ["/law", "/amendment"])
    clock.advance(86_400)
    [look] = await web.look()
    assert look.new == 1


@pytest.mark.req("WB-1")
@on_sqlite
async def test_known_pages_are_checked_again_the_more_often_the_more_often_they_change(
    database: Database, tmp_path: Path, site: TinySite
) -> None:
    clock = ManualClock(START)
    write_sources(tmp_path, sources_file(site.url))
    web = make_web(database, tmp_path, clock)
    site.sitemap("/tiny.xml", ["/news", "/law"])
    work, looks = handlers(web, ReaderHere()), {"changed": 0, "unchanged": 0}
    for day in range(60):
        site.pages["/news"] = Page(f"news of day {day}".encode(), "text/plain")
        site.pages["/law"] = Page(b"the law", "text/plain")
        await web.look()
        await run_until_idle(web.queue, work)
        [view] = await web.overview()
        looks["changed"] += view.changed
        looks["unchanged"] += view.unchanged
        clock.advance(86_400)
    assert site.times("/news") == 60
    assert 5 <= site.times("/law") <= 7
    assert looks == {"changed": 59, "unchanged": site.times("/law") - 1}


@on_sqlite
async def test_an_old_page_of_an_archive_is_read_again_when_it_is_due(
    database: Database, tmp_path: Path, site: TinySite
) -> None:
    clock = ManualClock(START)
    url = f"{site.url}/{{yyyy}}-{{mm}}-{{dd}}"
    write_sources(
        tmp_path, sources_file(site.url, mode="archive", url=url, links='["issue"]') + "first_day = 2000-01-01\n"
    )
    web = make_web(database, tmp_path, clock, sentinel_days=1)
    site.list_page("/2026-03-10", ["/issue/1"])
    assert [look.new for look in await web.look()] == [1]
    news = []
    for day in range(20):
        clock.advance(86_400)
        if day == 10:
            site.list_page("/2026-03-10", ["/issue/1", "/issue/forgotten"])
        news += [look.new for look in await web.look()]
    assert sum(news) == 1
    assert 4 <= site.times("/2026-03-10") <= 9


@pytest.mark.req("WB-1")
@on_sqlite
async def test_a_list_that_cannot_be_read_does_not_hide_what_others_list(
    database: Database, tmp_path: Path, site: TinySite
) -> None:
    clock = ManualClock(START)
    write_sources(tmp_path, sources_file(site.url))
    web = make_web(database, tmp_path, clock)
    site.sitemap_index("/tiny.xml", ["/broken.xml", "/good.xml"])
    site.pages["/broken.xml"] = Page(b"", status=500)
    for day in range(3):
        site.sitemap("/good.xml", numbered("page", day + 1))
        [look] = await web.look()
        assert (look.new, len(look.problems)) == (1, 1)
        clock.advance(86_400)


@on_sqlite
async def test_a_source_of_one_page_is_followed_and_checked_at_every_look(
    database: Database, tmp_path: Path, site: TinySite
) -> None:
    clock = ManualClock(START)
    write_sources(tmp_path, sources_file(site.url, mode="page", url=f"{site.url}/prices"))
    web = make_web(database, tmp_path, clock)
    work, reports = handlers(web, ReaderHere()), []
    for price in (1, 1, 2):
        site.pages["/prices"] = Page(f"it costs {price}".encode(), "text/plain")
        reports += await web.look()
        await run_until_idle(web.queue, work)
        clock.advance(86_400)
    assert [(look.new, look.due) for look in reports] == [(1, 0), (0, 1), (0, 1)]
    assert site.times("/prices") == 3
    assert await count(database, evidence) == 2


@pytest.mark.req("WB-9")
async def test_a_feed_brings_its_entries_and_what_it_says_has_changed(
    database: Database, tmp_path: Path, site: TinySite
) -> None:
    clock = ManualClock(START)
    write_sources(tmp_path, sources_file(site.url, mode="feed", url=f"{site.url}/feed"))
    web = make_web(database, tmp_path, clock)
    site.pages["*"] = Page(b"an entry", "text/plain")
    work = handlers(web, ReaderHere())
    site.feed("/feed", {"/1": "2020-01-01T00:00:00Z", "/2": "2026-03-01T00:00:00Z"})
    assert [look.new for look in await web.look()] == [2]
    await run_until_idle(web.queue, work)
    clock.advance(3_600)
    site.feed("/feed", {"/2": "2026-03-10T06:30:00Z", "/3": "2026-03-10T06:45:00Z"})
    assert [(look.new, look.changed) for look in await web.look()] == [(1, 1)]

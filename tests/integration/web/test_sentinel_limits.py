"""What a look does within its limits: caps that are shared, lists that move while it catches up, sites that date all
of their pages today, pages that fail, and a dry run that counts as the look does."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import select

from postroom.db import Database
from postroom.db.tables.web import discovered_items
from postroom.domain.clock import ManualClock
from postroom.web.web_service import handlers
from tests.support.databases import on_sqlite
from tests.support.queues import run_until_idle
from tests.support.web_fetching import ReaderHere
from tests.support.web_servers import Page, TinySite
from tests.support.web_sources import (
    backfilled,
    contents,
    item_urls,
    make_web,
    numbered,
    sources_file,
    with_sitemap,
    write_sources,
)

START = datetime(2026, 3, 10, 6, tzinfo=UTC)
DAY_S = 86_400


def publish(site: TinySite, newest: int, a_page: int = 4) -> None:
    """A list with the newest first, the latest headlines beside every page, and numbers down to 1."""
    items = [f"/item/{n}" for n in range(newest, 0, -1)]
    pages = [items[start : start + a_page] for start in range(0, len(items), a_page)]
    for number, page in enumerate(pages, 1):
        following = f"/{number + 1}" if number < len(pages) else None
        site.list_page(f"/{number}", [*items[:2], *page], following)


@pytest.mark.req("WB-1", "WB-5")
@pytest.mark.parametrize("a_day", [0, 7, 12])
@on_sqlite
async def test_a_list_that_moves_on_while_a_look_catches_up_hides_nothing(
    database: Database, tmp_path: Path, site: TinySite, a_day: int
) -> None:
    clock = ManualClock(START)
    write_sources(tmp_path, sources_file(site.url, mode="pagination", url=f"{site.url}/1", links='["item"]'))
    web = make_web(database, tmp_path, clock, sentinel_pages=1, max_urls_per_source=20)
    publish(site, newest := 4)
    await web.look()
    clock.advance(31 * DAY_S)
    publish(site, newest := newest + 50)
    looks = []
    for _ in range(9):
        [look] = await web.look()
        looks.append((look.new, look.lists_left))
        clock.advance(DAY_S)
        publish(site, newest := newest + a_day)
        if not look.lists_left and not look.not_reached:
            break
    assert max(new for new, _ in looks) == 20, "the cap holds"
    assert looks[-1][1] == 0, "it has caught up"
    expected = [f"{site.url}/item/{n}" for n in range(1, newest - a_day + 1)]
    assert await item_urls(database) == sorted(expected)


@pytest.mark.req("WB-5")
async def test_the_caps_are_those_of_a_run_and_of_a_source_and_everyone_gets_a_turn(
    database: Database, tmp_path: Path, site: TinySite
) -> None:
    clock = ManualClock(START)
    two = f'\n[[source.endpoint]]\nname = "second"\nmode = "sitemap"\nurl = "{site.url}/second.xml"\n'
    write_sources(tmp_path, sources_file(site.url, "a") + two + sources_file(site.url, "b", "c"))
    for slug, many in {"a": 30, "second": 30, "b": 300, "c": 20}.items():
        with_sitemap(site, many, slug)
    web = make_web(database, tmp_path, clock, max_urls_per_run=100, max_urls_per_source=50)
    first = await web.look()
    assert [(look.source, look.new) for look in first] == [("a", 30), ("a", 20), ("b", 50), ("c", 0)]
    assert [look.not_reached for look in first] == [0, 10, 250, 20]
    clock.advance(DAY_S)
    assert [look.new for look in await web.look()] == [0, 10, 50, 20]


@pytest.mark.req("WB-5")
@on_sqlite
async def test_a_site_that_dates_all_its_pages_today_is_checked_bit_by_bit(
    database: Database, tmp_path: Path, site: TinySite
) -> None:
    clock = ManualClock(START)
    write_sources(tmp_path, sources_file(site.url))
    web = make_web(database, tmp_path, clock, recheck_pages=4)
    paths = numbered("law", 10)
    for path in paths:
        site.pages[path] = Page(b"the law", "text/plain")
    work = handlers(web, ReaderHere())
    checked = []
    for day in range(4):
        site.sitemap("/tiny.xml", paths, dict.fromkeys(paths, f"2026-03-{11 + day}"))
        [look] = await web.look()
        checked.append((look.changed, look.due, look.due_left))
        await run_until_idle(web.queue, work)
        clock.advance(DAY_S)
    assert checked == [(0, 0, 0), (4, 0, 6), (4, 0, 6), (4, 0, 6)]
    assert min(site.times(path) for path in paths) >= 1


@pytest.mark.req("WB-1")
async def test_a_page_that_could_not_be_fetched_is_tried_again_by_a_later_look(
    database: Database, tmp_path: Path, site: TinySite
) -> None:
    clock = ManualClock(START)
    write_sources(tmp_path, sources_file(site.url))
    web = make_web(database, tmp_path, clock)
    site.sitemap("/tiny.xml", ["/down", "/gone"])
    site.pages["/down"] = Page(b"", status=503)
    work = handlers(web, ReaderHere())
    await web.look()
    for _ in range(3):  # attempts
        await run_until_idle(web.queue, work)
        clock.advance(600)
    assert await statuses(database) == {"/down": "FAILED", "/gone": "FAILED"}
    site.pages["/down"] = Page(b"here again", "text/plain")
    clock.advance(2 * DAY_S)
    [look] = await web.look()
    await run_until_idle(web.queue, work)
    assert look.due == 1
    assert await statuses(database) == {"/down": "FETCHED", "/gone": "FAILED"}
    assert site.times("/gone") == 1, "what is not there is not asked for again"


@pytest.mark.req("WB-11")
async def test_a_dry_look_counts_as_the_look_does_and_changes_nothing(
    database: Database, tmp_path: Path, site: TinySite
) -> None:
    clock = ManualClock(START)
    two = f'\n[[source.endpoint]]\nname = "second"\nmode = "sitemap"\nurl = "{site.url}/second.xml"\n'
    write_sources(tmp_path, sources_file(site.url) + two)
    web = make_web(database, tmp_path, clock, max_urls_per_source=8)
    old = {"/old": "2001-01-01"}
    site.sitemap("/tiny.xml", ["/known", "/old"], old)
    site.pages["/known"] = Page(b"known", "text/plain")
    work = handlers(web, ReaderHere())
    await web.look()
    await run_until_idle(web.queue, work)
    clock.advance(5 * DAY_S)
    site.sitemap_index("/tiny.xml", ["/a.xml", "/b.xml"])
    site.sitemap("/a.xml", ["/known", "/old", *numbered("new", 5)], old)
    site.sitemap("/b.xml", numbered("new", 6))
    site.sitemap("/second.xml", [*numbered("new", 5), *numbered("other", 9)])
    before = await contents(database, "domain_pace", "robots_cache")
    dry = await web.look(dry_run=True)
    assert await contents(database, "domain_pace", "robots_cache") == before
    assert [asdict(look) for look in dry] == [asdict(look) for look in await web.look()]
    assert [(look.new, look.older, look.due, look.not_reached) for look in dry] == [(6, 1, 1, 0), (2, 0, 0, 7)]


@pytest.mark.req("WB-11")
async def test_a_dry_run_counts_as_the_run_does(database: Database, tmp_path: Path, site: TinySite) -> None:
    two = f'\n[[source.endpoint]]\nname = "second"\nmode = "sitemap"\nurl = "{site.url}/second.xml"\n'
    write_sources(tmp_path, sources_file(site.url) + two)
    web = make_web(database, tmp_path)
    site.sitemap("/tiny.xml", ["/known"])
    await backfilled(web)
    site.sitemap("/tiny.xml", ["/known", *numbered("new", 5)])
    site.sitemap("/second.xml", ["/known", *numbered("new", 9)])
    dry = await backfilled(web, max_urls=7, dry_run=True, concurrency=1)
    real = await backfilled(web, max_urls=7, concurrency=1)
    assert dry.counters == real.counters
    assert (dry.queued_count, dry.status_reason) == (7, "reached the run's cap of 7 urls")


async def statuses(database: Database) -> dict[str, str]:
    query = select(discovered_items.c.url, discovered_items.c.status)
    rows = await database.read(lambda tx: tx.execute(query).all())
    return {f"/{row.url.rpartition('/')[2]}": row.status for row in rows}

"""Following a web site without a line of configuration: what an address is, and where sources come from."""

from __future__ import annotations

import asyncio
import time
from datetime import time as time_of_day
from datetime import timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from postroom.audit import AuditFilter, list_entries
from postroom.db import Database, Dialect
from postroom.db.tables.web import discovered_items
from postroom.domain.clock import ManualClock
from postroom.domain.errors import BadInput, NotFound
from postroom.domain.jobs import CATALOGUE, sentinel_schedule
from postroom.queue.schedules import Daily, declare_schedules, fire_due_schedules
from postroom.web.fetching.interface import ForbiddenAddress, Missing, Unavailable
from postroom.web.fetching.targets import AddressGuard, SystemResolver, read_target
from postroom.web.probing import NewSource
from postroom.web.sources import CheckCadence, EndpointMode, NoticeWay
from postroom.web.web_service import WebService, handlers
from tests.support.databases import on_sqlite
from tests.support.queues import run_until_idle
from tests.support.web_fetching import ReaderHere
from tests.support.web_servers import Page, TinySite
from tests.support.web_sources import ME, count, make_web, sources_file, with_sitemap, write_sources


@pytest.fixture
def web(database: Database, tmp_path: Path) -> WebService:
    return make_web(database, tmp_path)


def html(head: str = "", body: str = "") -> Page:
    return Page(f"<html><head><title>The Gazette</title>{head}</head><body>{body}</body></html>".encode())


async def added(web: WebService, site: TinySite, path: str, **more: object) -> tuple[EndpointMode, str, str]:
    found = await web.add(ME, NewSource(site.url + path, allow_private=True, **more))  # type: ignore[arg-type]
    [endpoint] = found.source.endpoint
    return endpoint.mode, endpoint.url.removeprefix(site.url), " ".join(found.findings)


@on_sqlite
async def test_an_address_is_recognised_for_what_it_is(web: WebService, site: TinySite) -> None:
    site.feed("/feed", {"/1": "2026-01-01T00:00:00Z"})
    with_sitemap(site, 3)
    site.pages["/"] = html()
    site.pages["/blog"] = html('<link rel="alternate" type="application/atom+xml" href="/feed">')
    site.pages["/2026/03/10/"] = html(body='<a href="/x">x</a>')
    site.list_page("/list", ["/item/1"], "/list?page=2")
    site.pages["/prices"] = html(body="<p>it costs 1</p>")
    site.pages["/law.txt"] = Page(b"the law", "text/plain")
    assert await added(web, site, "/feed") == (EndpointMode.FEED, "/feed", "It is a feed with 1 entry, 'News'.")
    mode, url, said = await added(web, site, "/tiny.xml")
    assert (mode, url, said) == (EndpointMode.SITEMAP, "/tiny.xml", "It is a sitemap of 3 pages.")
    mode, url, said = await added(web, site, "/blog")
    assert (mode, url) == (EndpointMode.FEED, "/feed")
    assert said.startswith("The page names a feed")
    assert (await added(web, site, "/2026/03/10/"))[:2] == (EndpointMode.ARCHIVE, "/{yyyy}/{mm}/{dd}/")
    assert (await added(web, site, "/news/{yyyy}/{mm}"))[:2] == (EndpointMode.ARCHIVE, "/news/{yyyy}/{mm}")
    assert (await added(web, site, "/list"))[:2] == (EndpointMode.PAGINATION, "/list")
    assert (await added(web, site, "/prices"))[:2] == (EndpointMode.PAGE, "/prices")
    assert (await added(web, site, "/law.txt"))[:2] == (EndpointMode.PAGE, "/law.txt")
    assert (await added(web, site, "/list", mode=EndpointMode.PAGE))[0] is EndpointMode.PAGE
    site.sitemap("/sitemap.xml", ["/1"])
    assert (await added(web, site, "/"))[:2] == (EndpointMode.SITEMAP, "/sitemap.xml")
    slugs = [source.slug for source in await web.sources()]
    assert len(set(slugs)) == len(slugs) == 10


async def test_an_added_source_is_followed_paused_continued_and_removed(
    database: Database, tmp_path: Path, site: TinySite, clock: ManualClock
) -> None:
    web = make_web(database, tmp_path, clock)
    site.feed("/feed", {"/1": "2026-01-01T00:00:00Z"})
    site.pages["/1"] = Page(b"one", "text/plain")
    await web.add(ME, NewSource(f"{site.url}/feed", slug="news", allow_private=True))
    assert [look.new for look in await web.look()] == [1]
    await web.pause(ME, "news", paused=True)
    work = handlers(web, ReaderHere())
    await run_until_idle(web.queue, work)
    assert await web.look() == []
    with pytest.raises(BadInput, match="news is paused; `postroom web unpause news`"):
        await web.look(["news"])
    assert await count(database, discovered_items, status="PENDING") == 1
    await web.pause(ME, "news", paused=False)
    clock.advance(timedelta(hours=2).total_seconds())
    await run_until_idle(web.queue, work)
    assert await count(database, discovered_items, status="FETCHED") == 1
    await web.set_notify(ME, "news", [NoticeWay.DISCORD])
    assert (await web.sources())["news"].notify == [NoticeWay.DISCORD]
    await web.remove(ME, "news")
    assert list(await web.sources()) == []
    assert await count(database, discovered_items) == 1
    entries = (await database.read(lambda tx: list_entries(tx, AuditFilter(subject_type="web_source")))).entries
    assert sorted(entry.action.partition(".")[2] for entry in entries) == [
        *("add", "notify", "pause", "remove", "unpause")
    ]


@pytest.mark.req("JB-6", "WB-1")
async def test_each_source_is_checked_on_its_own_schedule(
    database: Database, tmp_path: Path, site: TinySite, clock: ManualClock
) -> None:
    """The sentinel at 06:00 checks all but a weekly source before its time; others are checked between as well."""
    web = make_web(database, tmp_path, clock)
    work = handlers(web, ReaderHere())
    for every in CheckCadence:
        site.feed(f"/{every}", {"/1": "2026-01-01T00:00:00Z"})
        wanted = NewSource(f"{site.url}/{every}", slug=every, allow_private=True, every=every)
        assert (await web.add(ME, wanted)).source.every is every
    clock.advance((clock.now().replace(hour=5, minute=30) + timedelta(days=1) - clock.now()).total_seconds())
    await database.write(lambda tx: declare_schedules(tx, CATALOGUE, [sentinel_schedule("daily 06:00")], clock.now()))
    hours: dict[str, list[int]] = {every: [] for every in CheckCadence}
    watched = 24 * (8 if database.dialect is Dialect.SQLITE else 2)  # a week of them takes long on PostgreSQL
    for hour in range(watched):
        await web.upkeep()
        await database.write(lambda tx: fire_due_schedules(tx, CATALOGUE, clock.now()))
        await run_until_idle(web.queue, work)
        for view in await web.overview():
            if view.looked_at == clock.now():
                hours[view.source].append(hour)
        clock.advance(3_600)
    assert hours[CheckCadence.HOURLY] == list(range(watched))
    assert hours[CheckCadence.SIX_HOURS] == [0, *range(1, watched, 6)]
    assert hours[CheckCadence.DAILY] == list(range(1, watched, 24))
    assert hours[CheckCadence.WEEKLY] == list(range(1, watched, 24 * 7))


async def test_the_schedule_of_a_source_is_changed_shown_and_kept(
    database: Database, tmp_path: Path, site: TinySite, clock: ManualClock
) -> None:
    web = make_web(database, tmp_path, clock)
    site.feed("/feed", {"/1": "2026-01-01T00:00:00Z"})
    await web.add(ME, NewSource(f"{site.url}/feed", slug="news", allow_private=True))
    await database.write(lambda tx: declare_schedules(tx, CATALOGUE, [sentinel_schedule("daily 06:00")], clock.now()))
    tick = Daily(time_of_day(6), ZoneInfo("UTC")).first(clock.now())
    assert await web.next_checks() == {"news": tick}
    await web.look()
    [view] = await web.overview()
    looked = view.looked_at
    assert looked is not None
    for every, expected in (
        (CheckCadence.HOURLY, looked + timedelta(hours=1)),
        (CheckCadence.SIX_HOURS, looked + timedelta(hours=6)),
        (CheckCadence.DAILY, tick),
        (CheckCadence.WEEKLY, Daily(time_of_day(6), ZoneInfo("UTC")).first(looked + timedelta(days=6, hours=12))),
    ):
        await web.set_schedule(ME, "news", every)
        assert (await web.sources())["news"].every is every
        assert await web.next_checks() == {"news": expected}
        assert [(view.every, view.next_check) for view in await web.overview()] == [(every, expected)]
    await web.set_notify(ME, "news", [NoticeWay.EMAIL])
    assert (await web.sources())["news"].every is CheckCadence.WEEKLY
    await web.pause(ME, "news", paused=True)
    assert await web.next_checks() == {}
    write_sources(tmp_path, sources_file(site.url))
    with pytest.raises(BadInput, match='write there: every = "hourly"'):
        await web.set_schedule(ME, "tiny", CheckCadence.HOURLY)


async def test_where_the_file_and_a_person_name_a_source_the_file_counts(
    database: Database, tmp_path: Path, site: TinySite
) -> None:
    web = make_web(database, tmp_path)
    site.feed("/feed", {"/1": "2026-01-01T00:00:00Z"})
    await web.add(ME, NewSource(f"{site.url}/feed", slug="tiny", allow_private=True))
    write_sources(tmp_path, sources_file(site.url))
    sources = await web.sources()
    assert [endpoint.mode for endpoint in sources["tiny"].endpoint] == [EndpointMode.SITEMAP]
    assert sources.added == frozenset()
    assert sources.outranked == {"tiny"}
    with pytest.raises(BadInput, match=r"there is a source tiny in sources.toml already"):
        await web.add(ME, NewSource(f"{site.url}/feed", slug="tiny", allow_private=True))
    write_sources(tmp_path, sources_file(site.url, "other"))
    with pytest.raises(BadInput, match=r"other is in sources.toml; remove it there, or pause it"):
        await web.remove(ME, "other")
    await web.pause(ME, "other", paused=True)
    assert (await web.sources()).paused == {"other"}
    assert "tiny" in (await web.sources()).added
    with pytest.raises(NotFound):
        await web.remove(ME, "nobody")


@pytest.mark.req("WB-13")
@on_sqlite
async def test_an_address_that_cannot_be_followed_is_refused_with_the_reason(web: WebService, site: TinySite) -> None:
    site.pages["/page"] = html('<link rel="alternate" type="application/rss+xml" href="https://feeds.example/x">')
    for wanted, error, problem in (
        (NewSource(f"{site.url}/page"), ForbiddenAddress, "not a public address"),
        (NewSource(f"{site.url}/missing", allow_private=True), Missing, "does not exist"),
        (NewSource("ftp://gazette.example/"), BadInput, "does not begin with http"),
        (NewSource(f"{site.url}/page", EndpointMode.FEED, allow_private=True), BadInput, "is no feed"),
        (NewSource(f"{site.url}/page", slug="Not A Slug", allow_private=True), BadInput, "slug"),
    ):
        with pytest.raises(error, match=problem):
            await web.add(ME, wanted)
    assert list(await web.sources()) == []
    mode, _, said = await added(web, site, "/page")
    assert mode is EndpointMode.PAGE
    assert "names a feed on another site" in said
    dry = await web.add(ME, NewSource(f"{site.url}/page", slug="again", allow_private=True), dry_run=True)
    assert dry.source.slug == "again"
    assert "again" not in (await web.sources()).by_slug


async def test_a_name_that_nobody_has_is_refused_at_once() -> None:
    guard = AddressGuard(SystemResolver())
    began = time.monotonic()
    with pytest.raises(Unavailable, match=r"nowhere\.invalid"):
        await guard.addresses(read_target("https://nowhere.invalid/"))
    assert time.monotonic() - began < 60


@on_sqlite
async def test_a_look_at_a_name_that_nobody_has_does_not_wait(database: Database, tmp_path: Path) -> None:
    clock = ManualClock()
    write_sources(
        tmp_path,
        '[[source]]\nslug = "x"\ndomains = ["nowhere.invalid"]\n[[source.endpoint]]\nname = "a"\nmode = "feed"\n'
        'url = "https://nowhere.invalid/feed"\n',
    )
    web = make_web(database, tmp_path, clock)
    began = clock.now()
    [look] = await web.look()
    assert look.problems
    if "No web site has the name" in look.problems[0]:  # what a resolver says without a network differs
        assert clock.now() == began


async def test_a_resolver_that_does_not_answer_is_given_up_after_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent:
        async def lookup(self, host: str, port: int) -> list[str]:
            await asyncio.Event().wait()
            return []

    monkeypatch.setattr("postroom.web.fetching.targets.LOOKUP_S", 0.05)
    with pytest.raises(Unavailable, match="could not be looked up within"):
        await AddressGuard(Silent()).addresses(read_target("https://gazette.example/"))

"""The life of a backfill run: it goes on, stops, is resumed and ends as its row says."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import select

from postroom import audit
from postroom.db import Database
from postroom.db.tables.web import backfill_runs, discovered_items
from postroom.domain.clock import ManualClock
from postroom.domain.errors import BadInput, NotFound
from postroom.domain.ids import new_id
from postroom.web import runs
from postroom.web.runs import MOST_ERRORS_KEPT, NewRun, Run, RunStatus, with_error
from postroom.web.sources import EndpointMode
from postroom.web.web_service import WebService
from tests.support.databases import on_sqlite
from tests.support.queues import until
from tests.support.web_servers import Page, TinySite
from tests.support.web_sources import (
    ME,
    backfilled,
    contents,
    count,
    item_urls,
    make_web,
    numbered,
    sources_file,
    turn,
    with_sitemap,
    write_sources,
)

NEW = NewRun(["tiny"], EndpointMode.SITEMAP)


@pytest.fixture
def web(database: Database, tmp_path: Path, site: TinySite) -> WebService:
    write_sources(tmp_path, sources_file(site.url))
    return make_web(database, tmp_path)


def nested(site: TinySite) -> None:
    """An index of two sitemaps, of which the second keeps whoever asks for it waiting."""
    site.sitemap_index("/tiny.xml", ["/a.xml", "/b.xml"])
    site.sitemap("/a.xml", numbered("a", 70))
    site.sitemap("/b.xml", numbered("b", 30))
    site.gated = frozenset({"/b.xml"})


async def begun(web: WebService) -> Run:
    return await web.begin(ME, NEW)


@pytest.mark.req("WB-6", "WB-8", "WB-11")
async def test_the_switch_stops_a_run_at_once_and_it_goes_on_from_its_place(web: WebService, site: TinySite) -> None:
    nested(site)
    run = await begun(web)
    driven = asyncio.create_task(web.drive(run))
    await until(lambda: "/b.xml" in site.asked)
    await turn(web, on=False)
    async with asyncio.timeout(15):  # a fetch gives up by itself after twenty seconds
        stopped = await driven
    assert (stopped.status, stopped.status_reason) == (RunStatus.FAILED, "backfill is off: switched off by cli me")
    assert (stopped.discovered_count, stopped.queued_count) == (70, 70)

    site.gate.set()
    await turn(web, on=True)
    ended = await web.drive(await web.resume(ME, run.id))
    assert (ended.status, ended.status_reason) == (RunStatus.COMPLETED, None)
    assert (ended.discovered_count, ended.queued_count, ended.skipped_count) == (100, 100, 0)
    assert (site.times("/tiny.xml"), site.times("/a.xml"), site.times("/b.xml")) == (1, 1, 2)
    assert await count(web.queue.database, discovered_items) == 100


@pytest.mark.req("WB-6")
async def test_a_run_whose_process_is_gone_is_stopped_by_the_switch_through_upkeep(web: WebService) -> None:
    run = await begun(web)
    await turn(web, on=False)
    assert (await web.upkeep())["switched_off"] == 1
    assert (await web.show(run.id)).status_reason == "backfill is off: switched off by cli me"


@pytest.mark.req("WB-8")
async def test_a_run_that_is_silent_for_two_minutes_has_failed_and_can_be_resumed(
    database: Database, tmp_path: Path, site: TinySite, clock: ManualClock
) -> None:
    write_sources(tmp_path, sources_file(site.url))
    web = make_web(database, tmp_path, clock)
    run = await begun(web)
    clock.advance(120)
    assert (await web.upkeep())["silent"] == 0
    clock.advance(1)
    assert (await web.upkeep())["silent"] == 1
    failed = await web.show(run.id)
    assert (failed.status, failed.status_reason) == (RunStatus.FAILED, "silent for two minutes: its process is gone")
    again = await web.resume(ME, run.id)
    assert (again.status, again.status_reason, again.fence) == (RunStatus.RUNNING, None, run.fence + 1)


@pytest.mark.req("WB-8")
async def test_a_process_that_was_thought_dead_cannot_write_into_the_run(web: WebService, site: TinySite) -> None:
    nested(site)
    run = await begun(web)
    driven = asyncio.create_task(web.drive(run))
    await until(lambda: "/b.xml" in site.asked)
    await web.queue.database.write(
        lambda tx: runs.fail(tx, runs.find(tx, run.id, lock=True), "silent", ME, web.queue.clock.now())
    )
    resumed = await web.resume(ME, run.id)
    site.gate.set()
    left = await driven
    assert left.status is RunStatus.RUNNING
    assert left.fence == resumed.fence
    ended = await web.drive(resumed)
    assert (ended.status, ended.discovered_count) == (RunStatus.COMPLETED, 100)


@pytest.mark.req("WB-11")
@pytest.mark.parametrize("status", [RunStatus.PENDING, RunStatus.RUNNING, RunStatus.COMPLETED, RunStatus.CANCELLED])
@on_sqlite
async def test_only_failed_runs_can_be_resumed(web: WebService, site: TinySite, status: RunStatus) -> None:
    with_sitemap(site, 1)
    run = await web.create(ME, NEW)
    if status is RunStatus.CANCELLED:
        await web.cancel(ME, run.id)
    elif status is not RunStatus.PENDING:
        run = await web.start(ME, run.id)
        if status is RunStatus.COMPLETED:
            await web.drive(run)
    with pytest.raises(BadInput, match=f"is {status}; only FAILED runs can be resumed"):
        await web.resume(ME, run.id)


async def test_a_cancelled_run_stops_and_stays_cancelled(web: WebService, site: TinySite) -> None:
    nested(site)
    run = await begun(web)
    driven = asyncio.create_task(web.drive(run))
    await until(lambda: "/b.xml" in site.asked)
    await web.cancel(ME, run.id)
    async with asyncio.timeout(15):  # a fetch gives up by itself after twenty seconds
        ended = await driven
    assert (ended.status, ended.status_reason) == (RunStatus.CANCELLED, "cancelled by cli me")


async def test_a_run_that_is_interrupted_says_so_and_can_be_resumed(web: WebService, site: TinySite) -> None:
    nested(site)
    stop = asyncio.Event()
    driven = asyncio.create_task(web.drive(await begun(web), stop=stop))
    await until(lambda: "/b.xml" in site.asked)
    stop.set()
    stopped = await driven
    assert (stopped.status, stopped.discovered_count) == (RunStatus.FAILED, 70)
    assert "interrupted" in (stopped.status_reason or "")

    again = asyncio.create_task(web.drive(await web.resume(ME, stopped.id)))
    await until(lambda: site.times("/b.xml") == 2)
    again.cancel()
    with pytest.raises(asyncio.CancelledError):
        await again
    assert (await web.show(stopped.id)).status is RunStatus.FAILED


@pytest.mark.req("WB-11")
async def test_a_dry_run_counts_what_a_run_would_do_and_writes_only_its_row(web: WebService, site: TinySite) -> None:
    database = web.queue.database
    with_sitemap(site, 20)
    await backfilled(web)
    with_sitemap(site, 70)
    before = await contents(database, "backfill_runs", "audit_log", "audit_pending", "domain_pace")
    dry = await backfilled(web, dry_run=True)
    assert (dry.status, dry.discovered_count, dry.queued_count, dry.skipped_count) == (RunStatus.COMPLETED, 70, 50, 20)
    assert await contents(database, "backfill_runs", "audit_log", "audit_pending", "domain_pace") == before
    real = await backfilled(web)
    assert (real.discovered_count, real.queued_count, real.skipped_count) == (70, 50, 20)


@pytest.mark.req("WB-11")
async def test_the_database_is_told_of_the_progress_at_least_every_fifty_addresses(
    web: WebService, site: TinySite
) -> None:
    with_sitemap(site, 175)
    run = await begun(web)
    seen: list[int] = []
    database = web.queue.database

    def note(progress: Run) -> None:
        seen.append(progress.discovered_count)

    ended = await web.drive(run, note)
    steps = [b - a for a, b in zip([0, *seen], seen, strict=False)]
    assert max(steps) <= 50
    assert ended.discovered_count == 175
    stored = await database.read(lambda tx: tx.execute(select(backfill_runs.c.discovered_count)).scalar_one())
    assert stored == 175


@pytest.mark.req("WB-11")
async def test_pages_that_could_not_be_had_are_tried_again_by_a_resume(
    database: Database, tmp_path: Path, site: TinySite
) -> None:
    """And only they are: the rest of the sitemap is not asked for again."""
    write_sources(tmp_path, sources_file(site.url))
    web = make_web(database, tmp_path, HurriedClock())
    nested(site)
    site.gate.set()
    site.pages["/a.xml"] = Page(b"overloaded", status=503)
    failed = await backfilled(web)
    assert (failed.status, failed.discovered_count, failed.error_count) == (RunStatus.FAILED, 30, 1)
    assert failed.status_reason == "pages that could not be read: 1; resume the run to try them again"
    assert site.times("/a.xml") == 3

    site.sitemap("/a.xml", numbered("a", 70))
    ended = await web.drive(await web.resume(ME, failed.id))
    assert (ended.status, ended.discovered_count, ended.queued_count) == (RunStatus.COMPLETED, 100, 100)
    assert (site.times("/tiny.xml"), site.times("/b.xml")) == (1, 1)


@pytest.mark.req("WB-5", "WB-7")
async def test_an_address_counts_once_in_a_run_however_often_and_in_whatever_form_it_is_found(
    web: WebService, site: TinySite
) -> None:
    site.sitemap_index("/tiny.xml", ["/a.xml", "/b.xml", "/tiny.xml", "/a.xml?utm_source=x"])
    site.sitemap("/a.xml", ["/x", "/x/", "/x#y", "/x?utm_medium=z", "/y?b=1&a=2"])
    site.sitemap("/b.xml", ["/y?a=2&b=1", "/z"])
    run = await backfilled(web)
    assert (run.discovered_count, run.queued_count, run.skipped_count) == (3, 3, 0)
    assert await item_urls(web.queue.database) == [f"{site.url}/x", f"{site.url}/y?a=2&b=1", f"{site.url}/z"]


@pytest.mark.req("WB-11")
async def test_a_resume_goes_on_at_the_page_and_the_address_where_a_list_broke_off(
    database: Database, tmp_path: Path, site: TinySite
) -> None:
    write_sources(tmp_path, sources_file(site.url, mode="pagination", url=f"{site.url}/list", links='["/item/"]'))
    web = make_web(database, tmp_path, HurriedClock())
    site.list_page("/list", ["/item/1", "/item/2"], "/list/2")
    site.pages["/list/2"] = Page(b"", status=500)
    failed = await backfilled(web, mode=EndpointMode.PAGINATION)
    assert (failed.status, failed.discovered_count) == (RunStatus.FAILED, 2)
    assert (failed.last_processed_source, failed.last_processed_page) == ("tiny", 2)
    assert failed.last_processed_url == f"{site.url}/item/2"
    site.list_page("/list/2", ["/item/3"])
    ended = await web.drive(await web.resume(ME, failed.id))
    assert (ended.status, ended.discovered_count, site.times("/list")) == (RunStatus.COMPLETED, 3, 1)


@pytest.mark.req("WB-8")
async def test_a_sitemap_that_is_wrong_in_many_places_is_counted_in_full_and_told_in_part(
    web: WebService, site: TinySite
) -> None:
    entries = "".join(f"<url><loc>ftp://x/{n}</loc></url>" for n in range(500)) + f"<url><loc>{site.url}/ok</loc></url>"
    site.pages["/tiny.xml"] = Page(f"<urlset>{entries}</urlset>".encode(), "application/xml")
    run = await backfilled(web)
    assert (run.status, run.discovered_count, run.error_count, len(run.error_log)) == (RunStatus.COMPLETED, 1, 500, 11)


@on_sqlite
async def test_what_cannot_be_run_is_refused_before_anything_is_written(web: WebService) -> None:
    for new, field in (
        (NewRun(["nobody"], EndpointMode.SITEMAP), "source"),
        (NewRun([], EndpointMode.SITEMAP), "source"),
        (NewRun(["tiny"], EndpointMode.ARCHIVE), "mode"),
        (NewRun(["tiny"], EndpointMode.SITEMAP, max_urls=1_001), "max-urls"),
        (NewRun(["tiny"], EndpointMode.SITEMAP, max_urls=0), "max-urls"),
        (NewRun(["tiny"], EndpointMode.SITEMAP, max_urls_per_source=501), "max-urls-per-source"),
        (
            NewRun(
                ["tiny"],
                EndpointMode.SITEMAP,
                date_from=datetime(2024, 1, 2, tzinfo=UTC),
                date_to=datetime(2024, 1, 1, tzinfo=UTC),
            ),
            "from",
        ),
    ):
        with pytest.raises(BadInput) as refusal:
            await web.create(ME, new)
        assert refusal.value.field == field
    assert await web.list_runs() == []
    with pytest.raises(NotFound):
        await web.show(new_id())


@pytest.mark.req("WB-8")
async def test_the_error_log_is_json_and_bounded_while_the_count_is_not(web: WebService) -> None:
    run = await begun(web)
    now = web.queue.clock.now()
    for n in range(MOST_ERRORS_KEPT + 7):
        run = with_error(run, "tiny/main", f"https://e.com/{n}", "x" * 10_000, now)
    await web.queue.database.write(lambda tx: runs.save(tx, runs.held(tx, run) and run, now))
    [stored] = await web.queue.database.read(lambda tx: tx.execute(select(backfill_runs)).all())
    assert stored.error_count == MOST_ERRORS_KEPT + 7
    assert len(json.loads(stored.error_log)) == MOST_ERRORS_KEPT
    assert len(stored.error_log) < 200_000


@pytest.mark.req("WB-8")
async def test_whoever_moved_a_run_is_in_the_audit_log(web: WebService, site: TinySite) -> None:
    with_sitemap(site, 2)
    run = await backfilled(web)
    page = await web.queue.database.read(
        lambda tx: audit.list_entries(tx, audit.AuditFilter(subject_type="web_run", subject_id=run.id))
    )
    assert [(entry.action, entry.actor.name) for entry in reversed(page.entries)] == [
        ("web_run.create", "cli me"),
        ("web_run.start", "cli me"),
        ("web_run.complete", "postroom"),
    ]


class HurriedClock(ManualClock):
    """The time of day stands still but for pauses, which pass at once; only the pulse's second is a real one."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds if seconds <= 1 else 0)

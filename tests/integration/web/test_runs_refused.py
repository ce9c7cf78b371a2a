"""Runs that may not begin, or cannot go on: each says why; none waits for ever or ends as if it had been through."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest

from postroom.db import Database
from postroom.db.tables.queue import jobs
from postroom.domain.clock import ManualClock
from postroom.domain.errors import BadInput
from postroom.kill_switch import SwitchedOff
from postroom.web.extraction.web_reader import WebReader
from postroom.web.runs import NewRun, Run, RunStatus, backfill_job
from postroom.web.sources import EndpointMode
from postroom.web.web_service import WebService, handlers, started
from tests.support.databases import on_sqlite
from tests.support.queues import run_until_idle
from tests.support.web_servers import Page, TinySite
from tests.support.web_sources import ME, backfilled, count, make_web, sources_file, turn, with_sitemap, write_sources

NEW = NewRun(["tiny"], EndpointMode.SITEMAP)


@pytest.fixture
def web(database: Database, tmp_path: Path, site: TinySite) -> WebService:
    write_sources(tmp_path, sources_file(site.url))
    return make_web(database, tmp_path)


async def failed(web: WebService) -> Run:
    """The site has no sitemap."""
    run = await backfilled(web)
    assert run.status is RunStatus.FAILED
    return run


@pytest.mark.req("WB-6", "WB-8")
async def test_a_refused_start_leaves_no_run_behind(web: WebService) -> None:
    await turn(web, on=False)
    for attempt in (web.begin, web.hand_over, web.create):
        with pytest.raises(SwitchedOff):
            await attempt(ME, NEW)
    assert await web.list_runs() == []
    assert await count(web.queue.database, jobs) == 0


@pytest.mark.req("WB-6", "WB-8")
async def test_a_run_that_waits_for_a_worker_fails_where_backfill_is_off_by_then_and_can_be_resumed(
    web: WebService, site: TinySite
) -> None:
    with_sitemap(site, 3)
    run = await web.hand_over(ME, NEW)
    await turn(web, on=False)
    await run_until_idle(web.queue, handlers(web, WebReader()))
    refused = await web.show(run.id)
    assert refused.status is RunStatus.FAILED
    assert "switched off" in (refused.status_reason or "")
    await turn(web, on=True)
    ended = await web.drive(await web.resume(ME, run.id))
    assert (ended.status, ended.queued_count) == (RunStatus.COMPLETED, 3)


@pytest.mark.req("WB-8")
@on_sqlite
async def test_a_worker_that_comes_too_late_to_start_a_run_leaves_it_to_whoever_drives_it(web: WebService) -> None:
    run = await web.hand_over(ME, NEW)
    begun = await web.start(ME, run.id)
    with pytest.raises(BadInput, match="is RUNNING; it cannot start now"):
        await started(web, run)
    assert await web.show(run.id) == begun


@pytest.mark.req("WB-8")
async def test_a_run_whose_job_was_cancelled_does_not_wait_for_ever(
    database: Database, tmp_path: Path, site: TinySite, clock: ManualClock
) -> None:
    write_sources(tmp_path, sources_file(site.url))
    web = make_web(database, tmp_path, clock)
    run, other = await web.hand_over(ME, NEW), await web.hand_over(ME, NEW)
    [job] = await web.queue.enqueue(backfill_job(run.id))
    await web.queue.cancel(job.job_id)
    clock.advance(121)
    assert (await web.upkeep())["abandoned"] == 1
    assert (await web.show(run.id)).status_reason == "its job ended before it began"
    assert (await web.show(other.id)).status is RunStatus.PENDING


@pytest.mark.req("WB-8", "WB-11")
@pytest.mark.parametrize("change", ["the source", "the endpoint", "the mode"])
@on_sqlite
async def test_a_run_is_not_resumed_without_the_endpoint_that_it_was_at(
    web: WebService, tmp_path: Path, site: TinySite, change: str
) -> None:
    run = await failed(web)
    with_sitemap(site, 3)
    was = sources_file(site.url)
    without = {
        "the source": "",
        "the endpoint": was.replace("'main'", "'other'"),
        "the mode": was.replace("'sitemap'", "'pagination'"),
    }
    write_sources(tmp_path, without[change])
    with pytest.raises(BadInput, match=r"not through with tiny/main \(sitemap\), which is no longer followed"):
        await web.resume(ME, run.id)
    assert (await web.show(run.id)).status is RunStatus.FAILED
    write_sources(tmp_path, was)
    ended = await web.drive(await web.resume(ME, run.id))
    assert (ended.status, ended.discovered_count) == (RunStatus.COMPLETED, 3)


@on_sqlite
async def test_a_file_of_sources_with_a_mistake_is_found_before_the_run_moves(web: WebService, tmp_path: Path) -> None:
    run = await failed(web)
    write_sources(tmp_path, "[[source]]\nslug = 1")
    with pytest.raises(BadInput, match="slug"):
        await web.resume(ME, run.id)
    assert (await web.show(run.id)).fence == run.fence


@pytest.mark.req("WB-11")
async def test_a_run_is_resumed_by_one_of_two_who_try_at_once(web: WebService) -> None:
    run = await failed(web)
    results = await asyncio.gather(web.resume(ME, run.id), web.resume(ME, run.id), return_exceptions=True)
    [begun] = [result for result in results if isinstance(result, Run)]
    [refusal] = [result for result in results if isinstance(result, BadInput)]
    assert begun.fence == run.fence + 1
    assert "is RUNNING; only FAILED runs can be resumed" in refusal.message


@pytest.mark.req("WB-11")
async def test_a_failed_dry_run_leaves_nothing_but_its_row_and_cannot_be_resumed(web: WebService) -> None:
    run = await backfilled(web, dry_run=True)
    assert (run.status, run.error_count, run.queued_count) == (RunStatus.FAILED, 1, 0)
    assert "/tiny.xml" in (run.status_reason or "")
    assert await count(web.queue.database, jobs) == 0
    with pytest.raises(BadInput, match="is a dry run, which leaves nothing to go on from; start it again"):
        await web.resume(ME, run.id)


@pytest.mark.req("WB-9")
@on_sqlite
async def test_an_archive_is_never_asked_for_days_to_come(
    database: Database, tmp_path: Path, site: TinySite, clock: ManualClock
) -> None:
    archive = sources_file(site.url, mode="archive", url=f"{site.url}/{{yyyy}}/{{mm}}/{{dd}}")
    today = clock.now().date()
    write_sources(tmp_path, archive + f"first_day = {today}\n")
    site.list_page(f"/{today:%Y/%m/%d}", ["/issue/1"])
    web = make_web(database, tmp_path, clock)
    run = await backfilled(web, mode=EndpointMode.ARCHIVE, date_to=datetime(today.year + 2, 1, 1, tzinfo=UTC))
    assert (run.status, run.discovered_count) == (RunStatus.COMPLETED, 1)
    assert [path for path in site.asked if path != "/robots.txt"] == [f"/{today:%Y/%m/%d}"]


@pytest.mark.req("WB-13")
@on_sqlite
async def test_a_redirect_out_of_the_source_is_not_followed_and_is_told(web: WebService, site: TinySite) -> None:
    elsewhere = site.url.replace("127.0.0.1", "localhost")
    site.pages["/tiny.xml"] = Page(b"", status=302, headers={"location": f"{elsewhere}/secret.xml"})
    run = await backfilled(web)
    assert (run.status, run.error_count) == (RunStatus.FAILED, 1)
    assert "redirects to localhost, which is none of its source's domains" in (run.status_reason or "")
    assert "/secret.xml" not in site.asked

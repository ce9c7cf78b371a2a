"""Backfill cannot flood the queue, and what it pruned is not forgotten."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import select, update

from postroom.db import Database
from postroom.db.tables.queue import job_tombstones, jobs
from postroom.db.tables.web import discovered_items
from postroom.domain.jobs import CATALOGUE
from postroom.queue import JobQueue, KeyUse
from postroom.web.runs import RunStatus
from tests.support.databases import on_sqlite
from tests.support.web_servers import TinySite
from tests.support.web_sources import ME, backfilled, count, make_web, sources_file, with_sitemap, write_sources


@pytest.fixture
def home(tmp_path: Path, site: TinySite) -> Path:
    write_sources(tmp_path, sources_file(site.url))
    return tmp_path


async def finish(queue: JobQueue, state: str, item_status: str | None) -> None:
    """All waiting fetch jobs end this way, as a worker would have it; None: it was killed before it could tell."""
    now = queue.clock.now()
    ended = update(jobs).where(jobs.c.type == "web.fetch", jobs.c.state == "queued")
    await queue.database.write(lambda tx: tx.execute(ended.values(state=state, ready=False, finished_at=now)))
    if item_status is not None:
        settled = update(discovered_items).where(discovered_items.c.status == "PENDING").values(status=item_status)
        await queue.database.write(lambda tx: tx.execute(settled))


@pytest.mark.req("WB-10")
def test_the_jobs_of_backfill_have_the_limits_of_the_specification() -> None:
    fetch = CATALOGUE["web.fetch"]
    assert (fetch.retry.max_attempts, fetch.retry.first_delay, fetch.retry.factor) == (3, timedelta(seconds=30), 2)
    assert (fetch.keep_completed, fetch.keep_failed, fetch.key_use) == (100, 50, KeyUse.ONCE)


@pytest.mark.req("WB-10")
async def test_a_run_waits_for_room_in_the_queue_and_then_fails_resumable(
    database: Database, home: Path, site: TinySite
) -> None:
    urls = with_sitemap(site, 120)
    web = make_web(database, home, queue_depth=45, queue_patience_s=0)
    run = await backfilled(web)
    assert run.status is RunStatus.FAILED
    assert "45 fetch jobs wait" in (run.status_reason or "")
    assert run.discovered_count == run.queued_count == await count(database, jobs, type="web.fetch") == 45
    await finish(web.queue, "completed", "FETCHED")
    again = await web.drive(await web.resume(ME, run.id))
    assert (again.status, again.discovered_count) == (RunStatus.FAILED, 90)
    await finish(web.queue, "completed", "FETCHED")
    ended = await web.drive(await web.resume(ME, run.id))
    assert (ended.status, ended.queued_count, ended.skipped_count) == (RunStatus.COMPLETED, len(urls), 0)


@pytest.mark.req("WB-10")
@on_sqlite
async def test_a_run_goes_on_by_itself_when_a_worker_makes_room(database: Database, home: Path, site: TinySite) -> None:
    with_sitemap(site, 30)
    web = make_web(database, home, queue_depth=20)
    driven = asyncio.create_task(backfilled(web))
    waiting = 0

    async def look() -> None:
        nonlocal waiting
        while waiting < 20:
            waiting = await count(database, jobs, type="web.fetch", state="queued")
            await asyncio.sleep(0.01)

    await look()
    await finish(web.queue, "completed", "FETCHED")
    ended = await driven
    assert (ended.status, ended.queued_count) == (RunStatus.COMPLETED, 30)


@pytest.mark.req("WB-10")
async def test_several_runs_share_one_bounded_queue(database: Database, home: Path, site: TinySite) -> None:
    for slug in ("a", "b", "c"):
        with_sitemap(site, 40, slug)
    write_sources(home, sources_file(site.url, "a", "b", "c"))
    web = make_web(database, home, queue_depth=50, queue_patience_s=0)
    ended = await asyncio.gather(*(backfilled(web, slug) for slug in ("a", "b", "c")))
    assert sum(run.queued_count for run in ended) == await count(database, jobs, type="web.fetch") == 50


@pytest.mark.req("WB-10")
async def test_at_most_a_hundred_completed_jobs_are_kept_and_the_others_leave_their_keys(
    database: Database, home: Path, site: TinySite
) -> None:
    with_sitemap(site, 130)
    web = make_web(database, home)
    await backfilled(web)
    keys = set(await database.read(lambda tx: tx.execute(select(jobs.c.idempotency_key)).scalars().all()))
    await finish(web.queue, "completed", "FETCHED")
    assert (await web.upkeep())["jobs_pruned"] == 30
    assert await count(database, jobs, type="web.fetch") == 100
    buried = set(await database.read(lambda tx: tx.execute(select(job_tombstones.c.idempotency_key)).scalars().all()))
    living = set(await database.read(lambda tx: tx.execute(select(jobs.c.idempotency_key)).scalars().all()))
    assert len(buried) == 30
    assert buried | living == keys

    write_sources(
        home, sources_file(site.url).replace('name = "main"', 'name = "renamed"').replace("'main'", "'renamed'")
    )
    run = await backfilled(web)
    assert (run.discovered_count, run.queued_count, run.skipped_count) == (130, 0, 130)
    assert await count(database, jobs, type="web.fetch") == 100


@pytest.mark.req("WB-10")
async def test_at_most_fifty_failed_jobs_are_kept(database: Database, home: Path, site: TinySite) -> None:
    with_sitemap(site, 60)
    web = make_web(database, home)
    await backfilled(web)
    await finish(web.queue, "failed", "FAILED")
    await web.upkeep()
    assert await count(database, jobs, state="failed") == 50


@pytest.mark.req("WB-7", "WB-10")
async def test_an_item_whose_job_died_without_a_word_does_not_hold_its_room_for_ever(
    database: Database, home: Path, site: TinySite
) -> None:
    with_sitemap(site, 3)
    web = make_web(database, home)
    await backfilled(web)
    await finish(web.queue, "failed", None)
    assert (await web.upkeep())["items_settled"] == 3
    rows = await database.read(lambda tx: tx.execute(select(discovered_items)).all())
    assert {(row.status, row.error) for row in rows} == {("FAILED", "its job ended without a result")}


@pytest.mark.req("WB-7")
async def test_a_page_that_two_endpoints_list_is_fetched_once_and_settled_for_both(
    database: Database, home: Path, site: TinySite
) -> None:
    with_sitemap(site, 2)
    web = make_web(database, home)
    await backfilled(web)
    write_sources(home, sources_file(site.url).replace("'main'", "'other'"))
    second = await backfilled(web)
    assert (second.discovered_count, second.queued_count, second.skipped_count) == (2, 0, 2)
    assert await count(database, discovered_items, status="PENDING") == 4
    first = await database.read(
        lambda tx: tx.execute(select(discovered_items.c.run_id).order_by("id").limit(1)).scalar()
    )
    done = update(discovered_items).where(discovered_items.c.run_id == first).values(status="FETCHED")
    await database.write(lambda tx: tx.execute(done))
    await finish(web.queue, "completed", None)
    await web.upkeep()
    assert await count(database, discovered_items, status="FETCHED") == 4


@pytest.mark.req("WB-2")
async def test_two_addresses_with_one_job_id_are_reported(
    database: Database, home: Path, site: TinySite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("postroom.web.discovery.backfill_job_id", lambda slug, url: f"backfill:{slug}:same")
    with_sitemap(site, 2)
    run = await backfilled(make_web(database, home))
    assert (run.discovered_count, run.queued_count, run.error_count) == (2, 1, 1)
    assert "job id backfill:tiny:same" in run.error_log[0]["error"]
    assert await count(database, discovered_items, status="FAILED") == 1

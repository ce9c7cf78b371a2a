"""The one pipeline: discovered, fetched, read, kept; for backfill and sentinel alike."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import func, select

from postroom import kill_switch
from postroom.audit import Actor
from postroom.db import Database, Tx
from postroom.db.tables.queue import job_tombstones, jobs
from postroom.db.tables.web import discovered_items, evidence, evidence_texts
from postroom.domain.clock import ManualClock
from postroom.domain.errors import Fatal
from postroom.domain.jobs import WEB_FETCH, WEB_VERIFY
from postroom.queue import JobContext, JobState
from postroom.queue.retention import Retention, prune
from postroom.reading.limited import ReadingLimits
from postroom.settings import BackfillSettings, WebSettings
from postroom.sim.web.server import DocumentChange, SiteFault, SiteSim, running_site
from postroom.web.discovery import DiscoveryMethod, fetch_job, verify_job
from postroom.web.extraction.web_reader import WebReader
from postroom.web.fetching.interface import DomainLimits
from tests.support.databases import on_sqlite
from tests.support.queues import run_until_idle
from tests.support.web_fetching import Pages, pages_on


@pytest.fixture
async def sim() -> AsyncIterator[SiteSim]:
    async with running_site(20) as site:
        yield site


@pytest.fixture
async def pages(database: Database, clock: ManualClock) -> AsyncIterator[Pages]:
    async with pages_on(database, clock) as opened:
        yield opened


async def _work(pages: Pages) -> None:
    await run_until_idle(pages.queue, {WEB_FETCH.name: pages.handler, WEB_VERIFY.name: pages.handler})


async def _item(database: Database, item_id: str) -> Any:
    query = select(discovered_items).where(discovered_items.c.id == item_id)
    return await database.read(lambda tx: tx.execute(query).one())


async def _count(database: Database, table: Any) -> int:
    return await database.read(lambda tx: tx.execute(select(func.count()).select_from(table)).scalar_one())


async def _jobs(database: Database) -> list[Any]:
    return await database.read(lambda tx: list(tx.execute(select(jobs).order_by(jobs.c.seq)).all()))


@pytest.mark.req("WB-1", "WB-4")
@pytest.mark.parametrize("method", [DiscoveryMethod.BACKFILL, DiscoveryMethod.SENTINEL])
async def test_a_discovered_page_becomes_evidence_with_its_text(
    sim: SiteSim, pages: Pages, database: Database, method: DiscoveryMethod
) -> None:
    document = sim.site.gazette.documents[0]
    item_id = await pages.discover(f"{sim.url}{document.path}", method)
    await _work(pages)
    item = await _item(database, item_id)
    assert (item.status, item.discovery_method, item.error) == ("FETCHED", method, None)
    kept = await database.read(lambda tx: tx.execute(select(evidence)).one())
    assert kept.id == item.evidence_id
    assert kept.source_slug == "gazette"
    text = await database.read(lambda tx: tx.execute(select(evidence_texts)).one())
    assert (text.title, text.published_on, text.language) == (document.title, document.day, "hr")
    assert (await _jobs(database))[0].state == JobState.COMPLETED


@pytest.mark.req("WB-1")
async def test_a_pdf_is_evidence_like_any_page(sim: SiteSim, pages: Pages, database: Database) -> None:
    item_id = await pages.discover(f"{sim.url}/documents/10.pdf")
    await _work(pages)
    assert (await _item(database, item_id)).status == "FETCHED"
    text = await database.read(lambda tx: tx.execute(select(evidence_texts)).one())
    assert "broj 10" in text.text


@pytest.mark.req("WB-4")
async def test_a_page_that_has_not_changed_is_only_verified(
    sim: SiteSim, pages: Pages, database: Database, clock: ManualClock
) -> None:
    item_id = await pages.discover(f"{sim.url}/documents/1")
    await _work(pages)
    clock.advance(86_400)
    for _ in range(2):  # the job's key may be used again
        await pages.queue.enqueue(verify_job(item_id))
        await _work(pages)
    assert [visit.status for visit in sim.journal.visits if "documents" in visit.path] == [200, 304, 304]
    kept = await database.read(lambda tx: tx.execute(select(evidence)).one())
    assert kept.last_verified_at > kept.fetched_at
    assert await _count(database, evidence_texts) == 1


@pytest.mark.req("WB-4")
async def test_a_page_that_changed_is_new_evidence(sim: SiteSim, pages: Pages, database: Database) -> None:
    item_id = await pages.discover(f"{sim.url}/documents/1")
    await _work(pages)
    first = (await _item(database, item_id)).evidence_id
    sim.site.change(DocumentChange(number=1))
    await pages.queue.enqueue(verify_job(item_id))
    await _work(pages)
    assert (await _item(database, item_id)).evidence_id != first
    assert await _count(database, evidence) == 2
    assert await _count(database, evidence_texts) == 2


@pytest.mark.req("WB-4")
async def test_a_page_that_is_gone_when_looked_at_again_stays_fetched(
    sim: SiteSim, pages: Pages, database: Database
) -> None:
    item_id = await pages.discover(f"{sim.url}/documents/1")
    await _work(pages)
    sim.site.faults.append(SiteFault(path="/documents/1", status=410))
    await pages.queue.enqueue(verify_job(item_id))
    await _work(pages)
    item = await _item(database, item_id)
    assert item.status == "FETCHED"
    assert "410" in item.error
    assert await _count(database, evidence) == 1


@pytest.mark.req("WB-7")
async def test_a_key_is_fetched_once_also_after_its_job_was_pruned(
    sim: SiteSim, pages: Pages, database: Database, clock: ManualClock
) -> None:
    """The third level of deduplication, alone."""
    item_id = await pages.discover(f"{sim.url}/documents/1")
    key = (await _item(database, item_id)).job_key
    again = fetch_job(item_id, key, DiscoveryMethod.BACKFILL)
    assert (await pages.queue.enqueue(again))[0].duplicate
    await _work(pages)
    await prune(database, pages.queue.catalogue, Retention(timedelta(days=-1), timedelta(days=-1)), clock)
    assert await _jobs(database) == []
    assert await _count(database, job_tombstones) == 1
    assert (await pages.queue.enqueue(again))[0].duplicate
    await _work(pages)
    assert sum("documents" in visit.path for visit in sim.journal.visits) == 1


@pytest.mark.req("WB-10")
async def test_a_hundred_completed_and_fifty_failed_jobs_are_kept(
    pages: Pages, database: Database, clock: ManualClock
) -> None:
    async def handle(context: JobContext) -> None:
        if context.job.payload["item"].startswith("bad"):
            raise Fatal("no such page")

    good = [fetch_job(f"good {number}", f"good {number}", DiscoveryMethod.BACKFILL) for number in range(105)]
    bad = [fetch_job(f"bad {number}", f"bad {number}", DiscoveryMethod.BACKFILL) for number in range(53)]
    await pages.queue.enqueue(*good, *bad)
    await run_until_idle(pages.queue, {WEB_FETCH.name: handle})
    await prune(database, pages.queue.catalogue, Retention(timedelta(days=14), timedelta(days=90)), clock)
    states = [job.state for job in await _jobs(database)]
    assert (states.count(JobState.COMPLETED), states.count(JobState.FAILED)) == (100, 50)
    assert await _count(database, job_tombstones) == 8
    assert all(answer.duplicate for answer in await pages.queue.enqueue(*good, *bad))


@pytest.mark.req("WB-10")
def test_a_fetch_is_tried_three_times_from_thirty_seconds() -> None:
    policy = WEB_FETCH.retry
    assert (policy.max_attempts, policy.first_delay, WEB_FETCH.keep_completed, WEB_FETCH.keep_failed) == (
        3,
        timedelta(seconds=30),
        100,
        50,
    )
    assert policy.factor > 1


@pytest.mark.req("WB-10")
async def test_trouble_is_waited_out_and_then_given_up(
    sim: SiteSim, pages: Pages, database: Database, clock: ManualClock
) -> None:
    sim.site.faults.append(SiteFault(path="/documents/1", status=500, times=3))
    item_id = await pages.discover(f"{sim.url}/documents/1")
    for attempt in (1, 2, 3):
        await _work(pages)
        (job,) = await _jobs(database)
        assert job.attempts == attempt
        clock.advance(3_600)
    assert job.state == JobState.FAILED
    item = await _item(database, item_id)
    assert item.status == "FAILED"
    assert "500" in item.error
    await pages.queue.retry(job.id)
    await _work(pages)
    assert (await _item(database, item_id)).status == "FETCHED"


@pytest.mark.req("WB-3")
async def test_retry_after_is_obeyed_by_every_page_of_the_domain(
    sim: SiteSim, pages: Pages, database: Database, clock: ManualClock
) -> None:
    sim.site.faults.append(SiteFault(path="/documents/1", status=429, retry_after="600"))
    await pages.discover(f"{sim.url}/documents/1", DiscoveryMethod.SENTINEL)
    await _work(pages)
    await pages.discover(f"{sim.url}/documents/2", DiscoveryMethod.SENTINEL)
    asked = len(sim.journal.visits)
    await _work(pages)
    clock.advance(590)
    await _work(pages)
    assert len(sim.journal.visits) == asked
    clock.advance(20)
    await _work(pages)
    assert {job.state for job in await _jobs(database)} == {JobState.COMPLETED}


@pytest.mark.req("WB-3")
async def test_what_robots_txt_forbids_is_skipped_with_its_reason(
    sim: SiteSim, pages: Pages, database: Database
) -> None:
    item_id = await pages.discover(f"{sim.url}/private/draft")
    await _work(pages)
    item = await _item(database, item_id)
    assert item.status == "SKIPPED"
    assert "robots.txt" in item.error
    (job,) = await _jobs(database)
    assert job.state == JobState.COMPLETED


@pytest.mark.req("WB-3", "WB-10")
async def test_a_page_without_a_turn_comes_back_and_spends_no_attempt(
    sim: SiteSim, database: Database, clock: ManualClock
) -> None:
    def slow(host: str) -> DomainLimits:
        return DomainLimits(host, 60.0, 60.0, 1)

    async with pages_on(database, clock, slow) as pages:
        for number in (1, 2, 3):
            await pages.discover(f"{sim.url}/documents/{number}", DiscoveryMethod.SENTINEL)
        await _work(pages)  # robots.txt takes the first turn
        waits = sorted(job.not_before for job in await _jobs(database))
        assert {job.attempts for job in await _jobs(database)} == {0}
        assert all(later - earlier >= timedelta(seconds=30) for earlier, later in pairwise(waits))
        for _ in range(10):
            clock.advance(61)
            await _work(pages)
        assert {job.state for job in await _jobs(database)} == {JobState.COMPLETED}
        assert {job.attempts for job in await _jobs(database)} == {1}


@pytest.mark.req("WB-1")
async def test_the_sentinel_does_not_wait_behind_a_backfill_of_the_same_domain(
    sim: SiteSim, database: Database, clock: ManualClock
) -> None:
    def slow(host: str) -> DomainLimits:
        return DomainLimits(host, 10.0, 10.0, 1)

    async with pages_on(database, clock, slow) as pages:
        for number in range(1, 20):
            await pages.discover(f"{sim.url}/about/{number}", DiscoveryMethod.BACKFILL)
        await _work(pages)
        live = await pages.discover(f"{sim.url}/about/live", DiscoveryMethod.SENTINEL)
        await _work(pages)
        for _ in range(8):
            clock.advance(5)
            await _work(pages)
        assert (await _item(database, live)).status == "FETCHED"


@pytest.mark.req("WB-10")
async def test_backfill_begins_two_pages_a_minute_and_the_sentinel_is_not_held_up(
    sim: SiteSim, database: Database, clock: ManualClock
) -> None:
    settings = WebSettings(timeout_s=5.0)
    assert settings.fetches_per_minute == 2
    async with pages_on(database, clock, settings=settings) as pages:
        for number in range(1, 7):
            await pages.discover(f"{sim.url}/documents/{number}", DiscoveryMethod.BACKFILL)
        begun = []
        for minute in range(4):
            for _ in range(6):
                await _work(pages)
                clock.advance(10)
            begun.append(sum("documents" in visit.path for visit in sim.journal.visits))
            if minute == 0:
                await pages.discover(f"{sim.url}/documents/11", DiscoveryMethod.SENTINEL)
                await _work(pages)
                assert any(visit.path == "/documents/11" for visit in sim.journal.visits)
        assert begun == [2, 5, 7, 7]


@pytest.mark.req("WB-1", "WB-6")
async def test_the_kill_switch_stops_backfill_within_a_job_and_loses_nothing(
    sim: SiteSim, pages: Pages, database: Database, clock: ManualClock
) -> None:
    def turn(on: bool) -> Any:
        settings = BackfillSettings(enabled=True)
        return database.write(lambda tx: kill_switch.turn(tx, settings, on, Actor("cli", "owner"), clock.now()))

    await turn(False)
    held = await pages.discover(f"{sim.url}/documents/1", DiscoveryMethod.BACKFILL)
    live = await pages.discover(f"{sim.url}/documents/2", DiscoveryMethod.SENTINEL)
    await _work(pages)
    assert (await _item(database, held)).status == "PENDING"
    assert (await _item(database, live)).status == "FETCHED"
    await turn(True)
    clock.advance(120)
    await _work(pages)
    assert (await _item(database, held)).status == "FETCHED"
    assert {job.attempts for job in await _jobs(database)} == {1}


@pytest.mark.req("WB-13")
@on_sqlite
async def test_a_page_that_breaks_its_reader_is_kept_with_a_note(
    sim: SiteSim, database: Database, clock: ManualClock
) -> None:
    reader = WebReader(ReadingLimits(memory_bytes=100 * 1024 * 1024))
    async with pages_on(database, clock, reader=reader) as pages:
        hostile = await pages.discover(f"{sim.url}/bombs/hungry.pdf", DiscoveryMethod.SENTINEL)
        good = await pages.discover(f"{sim.url}/documents/1", DiscoveryMethod.SENTINEL)
        await _work(pages)
    notes = {row.evidence_id: row.problem for row in await database.read(_texts)}
    assert notes[(await _item(database, hostile)).evidence_id].startswith("given up")
    assert notes[(await _item(database, good)).evidence_id] is None


def _texts(tx: Tx) -> list[Any]:
    return list(tx.execute(select(evidence_texts)).all())


@pytest.mark.req("WB-13")
@pytest.mark.parametrize("path", ["/redirect-to?url=http://169.254.169.254/", "/bombs/nested", "/redirect-loop/a"])
async def test_what_is_not_safe_fails_at_once_with_its_reason(
    sim: SiteSim, pages: Pages, database: Database, path: str
) -> None:
    item_id = await pages.discover(f"{sim.url}{path}")
    await _work(pages)
    item = await _item(database, item_id)
    assert item.status == "FAILED"
    assert item.error
    (job,) = await _jobs(database)
    assert (job.state, job.attempts) == (JobState.FAILED, 1)
    assert await _count(database, evidence) == 0


async def test_an_item_that_was_removed_fails_its_job(pages: Pages, database: Database) -> None:
    await pages.queue.enqueue(fetch_job("0199a1c2-7e5b-7abc-8def-0123456789ab", "k", DiscoveryMethod.BACKFILL))
    await _work(pages)
    (job,) = await _jobs(database)
    assert job.state == JobState.FAILED

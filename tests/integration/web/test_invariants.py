"""The invariants of spec/4, a test each, named for it. `docs/web.md` has the checklist with links to these."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from itertools import pairwise
from pathlib import Path

import pytest
from sqlalchemy import delete, select, text, update
from sqlalchemy.exc import DBAPIError, IntegrityError

from postroom.db import Database, Tx
from postroom.db.tables.queue import jobs
from postroom.db.tables.web import backfill_runs, discovered_items, evidence
from postroom.domain.clock import SystemClock
from postroom.domain.ids import new_id
from postroom.kill_switch import SwitchedOff
from postroom.queue import JobType, NewJob
from postroom.queue.retention import prune_surplus
from postroom.web.extraction.web_reader import WebReader
from postroom.web.fetching.interface import Purpose
from postroom.web.fetching.urls import backfill_job_id
from postroom.web.runs import NewRun, RunStatus
from postroom.web.sources import EndpointMode
from postroom.web.web_service import handlers
from tests.support.web_servers import Page, TinySite
from tests.support.web_sources import (
    ME,
    backfilled,
    contents,
    count,
    fetch_all,
    item_urls,
    job_keys,
    make_web,
    sources_file,
    turn,
    with_sitemap,
    write_sources,
)


@pytest.fixture
def follow(tmp_path: Path, site: TinySite) -> Path:
    """A home folder whose sources.toml follows the tiny site."""
    write_sources(tmp_path, sources_file(site.url))
    return tmp_path


@pytest.mark.req("WB-1")
async def test_inv_1_backfill_and_sentinel_write_the_same_items_and_one_pipeline_fetches_both(
    database: Database, follow: Path, site: TinySite
) -> None:
    web = make_web(database, follow, fetches_per_minute=6_000)
    first = with_sitemap(site, 3)
    await web.look()
    before = await contents(database, "backfill_runs", "web_endpoints", "jobs", "audit_log", "web_lanes")
    every = with_sitemap(site, 5)
    run = await backfilled(web)

    assert (run.discovered_count, run.queued_count, run.skipped_count) == (5, 2, 3)
    rows = await database.read(lambda tx: tx.execute(select(discovered_items)).all())
    by_method = {
        method: sorted(r.url for r in rows if r.discovery_method == method) for method in ("SENTINEL", "BACKFILL")
    }
    assert by_method == {"SENTINEL": first, "BACKFILL": every[3:]}
    assert len({row.endpoint_id for row in rows}) == 1
    after = await contents(database)
    assert [row for row in after["discovered_items"] if row in before["discovered_items"]] == before["discovered_items"]

    for url in every:
        site.pages[url.removeprefix(site.url)] = Page(f"<html><body><p>{url}</p></body></html>".encode())
    reader = WebReader()
    await fetch_all(web, handlers(web, reader), 5)
    assert await count(database, evidence) == 5


@pytest.mark.req("WB-2")
async def test_inv_2_every_queued_job_has_its_deterministic_id(
    database: Database, follow: Path, site: TinySite
) -> None:
    urls = with_sitemap(site, 3)
    await backfilled(make_web(database, follow))
    expected = sorted(f"backfill:tiny:{hashlib.sha1(url.encode()).hexdigest()[:12]}" for url in urls)  # noqa: S324
    assert await job_keys(database) == expected
    assert expected == sorted(backfill_job_id("tiny", url) for url in urls)


@pytest.mark.req("WB-3")
async def test_inv_3_requests_to_a_domain_keep_their_delay_with_jitter_across_processes(
    database: Database, follow: Path, site: TinySite
) -> None:
    """Two runs at once, as two processes would make them, of the same domain. Times are taken by the site."""
    with_sitemap(site, 1, "a")
    with_sitemap(site, 1, "b")
    arrivals: list[float] = []

    def timed(path: str) -> Page:
        arrivals.append(time.monotonic())
        return Page(b"User-agent: *\nAllow: /", "text/plain")

    site.pages["*"] = timed
    write_sources(follow, sources_file(site.url, "a", "b"))
    web = make_web(database, follow, min_delay_ms=60, max_delay_ms=140, max_concurrent=1)
    sources = await web.sources()

    async def ask(worker: int) -> None:
        async with web.open_client(sources) as client:
            for n in range(5):
                await client.fetcher.get(f"{site.url}/{worker}/{n}", purpose=Purpose.DISCOVERY)

    await asyncio.gather(ask(1), ask(2))
    gaps = [after - before for before, after in pairwise(arrivals)]
    assert len(gaps) >= 10
    assert min(gaps) >= 0.055
    assert max(gaps) - min(gaps) > 0.01


@pytest.mark.req("WB-4")
async def test_inv_4_evidence_cannot_be_changed_or_removed_by_any_sql(database: Database) -> None:
    """spec/4 TEST-3 too: a page that changed is new evidence beside the old."""

    def keep(tx: Tx, content: bytes) -> None:
        digest = hashlib.sha256(content).hexdigest()
        now = "2026-01-01T00:00:00.000000Z"
        statement = text(
            "INSERT INTO evidence (id, url, raw_content, content_hash, fetched_at, source_slug, last_verified_at) "
            "VALUES (:id, 'https://a.com/', :content, :digest, :now, 'a', :now) ON CONFLICT DO NOTHING"
        )
        tx.execute(statement, {"id": new_id(), "content": content, "digest": digest, "now": now})

    for content in (b"v1", b"v2", b"v1"):
        await database.write(lambda tx, content=content: keep(tx, content))  # type: ignore[misc]
    before = await contents(database)
    raw = evidence.c.keys().index("raw_content")
    assert sorted(row[raw] for row in before["evidence"]) == [b"v1", b"v2"]

    attacks = [
        update(evidence).values(raw_content=b"forged"),
        update(evidence).values(content_hash="0" * 64),
        update(evidence).values(fetched_at=text("'2030-01-01T00:00:00.000000Z'")),
        update(evidence).values(url="https://b.com/"),
        update(evidence).values(id=new_id()),
        delete(evidence),
        text("DELETE FROM evidence WHERE url = 'https://a.com/'"),
    ]
    for attack in attacks:
        with pytest.raises(DBAPIError, match="evidence is immutable"):
            await database.write(lambda tx, attack=attack: tx.execute(attack))  # type: ignore[misc]
    assert await contents(database) == before
    await database.write(lambda tx: tx.execute(update(evidence).values(etag='"x"')))
    assert await count(database, evidence, etag='"x"') == 2


@pytest.mark.req("WB-5")
async def test_inv_5_the_caps_of_run_and_source_are_never_passed(
    database: Database, follow: Path, site: TinySite
) -> None:
    """Three sources are walked at once; `test_caps.py` does the same with several processes."""
    for slug in ("a", "b", "c"):
        with_sitemap(site, 200, slug)
    write_sources(follow, sources_file(site.url, "a", "b", "c"))
    web = make_web(database, follow, concurrency=3)
    run = await backfilled(web, "a", "b", "c", max_urls=170, max_urls_per_source=75)
    assert run.status is RunStatus.COMPLETED
    assert run.discovered_count == run.queued_count == len(await item_urls(database)) == 170
    per_source = [run.of_source(slug).discovered for slug in ("a", "b", "c")]
    assert max(per_source) <= 75
    assert sum(per_source) == 170
    assert "cap of" in (run.status_reason or "")


@pytest.mark.req("WB-6")
async def test_inv_6_the_kill_switch_stops_all_backfill_and_not_the_sentinel(
    database: Database, follow: Path, site: TinySite
) -> None:
    with_sitemap(site, 3)
    off = make_web(database, follow, on=False)
    with pytest.raises(SwitchedOff, match="BACKFILL_ENABLED=true"):
        await backfilled(off)
    web = make_web(database, follow)
    created = await web.create(ME, NewRun(["tiny"], EndpointMode.SITEMAP))
    await turn(web, on=False)
    with pytest.raises(SwitchedOff):
        await web.start(ME, created.id)
    with pytest.raises(SwitchedOff):
        await web.hand_over(ME, NewRun(["tiny"], EndpointMode.SITEMAP))
    with pytest.raises(SwitchedOff):
        await web.create(ME, NewRun(["tiny"], EndpointMode.SITEMAP, dry_run=True))
    assert site.asked == []
    assert await item_urls(database) == []
    [look] = await web.look()
    assert look.new == 3


@pytest.mark.req("WB-7")
async def test_inv_7_level_1_an_item_is_unique_by_endpoint_and_url(
    database: Database, follow: Path, site: TinySite
) -> None:
    with_sitemap(site, 1)
    await backfilled(make_web(database, follow))
    [row] = await database.read(lambda tx: tx.execute(select(discovered_items)).all())
    twin = {**row._asdict(), "id": new_id(), "job_key": "another"}
    with pytest.raises(IntegrityError):
        await database.write(lambda tx: tx.execute(discovered_items.insert().values(**twin)))


@pytest.mark.req("WB-7")
async def test_inv_7_level_2_evidence_is_unique_by_url_and_content(database: Database) -> None:
    """Without the pipeline above it: the second row of the same content is not there, whoever writes it."""
    row = {"url": "https://a.com/", "raw_content": b"x", "content_hash": hashlib.sha256(b"x").hexdigest()}

    def keep(tx: Tx) -> None:
        now = SystemClock().now()
        tx.insert_missing(
            evidence, {"id": new_id(), **row, "fetched_at": now, "source_slug": "a", "last_verified_at": now}
        )

    await database.write(keep)
    await database.write(keep)
    assert await count(database, evidence) == 1


@pytest.mark.req("WB-7", "WB-10")
async def test_inv_7_level_3_a_job_is_enqueued_once_also_after_it_was_pruned(
    database: Database, follow: Path, site: TinySite
) -> None:
    web = make_web(database, follow)
    key = backfill_job_id("tiny", f"{site.url}/tiny/0")
    [first] = await web.queue.enqueue(NewJob("web.fetch", {"item": new_id()}, key=key))
    [second] = await web.queue.enqueue(NewJob("web.fetch", {"item": new_id()}, key=key))
    assert second.duplicate
    assert second.job_id == first.job_id
    assert await count(database, jobs, idempotency_key=key) == 1

    done = update(jobs).values(state="completed", ready=False, finished_at=web.queue.clock.now())
    await database.write(lambda tx: tx.execute(done))
    assert await prune_surplus(database, [JobType("web.fetch", keep_completed=0)]) == 1
    assert await count(database, jobs) == 0
    with_sitemap(site, 1)
    run = await backfilled(web)
    assert (run.discovered_count, run.queued_count) == (1, 0)
    assert await count(database, jobs) == 0


@pytest.mark.req("WB-8")
async def test_inv_8_every_run_is_in_the_table_with_its_counters_and_its_errors(
    database: Database, follow: Path, site: TinySite
) -> None:
    """A good one, a dry one and a failed one."""
    web = make_web(database, follow)
    with_sitemap(site, 60)
    site.sitemap_index("/tiny.xml", ["/one.xml", "/two.xml"])
    site.sitemap("/one.xml", [f"/x/{n}" for n in range(60)] + ["/x/0#again"])
    site.pages["/two.xml"] = Page(b"<html>oops</html>")
    good = await backfilled(web)
    dry = await backfilled(web, dry_run=True)
    site.pages["/tiny.xml"] = Page(b"gone", status=404)
    failed = await backfilled(web)

    rows = {row.id: row for row in await database.read(lambda tx: tx.execute(select(backfill_runs)).all())}
    assert set(rows) == {good.id, dry.id, failed.id}
    told = {
        id_: (r.status, r.discovered_count, r.queued_count, r.skipped_count, r.error_count, r.dry_run)
        for id_, r in rows.items()
    }
    assert told[good.id] == ("COMPLETED", 60, 60, 0, 1, False)
    assert told[dry.id] == ("COMPLETED", 60, 0, 60, 1, True)
    assert told[failed.id] == ("FAILED", 0, 0, 0, 1, False)
    for row in rows.values():
        [error] = json.loads(row.error_log)
        assert set(error) == {"at", "source", "url", "error"}
        assert row.run_by == "cli me"
        assert (row.sources, row.mode, row.max_urls, row.concurrency, row.delay_ms) == (["tiny"], "SITEMAP", 1000, 2, 0)
        assert row.created_at <= row.started_at <= row.finished_at <= row.updated_at
    assert "no sitemap" in rows[good.id].error_log
    assert "cannot be read" in rows[failed.id].status_reason
    assert rows[good.id].last_processed_source == "tiny"

"""A run killed with SIGKILL in the middle and resumed: nothing is lost, nothing is done or counted twice.

The site is a tiny one that can hold an answer back, so that the kill always comes at the same place.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import update

from postroom.db import Database, Tx, connect
from postroom.db.tables.queue import jobs
from postroom.db.tables.web import backfill_runs
from postroom.domain.jobs import WEB_BACKFILL
from postroom.web.runs import NewRun, RunStatus
from postroom.web.sources import EndpointMode
from postroom.web.web_service import WebService, handlers
from tests.support.commands import PostroomProcess, command
from tests.support.queues import run_until_idle, until
from tests.support.web_fetching import ReaderHere
from tests.support.web_servers import Page, TinySite
from tests.support.web_sources import ME, fetch_all, item_urls, job_keys, make_web, sources_file, write_sources

PAGES, ON_A_PAGE = 5, 8


def with_list(site: TinySite) -> list[str]:
    for page in range(1, PAGES + 1):
        items = [f"/item/{page}-{n}" for n in range(ON_A_PAGE)]
        site.list_page(f"/list/{page}", items, f"/list/{page + 1}" if page < PAGES else None)
    urls = [f"/item/{page}-{n}" for page in range(1, PAGES + 1) for n in range(ON_A_PAGE)]
    for url in urls:
        site.pages[url] = Page(f"<html><body><p>The page {url}</p></body></html>".encode())
    return urls


async def silent(database: Database, web: WebService) -> None:
    """As if two minutes had passed since the last sign of life."""
    then = web.queue.clock.now() - timedelta(minutes=3)

    def pass_time(tx: Tx) -> None:
        tx.execute(update(backfill_runs).values(heartbeat_at=then))
        tx.execute(update(jobs).where(jobs.c.not_before.is_not(None)).values(not_before=then))

    await database.write(pass_time)


@pytest.mark.req("WB-7", "WB-8", "WB-11")
async def test_a_killed_run_is_resumed_and_no_page_is_fetched_twice(
    database_url: str, tmp_path: Path, site: TinySite
) -> None:
    paths = with_list(site)
    write_sources(
        tmp_path,
        sources_file(
            site.url,
            mode="pagination",
            url=f"{site.url}/list/1",
            links='["/item/"]',
            more="min_delay_ms = 0\nmax_delay_ms = 0\nmax_concurrent = 4",
        ),
    )
    database = await connect(database_url)
    web = make_web(database, tmp_path, fetches_per_minute=6_000)
    variables = {"POSTROOM_DATABASE__URL": database_url, "BACKFILL_ENABLED": "true"}
    if database_url.startswith("sqlite"):
        (tmp_path / "postroom.db").symlink_to(database_url.removeprefix("sqlite:///"))
        del variables["POSTROOM_DATABASE__URL"]

    site.gated = frozenset({"/list/3"})
    backfill = ("web", "backfill", "--source", "tiny", "--mode", "pagination")
    process = PostroomProcess(*backfill, home=tmp_path, variables=variables)
    await process.start()
    await until(lambda: site.times("/list/3") == 1)
    await process.kill()
    await silent(database, web)
    [run] = await web.list_runs()
    assert (run.status, run.status_reason) == (RunStatus.FAILED, "silent for two minutes: its process is gone")
    assert run.discovered_count == 2 * ON_A_PAGE

    site.gate.set()
    done = await command(tmp_path, "web", "resume", run.id, "--json", **variables)
    assert done.code == 0, done.stderr
    told = done.json
    assert (told["status"], told["discovered_count"], told["queued_count"]) == ("COMPLETED", len(paths), len(paths))
    assert (told["skipped_count"], told["error_count"]) == (0, 0)
    assert [site.times(f"/list/{page}") for page in range(1, PAGES + 1)] == [1, 1, 2, 1, 1]
    assert await item_urls(database) == sorted(site.url + path for path in paths)
    assert len(await job_keys(database)) == len(paths)

    await fetch_all(web, handlers(web, ReaderHere()), len(paths))
    assert [site.times(path) for path in paths] == [1] * len(paths)
    await database.close()


@pytest.mark.req("WB-8", "WB-11")
async def test_a_run_whose_worker_died_goes_on_by_itself_when_it_is_silent(
    database: Database, tmp_path: Path, site: TinySite
) -> None:
    paths = with_list(site)
    write_sources(tmp_path, sources_file(site.url, mode="pagination", url=f"{site.url}/list/1", links='["/item/"]'))
    web = make_web(database, tmp_path, fetches_per_minute=6_000)
    backfill = {WEB_BACKFILL.name: handlers(web, ReaderHere())[WEB_BACKFILL.name]}
    run = await web.hand_over(ME, NewRun(sources=["tiny"], mode=EndpointMode.PAGINATION))
    await web.start(ME, run.id)

    await run_until_idle(web.queue, backfill)
    assert (await web.show(run.id)).status is RunStatus.RUNNING, "whoever began it may be at it still"

    await silent(database, web)
    await run_until_idle(web.queue, backfill)
    ended = await web.show(run.id)
    assert (ended.status, ended.discovered_count) == (RunStatus.COMPLETED, len(paths))

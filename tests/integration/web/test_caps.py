"""Caps that hold to the last address while several processes write into the same run."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path

import pytest

from postroom.db import Database, connect
from postroom.db.tables.web import backfill_run_urls
from postroom.web import runs
from postroom.web.runs import NewRun
from postroom.web.sources import EndpointMode
from tests.support.web_servers import TinySite
from tests.support.web_sources import (
    ME,
    backfilled,
    count,
    item_urls,
    job_keys,
    make_web,
    sources_file,
    with_sitemap,
    write_sources,
)

SLUGS = ("a", "b", "c")
MAX_URLS, PER_SOURCE = 127, 53


async def start(url: str, home: Path, run_id: str, slug: str) -> Process:
    arguments = ("-m", "tests.support.web_sources", url, str(home), run_id, slug, "400")
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdin=PIPE, stdout=PIPE)
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    return process


@pytest.mark.req("WB-5")
async def test_three_processes_at_once_take_exactly_what_the_caps_allow(
    database_url: str, tmp_path: Path, site: TinySite
) -> None:
    """All three sources list the same addresses: each counts once in the run, for whoever was first. No source can
    fill the run alone, and two cannot either."""
    write_sources(tmp_path, sources_file(site.url, *SLUGS))
    database = await connect(database_url)
    web = make_web(database, tmp_path)
    new = NewRun(list(SLUGS), EndpointMode.SITEMAP, max_urls=MAX_URLS, max_urls_per_source=PER_SOURCE)
    run = await web.begin(ME, new)

    processes = await asyncio.gather(*(start(database_url, tmp_path, run.id, slug) for slug in SLUGS))
    answers = await asyncio.gather(*(process.communicate(b"go\n") for process in processes))
    assert [process.returncode for process in processes] == [0, 0, 0]

    ended = await database.read(lambda tx: runs.find(tx, run.id))
    assert ended.discovered_count == ended.queued_count == MAX_URLS
    assert [ended.of_source(slug).discovered for slug in SLUGS] == [int(out) for out, _ in answers]
    assert max(ended.of_source(slug).discovered for slug in SLUGS) <= PER_SOURCE
    assert len(set(await item_urls(database))) == len(await item_urls(database)) == MAX_URLS
    assert len(await job_keys(database)) == await count(database, backfill_run_urls) == MAX_URLS
    await database.close()


@pytest.mark.req("WB-5")
async def test_what_is_known_already_counts_toward_no_cap(database: Database, tmp_path: Path, site: TinySite) -> None:
    """So that the same command again takes the next pages, until there are none."""
    write_sources(tmp_path, sources_file(site.url))
    web = make_web(database, tmp_path)
    with_sitemap(site, 130)
    taken = []
    for _ in range(4):
        run = await backfilled(web, max_urls=60)
        taken.append((run.discovered_count, run.queued_count, run.skipped_count))
        dry = await backfilled(web, max_urls=60, dry_run=True)
        assert dry.counters.new <= 60
    assert taken == [(60, 60, 0), (120, 60, 60), (130, 10, 120), (130, 0, 130)]

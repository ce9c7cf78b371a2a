"""`postroom web` as a person types it."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.commands import PostroomProcess, postroom
from tests.support.web_servers import Page, TinySite, tiny_site
from tests.support.web_sources import sources_file, with_sitemap, write_sources

QUICK = "min_delay_ms = 0\nmax_delay_ms = 0\nmax_concurrent = 4"


@pytest.fixture
async def site(home: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TinySite]:
    """A source called as in the specification, with backfill switched on."""
    monkeypatch.setenv("BACKFILL_ENABLED", "true")
    monkeypatch.setenv("POSTROOM_WEB__FETCHES_PER_MINUTE", "6000")
    async with tiny_site() as served:
        write_sources(home, sources_file(served.url, "porezna-uprava.gov.hr", more=QUICK))
        yield served


def sitemap(site: TinySite, many: int) -> list[str]:
    return with_sitemap(site, many, "porezna-uprava.gov.hr")


BACKFILL = ("web", "backfill", "--source", "porezna-uprava.gov.hr", "--mode", "sitemap", "--max-urls", "500")


@pytest.mark.req("WB-11")
async def test_a_dry_run_prints_the_three_lines_of_the_specification_and_a_table(site: TinySite) -> None:
    sitemap(site, 55)
    assert (await postroom(*BACKFILL)).code == 0
    sitemap(site, 342)
    done = await postroom(*BACKFILL, "--dry-run")
    lines = done.stdout.splitlines()
    assert done.code == 0, done.stderr
    assert lines[:3] == [
        "[backfill] DRY RUN - no jobs will be queued",
        "[backfill] Discovered 342 URLs from porezna-uprava.gov.hr",
        "[backfill] Would queue 287 new items (55 already exist)",
    ]
    assert lines[4].split() == ["source", "endpoint", "pages", "discovered", "to", "queue", "exist", "errors"]
    assert lines[5].split() == ["porezna-uprava.gov.hr", "main", "1", "342", "287", "55", "0"]


@pytest.mark.req("WB-6")
async def test_without_the_switch_nothing_runs_and_the_remedy_is_told(
    site: TinySite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BACKFILL_ENABLED")
    done = await postroom(*BACKFILL, "--dry-run")
    assert done.code == 1
    assert "BACKFILL_ENABLED=true" in done.stderr
    assert site.asked == []


@pytest.mark.req("WB-8", "WB-11")
async def test_runs_are_listed_shown_resumed_and_cancelled(site: TinySite) -> None:
    site.pages["/porezna-uprava.gov.hr.xml"] = Page(b"<html>", status=403)
    failed = await postroom(*BACKFILL)
    assert failed.code == 1
    assert "FAILED" in failed.stdout
    [listed] = (await postroom("web", "runs", "--json")).json
    assert (listed["status"], listed["error_count"], listed["run_by"][:3]) == ("FAILED", 1, "cli")
    assert "403" in (await postroom("web", "runs", listed["id"])).stdout

    sitemap(site, 4)
    resumed = await postroom("web", "resume", listed["id"], "--json")
    assert (resumed.code, resumed.json["status"], resumed.json["queued_count"]) == (0, "COMPLETED", 4)
    again = await postroom("web", "resume", listed["id"])
    assert (again.code, "only FAILED runs can be resumed" in again.stderr) == (2, True)
    assert (await postroom("web", "cancel", listed["id"])).code == 2

    queued = await postroom(*BACKFILL, "--queue", "--json")
    assert queued.json["status"] == "PENDING"
    assert (await postroom("web", "cancel", queued.json["id"], "--json")).json["status"] == "CANCELLED"


@pytest.mark.req("WB-1", "WB-11")
async def test_a_worker_drives_a_queued_run_and_fetches_what_it_found(site: TinySite, home: Path) -> None:
    for path in (url.removeprefix(site.url) for url in sitemap(site, 3)):
        site.pages[path] = Page(
            f"<html><head><title>Law {path}</title></head><body><p>{path}</p></body></html>".encode()
        )
    queued = await postroom(*BACKFILL, "--queue", "--json")
    ours = {name: value for name, value in os.environ.items() if name.startswith(("POSTROOM_", "BACKFILL_"))}
    worker = PostroomProcess("worker", home=home, variables=ours)
    await worker.start()
    while (source := (await postroom("web", "sources", "--json")).json[0])["fetched"] < 3:
        assert worker.is_running, worker.log
        await asyncio.sleep(0.1)
    code, log = await worker.end()
    assert code == 0, log
    assert source["waiting"] == 0
    run = (await postroom("web", "runs", queued.json["id"], "--json")).json
    assert (run["status"], run["queued_count"]) == ("COMPLETED", 3)
    hits = (await postroom("web", "evidence", "subject:law", "--json")).json
    assert len(hits) == 3
    assert "Law" in (await postroom("web", "evidence", "--show", hits[0]["id"])).stdout


async def test_the_sentinel_looks_by_hand_and_a_dry_look_changes_nothing(site: TinySite) -> None:
    sitemap(site, 5)
    dry = await postroom("web", "sentinel", "--dry-run", "--json")
    assert [(look["new"], look["known"]) for look in dry.json] == [(5, 0)]
    assert [look["new"] for look in (await postroom("web", "sentinel", "--json")).json] == [5]
    assert [look["known"] for look in (await postroom("web", "sentinel", "--json")).json] == [5]


async def test_pages_that_failed_are_listed_with_their_reason_and_asked_for_again(site: TinySite, home: Path) -> None:
    [url] = sitemap(site, 1)
    await postroom("web", "sentinel")
    assert (await postroom("web", "retry")).stdout.strip() == "No page failed."
    with sqlite3.connect(home / "postroom.db") as database:
        database.execute("UPDATE discovered_items SET status = 'FAILED', error = 'it burnt down'")
    database.close()
    [_, listed] = (await postroom("web", "retry", "--dry-run")).stdout.splitlines()
    assert listed.split() == ["porezna-uprava.gov.hr", url, "it", "burnt", "down"]
    assert (await postroom("jobs", "list", "--type", "web.verify", "--json")).json == []
    assert [item["url"] for item in (await postroom("web", "retry", "--json")).json] == [url]
    assert len((await postroom("jobs", "list", "--type", "web.verify", "--json")).json) == 1


@pytest.mark.req("WB-11")
async def test_off_a_terminal_progress_is_told_in_lines_and_the_dry_run_is_a_run(site: TinySite) -> None:
    sitemap(site, 120)
    done = await postroom(*BACKFILL, "--dry-run")
    lines = [line for line in done.stderr.splitlines() if line.startswith("[backfill]")]
    assert lines[-4:] == [
        "[backfill] Progress: 100/500 URLs",
        "[backfill]   Queued: 100",
        "[backfill]   Skipped: 0",
        "[backfill]   Errors: 0",
    ]
    assert sum("Progress:" in line for line in lines) == 2
    [run] = (await postroom("web", "runs", "--json")).json
    assert (run["dry_run"], run["status"], run["discovered_count"], run["queued_count"]) == (
        True,
        "COMPLETED",
        120,
        120,
    )


@pytest.mark.req("WB-3", "WB-11")
async def test_a_wait_is_told_before_it_begins(site: TinySite, home: Path) -> None:
    """A robots.txt that answers 500 keeps everything waiting for ten minutes; nobody should wonder why."""
    site.pages["/robots.txt"] = Page(b"", status=500)
    ours = {name: value for name, value in os.environ.items() if name.startswith(("POSTROOM_", "BACKFILL_"))}
    command = PostroomProcess(*BACKFILL, home=home, variables=ours)
    await command.start()
    while "Waiting until" not in command.log:
        assert command.is_running, command.log
        await asyncio.sleep(0.1)
    assert "robots.txt answered with status 500, so nothing is fetched from there" in command.log
    [run] = (await postroom("web", "runs", "--json")).json
    assert run["status"] == "RUNNING"
    assert run["status_reason"].startswith("waiting until ")
    code, log = await command.end()
    assert code == 1, log


async def test_a_source_is_added_by_its_address_and_managed_by_name(site: TinySite) -> None:
    site.feed("/feed", {"/1": "2026-01-01T00:00:00Z"})
    added = await postroom(
        "web", "add", f"{site.url}/feed", "--slug", "news", "--notify", "discord", "--every", "6h", "--allow-private"
    )
    assert added.code == 0, added.stderr
    assert "It is checked every 6 hours" in added.stdout
    assert added.stdout.splitlines()[:2] == [
        "It is a feed with 1 entry, 'News'.",
        f"Now following news: feed {site.url}/feed",
    ]
    listed = (await postroom("web", "sources", "--json")).json
    assert [(each["source"], each["origin"], each["paused"]) for each in listed] == [
        ("porezna-uprava.gov.hr", "file", False),
        ("news", "added", False),
    ]
    look = await postroom("web", "sentinel", "--source", "news")
    assert look.stdout.splitlines()[1].split()[:8] == ["news", "feed", *("1", "1", "0", "0", "0", "0")]
    assert (await postroom("web", "pause", "news")).code == 0
    assert "news is paused" in (await postroom("web", "sentinel", "--source", "news")).stderr
    assert (await postroom("web", "unpause", "news")).code == 0
    assert "news is checked weekly." in (await postroom("web", "schedule", "news", "weekly")).stdout
    of_file = await postroom("web", "schedule", "porezna-uprava.gov.hr", "weekly")
    assert (of_file.code, 'write there: every = "weekly"' in of_file.stderr) == (2, True)
    assert [each["every"] for each in (await postroom("web", "sources", "--json")).json] == ["daily", "weekly"]
    assert "overview, email" in (await postroom("web", "notify", "news", "overview", "email")).stdout
    assert (await postroom("web", "remove", "news")).code == 0
    refused = await postroom("web", "remove", "porezna-uprava.gov.hr")
    assert (refused.code, "is in sources.toml; remove it there" in refused.stderr) == (2, True)
    private = await postroom("web", "add", f"{site.url}/feed")
    assert (private.code, "add 127.0.0.1 to web.allow_private_hosts" in private.stderr) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (
            ("backfill", "--mode", "rss", "--source", "x"),
            "mode: 'rss' is not one of sitemap, archive, pagination, feed, page",
        ),
        (("backfill", "--mode", "sitemap", "--source", "x"), "there is no source 'x'"),
        (("backfill", "--mode", "sitemap", "--max-urls", "5000"), "max-urls: 5,000 is not within 1 to 1,000"),
        (("backfill", "--mode", "sitemap", "--from", "yesterday"), "from: 'yesterday' is not a day"),
        (("backfill", "--mode", "sitemap", "--dry-run", "--queue"), "queue: "),
        (("runs", "--status", "LOST"), "status: 'LOST' is not one of PENDING"),
        (("resume", "no-id"), "run: 'no-id' is not an id"),
        (("evidence", "--raw"), "raw: goes with --show"),
    ],
)
async def test_bad_usage_is_told_by_name(site: TinySite, arguments: tuple[str, ...], problem: str) -> None:
    done = await postroom("web", *arguments)
    assert done.code == 2
    assert problem in done.stderr


async def test_a_mistake_in_the_file_is_named_by_its_place(site: TinySite, home: Path) -> None:
    write_sources(home, '[[source]]\nslug = "x"\ndomains = ["e.com"]\nendpoint = []\n')
    done = await postroom("web", "sources")
    assert done.code == 2
    assert "sources.toml source 'x' endpoint" in done.stderr


async def test_without_sources_the_next_step_is_told(home: Path) -> None:
    done = await postroom("web", "sources")
    assert (done.code, "sources.toml" in done.stdout) == (0, True)
    assert json.loads((await postroom("web", "sources", "--json")).stdout) == []

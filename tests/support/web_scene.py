"""Web sources with something in every corner, for pages to show: endpoints, runs, kept pages, trouble."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from sqlalchemy import insert, update

from postroom.audit import Actor
from postroom.db import Tx
from postroom.db.tables.queue import jobs
from postroom.db.tables.web import backfill_runs, discovered_items, web_endpoints
from postroom.domain.ids import new_id
from postroom.queue import JobState
from postroom.websources import evidence, runs
from postroom.websources.config import Mode
from postroom.websources.extraction.model import Extracted
from postroom.websources.fetching.ports import Fetched, Validators
from postroom.websources.jobs import sentinel_job
from postroom.websources.run_model import Counters, NewRun, Run, WalkState, stored_walks
from postroom.websources.sentinel import Look
from tests.support.dashboards import Site
from tests.support.web_sources import write_sources

WHO = Actor("dashboard", "owner")
SITE = "https://gazette.example"
SOURCES = f"""
[[source]]
slug = "gazette"
name = "The Gazette"
domains = ["gazette.example"]

[[source.endpoint]]
name = "sitemap"
mode = "sitemap"
url = "{SITE}/sitemap.xml"

[[source.endpoint]]
name = "daily"
mode = "archive"
url = "{SITE}/{{yyyy}}/{{mm}}/{{dd}}"
first_day = 2012-01-01
sentinel = false

[[source]]
slug = "tax-office"
domains = ["tax.example"]

[[source.endpoint]]
name = "news"
mode = "pagination"
url = "https://tax.example/news"
"""


def follow(site: Site, text: str = SOURCES) -> None:
    write_sources(site.app.settings.home, text)


async def make_run(site: Site, *slugs: str, mode: Mode = Mode.SITEMAP, **new: Any) -> Run:
    """A run that waits for a worker. Needs backfill to be on."""
    return await site.app.web.hand_over(WHO, NewRun(sources=list(slugs or ("gazette",)), mode=mode, **new))


async def start_run(site: Site, run_id: str, found: int = 0, **columns: Any) -> None:
    """The run is under way and has found so many pages."""
    await site.app.web.start(WHO, run_id)
    walk = WalkState("gazette", "sitemap", counters=Counters(found, found))
    values = {
        "discovered_count": found,
        "queued_count": found,
        "walks": stored_walks({"gazette/sitemap": walk}),
        "updated_at": site.app.clock.now(),
        **columns,
    }
    await site.write(lambda tx: tx.execute(update(backfill_runs).where(backfill_runs.c.id == run_id).values(**values)))


async def fail_run(site: Site, run_id: str, reason: str, *errors: tuple[str, str]) -> None:
    now = site.app.clock.now()
    log = [{"at": now.isoformat(), "source": "gazette", "url": url, "error": error} for url, error in errors]
    values = {"error_log": json.dumps(log), "error_count": len(log)}

    def run(tx: Tx) -> None:
        tx.execute(update(backfill_runs).where(backfill_runs.c.id == run_id).values(**values))
        runs.fail(tx, runs.find(tx, run_id, lock=True), reason, WHO, now)
        tx.execute(update(jobs).where(jobs.c.type == "web.backfill").values(state=JobState.FAILED, finished_at=now))

    await site.write(run)


async def items(site: Site, statuses: dict[str, int], error: str | None = None, run_id: str | None = None) -> None:
    """So many discovered pages of each status, of the gazette's sitemap."""
    now = site.app.clock.now()

    def add(tx: Tx) -> None:
        endpoint = {"id": new_id(), "source_slug": "gazette", "name": "sitemap", "mode": "SITEMAP", "url": SITE}
        tx.insert_missing(web_endpoints, {**endpoint, "created_at": now, "sentinel_at": now - timedelta(hours=3)})
        endpoint_id = tx.execute(web_endpoints.select().where(web_endpoints.c.name == "sitemap")).one().id
        for status, count in statuses.items():
            for _ in range(count):
                item_id = new_id()
                row = {"id": item_id, "endpoint_id": endpoint_id, "status": status, "run_id": run_id}
                row |= {"url": f"{SITE}/item/{item_id}", "fetch_url": SITE, "discovery_method": "SENTINEL"}
                row |= {"job_key": item_id, "discovered_at": now, "updated_at": now}
                tx.execute(insert(discovered_items).values(**row, error=error if status == "FAILED" else None))

    await site.write(add)


async def looked(site: Site, *problems: str) -> None:
    """A worker's look at all sources, which met these problems."""
    now = site.app.clock.now()
    looks = [asdict(Look("gazette", "sitemap", new=3, problems=list(problems)))]
    (queued,) = await site.app.queue.enqueue(sentinel_job())
    done = {"state": JobState.COMPLETED, "ready": False, "finished_at": now, "result_json": json.dumps(looks)}
    await site.write(lambda tx: tx.execute(update(jobs).where(jobs.c.id == queued.job_id).values(**done)))


async def kept(
    site: Site,
    body: str | bytes,
    text: str | None = None,
    *,
    title: str | None = "A title",
    path: str = "/item/1",
    age: timedelta = timedelta(),
    content_type: str = "text/html",
    problem: str | None = None,
) -> str:
    """Evidence of a page with this content; its id. `text` is what was read out of it; None: not read yet."""
    content = body.encode() if isinstance(body, str) else body
    at = site.app.clock.now() - age
    url = f"{SITE}{path}"
    fetched = Fetched(
        url=url,
        final_url=url,
        status=200,
        content_type=content_type,
        charset=None,
        body=content,
        validators=Validators('"abc"', None),
        fetched_at=at,
    )

    def keep(tx: Tx) -> str:
        stored = evidence.keep(tx, url, "gazette", fetched)
        if text is not None:
            read = Extracted("plain 1", title=title, text=text, language="en", problem=problem)
            evidence.write_text(tx, stored.id, read, at)
        return stored.id

    return await site.write(keep)

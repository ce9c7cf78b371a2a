"""An installation that follows a small site: everything is real but the site, and nothing waits for politeness.

As a program it records what it found for one source of a run: `python -m tests.support.web_sources ARGUMENTS`. It says
when it is ready and begins on command, so that several begin together.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import Table, func, select

from postroom import kill_switch
from postroom.audit import Actor
from postroom.db import Database, Tx, connect
from postroom.db.tables.queue import jobs
from postroom.db.tables.web import discovered_items
from postroom.domain.clock import Clock, SystemClock
from postroom.domain.jobs import OF_WEB
from postroom.queue import Handler, JobCatalogue, JobQueue
from postroom.settings import BackfillSettings, DatabaseSettings, Settings, WebSettings
from postroom.telemetry import logs
from postroom.web import runs
from postroom.web.run_driver import RunLog, SeenAddresses
from postroom.web.runs import NewRun, Run
from postroom.web.sources import EndpointMode
from postroom.web.strategies import FoundPage, WalkPlace
from postroom.web.web_service import WebService
from tests.support.queues import run_until_idle
from tests.support.web_servers import TinySite

ME = Actor("dashboard", "cli me")


def sources_file(site_url: str, *slugs: str, more: str = "", **endpoint: str) -> str:
    """Sources that are all on the tiny site; by default each has its sitemap at /SLUG.xml."""
    text = ""
    for slug in slugs or ("tiny",):
        lines = {"name": "main", "mode": "sitemap", "url": f"{site_url}/{slug}.xml", **endpoint}
        text += f"""
[[source]]
slug = "{slug}"
domains = ["127.0.0.1"]
allow_private = true
{more}
[[source.endpoint]]
"""
        text += "".join(f"{name} = {value if value[:1] in '[0' else repr(value)}\n" for name, value in lines.items())
    return text


def make_web(database: Database, home: Path, clock: Clock | None = None, *, on: bool = True, **web: Any) -> WebService:
    quick = {"min_delay_ms": 0, "max_delay_ms": 0, "max_concurrent": 8, **web}
    settings = Settings(home=home, backfill=BackfillSettings(enabled=on), web=WebSettings(**quick))
    return WebService(settings, JobQueue(database, JobCatalogue(OF_WEB), clock or SystemClock()))


async def fetch_all(web: WebService, handlers: Mapping[str, Handler], pages: int) -> None:
    """Work until so many pages are fetched. One whose turn has not come is put off, and a worker that finds nothing
    else by then ends."""
    while await count(web.queue.database, discovered_items, status="FETCHED") < pages:
        await run_until_idle(web.queue, handlers)


def write_sources(home: Path, text: str) -> None:
    home.mkdir(exist_ok=True)
    (home / "sources.toml").write_text(text)


async def backfilled(web: WebService, *slugs: str, mode: EndpointMode = EndpointMode.SITEMAP, **new: Any) -> Run:
    """A run from its creation to its end."""
    return await web.drive(await web.begin(ME, NewRun(sources=list(slugs or ["tiny"]), mode=mode, **new)))


async def turn(web: WebService, on: bool) -> None:
    now = web.queue.clock.now()
    await web.queue.database.write(lambda tx: kill_switch.turn(tx, web.settings.backfill, on, ME, now))


async def count(database: Database, table: Table, **columns: Any) -> int:
    query = select(func.count()).select_from(table).where(*(table.c[name] == value for name, value in columns.items()))
    return int(await database.read(lambda tx: tx.execute(query).scalar_one()))


async def item_urls(database: Database) -> list[str]:
    query = select(discovered_items.c.url).order_by(discovered_items.c.url)
    return list(await database.read(lambda tx: tx.execute(query).scalars().all()))


async def job_keys(database: Database) -> list[str]:
    query = select(jobs.c.idempotency_key).where(jobs.c.type == "web.fetch").order_by(jobs.c.idempotency_key)
    return list(await database.read(lambda tx: tx.execute(query).scalars().all()))


async def contents(database: Database, *but: str) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every table, for tests that say that nothing else changed."""
    from postroom.db.tables import all_tables

    def everything(tx: Tx) -> dict[str, list[tuple[Any, ...]]]:
        tables = [
            t for t in all_tables().sorted_tables if t.info.get("only", tx.dialect) == tx.dialect and t.name not in but
        ]
        return {table.name: sorted(map(tuple, tx.execute(select(table)).all()), key=repr) for table in tables}

    return await database.read(everything)


def numbered(prefix: str, many: int) -> list[str]:
    return [f"/{prefix}/{n}" for n in range(many)]


def with_sitemap(site: TinySite, many: int, slug: str = "tiny") -> list[str]:
    """A sitemap of so many pages; returns their addresses."""
    paths = numbered(slug, many)
    site.sitemap(f"/{slug}.xml", paths)
    return [site.url + path for path in paths]


async def find(url: str, home: Path, run_id: str, slug: str, many: int) -> None:
    database = await connect(url, DatabaseSettings(synchronous="normal"))
    web = make_web(database, home)
    run = await database.read(lambda tx: runs.find(tx, run_id))
    source = (await web.sources())[slug]
    settings = web.settings
    log = RunLog(
        web.queue, settings.web, settings.backfill, run, source, source.endpoint[0], SeenAddresses(), lambda run: None
    )
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    fresh = 0
    for start in range(0, many, 7):
        items = [
            FoundPage(f"http://127.0.0.1/{n}", f"http://127.0.0.1/{n}") for n in range(start, min(start + 7, many))
        ]
        noted = await log.found(WalkPlace(page=start + 1, url=items[-1].url), items)
        fresh += noted.fresh
        if noted.stop is not None:
            break
    print(fresh, flush=True)
    await database.close()


if __name__ == "__main__":
    logs.configure(level="error")
    asyncio.run(find(sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4], int(sys.argv[5])))

"""An installation that follows a tiny site: everything is real but the site, and nothing waits for politeness."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import Table, func, select

from postroom import kill_switch
from postroom.audit import Actor
from postroom.db import Database, Tx
from postroom.db.tables.queue import jobs
from postroom.db.tables.web import discovered_items
from postroom.domain.clock import Clock, SystemClock
from postroom.queue import Catalogue, JobQueue
from postroom.settings import BackfillSettings, Settings, WebSettings
from postroom.websources.config import Mode
from postroom.websources.jobs import JOB_TYPES
from postroom.websources.run_model import NewRun, Run
from postroom.websources.service import WebSources
from tests.support.tiny_site import TinySite

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


def make_web(database: Database, home: Path, clock: Clock | None = None, *, on: bool = True, **web: Any) -> WebSources:
    quick = {"min_delay_ms": 0, "max_delay_ms": 0, "max_concurrent": 8, **web}
    settings = Settings(home=home, backfill=BackfillSettings(enabled=on), web=WebSettings(**quick))
    return WebSources(settings, JobQueue(database, Catalogue(JOB_TYPES), clock or SystemClock()))


def write_sources(home: Path, text: str) -> None:
    home.mkdir(exist_ok=True)
    (home / "sources.toml").write_text(text)


async def backfilled(web: WebSources, *slugs: str, mode: Mode = Mode.SITEMAP, **new: Any) -> Run:
    """A run from its creation to its end."""
    return await web.drive(await web.begin(ME, NewRun(sources=list(slugs or ["tiny"]), mode=mode, **new)))


async def turn(web: WebSources, on: bool) -> None:
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
    from postroom.db.tables import metadata

    def everything(tx: Tx) -> dict[str, list[tuple[Any, ...]]]:
        tables = [
            t for t in metadata.sorted_tables if t.info.get("only", tx.dialect) == tx.dialect and t.name not in but
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

"""The web sources of an installation: what each endpoint has brought, when it was looked at, and what went wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, select

from postroom import kill_switch
from postroom.dashboard.reading.web_runs import RunRow, recent_runs
from postroom.db import Tx
from postroom.db.tables.queue import jobs, schedules
from postroom.db.tables.web import discovered_items, web_endpoints
from postroom.domain.errors import BadInput
from postroom.kill_switch import SwitchState
from postroom.settings import Settings
from postroom.websources.config import FILE_NAME, Source, Sources
from postroom.websources.items import ItemStatus
from postroom.websources.jobs import SENTINEL_SCHEDULE, sentinel_job
from postroom.websources.overview import EndpointView, overview
from postroom.websources.service import WebSources

MOST_FAILED = 50
_MOST_PROBLEMS = 20


@dataclass(frozen=True, slots=True)
class SourceRow:
    slug: str
    name: str
    domains: Sequence[str]
    endpoints: Sequence[EndpointView]
    problems: Sequence[str]
    """What the last look at it met."""
    last_run: RunRow | None
    """The newest of the latest runs that went through it."""

    @property
    def found(self) -> int:
        return sum(each.waiting + each.fetched + each.failed + each.skipped for each in self.endpoints)


@dataclass(frozen=True, slots=True)
class LookRow:
    """The newest look at all sources by a worker."""

    job: str
    state: str
    finished_at: datetime | None
    error: str | None


@dataclass(frozen=True, slots=True)
class FailedPage:
    source: str
    url: str
    error: str | None
    failed_at: datetime


@dataclass(frozen=True, slots=True)
class WebOverview:
    sources: Sequence[SourceRow]
    problem: str | None
    """A mistake in the file of sources: nothing is looked at until it is mended."""
    file: str
    """Where the sources stand."""
    last_look: LookRow | None
    next_look: datetime | None
    """Null where no worker has run yet, or looking is switched off."""
    failed: Sequence[FailedPage]
    """Pages that could not be had, the newest first; not more than a page shows."""
    switch: SwitchState


@dataclass(frozen=True, slots=True)
class Found:
    """The file as it stands: its sources, or its mistake."""

    sources: Sources
    problem: str | None


def read_file(web: WebSources) -> Found:
    try:
        return Found(web.sources(), None)
    except BadInput as error:
        return Found(Sources({}), error.message)


def web_overview(tx: Tx, settings: Settings, found: Found) -> WebOverview:
    look = tx.execute(select(jobs).where(jobs.c.idempotency_key == sentinel_job().key)).one_or_none()
    return WebOverview(
        list(_sources(tx, found.sources, look)),
        found.problem,
        str(settings.home / FILE_NAME),
        None if look is None else LookRow(look.id, look.state, look.finished_at, look.last_error),
        tx.execute(select(schedules.c.next_at).where(schedules.c.name == SENTINEL_SCHEDULE)).scalar(),
        _failed(tx),
        kill_switch.state(tx, settings.backfill),
    )


def _sources(tx: Tx, sources: Sources, look: Row[Any] | None) -> Iterator[SourceRow]:
    views = overview(tx, sources)
    newest: dict[str, RunRow] = {}
    for run in recent_runs(tx):
        for slug in run.sources:
            newest.setdefault(slug, run)
    problems = _problems(look)
    for source in sources:
        of_source = [view for view in views if view.source == source.slug]
        met = problems.get(source.slug, ())[:_MOST_PROBLEMS]
        yield SourceRow(source.slug, _name(source), source.domains, of_source, met, newest.get(source.slug))


def _name(source: Source) -> str:
    return source.name or source.slug


def _problems(look: Row[Any] | None) -> dict[str, Sequence[str]]:
    """By source, from what the job of the look wrote down."""
    told = json.loads(look.result_json) if look is not None and look.result_json else []
    found: dict[str, Sequence[str]] = {}
    for each in told if isinstance(told, list) else ():
        said = [f"{each['endpoint']}: {problem}" for problem in each["problems"]]
        found[each["source"]] = [*found.get(each["source"], ()), *said]
    return found


def _failed(tx: Tx) -> list[FailedPage]:
    query = (
        select(
            web_endpoints.c.source_slug, discovered_items.c.url, discovered_items.c.error, discovered_items.c.updated_at
        )
        .join(web_endpoints, web_endpoints.c.id == discovered_items.c.endpoint_id)
        .where(discovered_items.c.status == ItemStatus.FAILED)
        .order_by(discovered_items.c.id.desc())
        .limit(MOST_FAILED)
    )
    return [FailedPage(*row) for row in tx.execute(query)]

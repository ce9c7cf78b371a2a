"""Web sources and their backfill runs: lists, and one run with its walks, errors and discovered pages."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import date, datetime
from typing import Any

from sqlalchemy import Row, Select, func, select

from postroom import kill_switch
from postroom.dashboard.forms import Form
from postroom.dashboard.paging import ListQuery, Paged, SortOrder, paged, row_before
from postroom.db import Tx
from postroom.db.tables.queue import jobs, schedules
from postroom.db.tables.web import backfill_runs, discovered_items, web_endpoints
from postroom.domain.errors import BadInput
from postroom.domain.jobs import WEB_SENTINEL
from postroom.kill_switch import SwitchState
from postroom.queue.job import FINISHED
from postroom.settings import BackfillSettings, Settings
from postroom.web import runs
from postroom.web.discovery import EndpointView, ItemStatus, overview
from postroom.web.runs import MOST_ERRORS_KEPT, Run, RunStatus, WalkState, backfill_job
from postroom.web.sentinel import SentinelReport, due_job, sentinel_job
from postroom.web.sources import FILE_NAME, CheckCadence, ConfiguredSources, EndpointMode, NoticeWay
from postroom.web.web_service import WebService

_ORDER = SortOrder((backfill_runs.c.id,), falling=("id",))
_RECENT = 200
_MOST_WALKS = 200


@dataclass(frozen=True, slots=True)
class RunRow:
    id: str
    status: RunStatus
    status_reason: str | None
    sources: Sequence[str]
    mode: EndpointMode
    dry_run: bool
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    max_urls: int
    discovered_count: int
    """Distinct addresses found."""
    queued_count: int
    """New ones, which are fetched."""
    skipped_count: int
    """Already known."""
    error_count: int
    run_by: str | None

    @property
    def is_over(self) -> bool:
        return self.status in (RunStatus.COMPLETED, RunStatus.CANCELLED)


@dataclass(frozen=True, slots=True)
class WalkRow:
    """The progress of one endpoint of a run."""

    source: str
    endpoint: str
    is_done: bool
    pages: int
    """Pages of the site's listings that were read."""
    discovered: int
    queued: int
    skipped: int
    errors: int


@dataclass(frozen=True, slots=True)
class RunError:
    at: str
    source: str
    url: str
    error: str


@dataclass(frozen=True, slots=True)
class RunDetail:
    run: RunRow
    date_from: datetime | None
    date_to: datetime | None
    """Excluded."""
    max_urls_per_source: int
    concurrency: int
    delay_ms: int
    heartbeat_at: datetime | None
    is_silent: bool
    """It is marked as running, but its process no longer reports."""
    last_url: str | None
    last_page: int | None
    walks: Sequence[WalkRow]
    items: dict[ItemStatus, int]
    """The pages that it found, by status."""
    errors: Sequence[RunError]
    """The first ones."""
    job: str | None
    """The job that waits for a worker or runs it."""
    can_resume: bool
    can_cancel: bool
    switch: SwitchState


class RunsQuery(ListQuery):
    status: RunStatus | None = None


def list_runs(tx: Tx, wanted: RunsQuery) -> Paged[RunRow]:
    """Newest first."""
    start = row_before(tx, backfill_runs, wanted.after)
    query = _rows().limit(wanted.limit + 1)
    if wanted.status is not None:
        query = query.where(backfill_runs.c.status == wanted.status)
    return paged([_row(row) for row in tx.execute(_ORDER.apply(query, start))], wanted.limit, lambda run: run.id)


def recent_runs(tx: Tx) -> list[RunRow]:
    """The latest, newest first: enough to find the last run of each source."""
    return [_row(row) for row in tx.execute(_ORDER.apply(_rows()).limit(_RECENT))]


def run_detail(tx: Tx, settings: BackfillSettings, run_id: str, now: datetime) -> RunDetail:
    run = runs.find(tx, run_id)
    row = _row(run)
    is_silent = runs.is_silent(run, now)
    job = _job(tx, run)
    return RunDetail(
        row,
        run.date_from,
        run.date_to,
        run.max_urls_per_source,
        run.concurrency,
        run.delay_ms,
        run.heartbeat_at,
        is_silent,
        run.last_processed_url,
        run.last_processed_page,
        list(_walks(run))[:_MOST_WALKS],
        _items(tx, run.id),
        [RunError(**entry) for entry in run.error_log[:MOST_ERRORS_KEPT]],
        job,
        can_resume=(run.status is RunStatus.FAILED or is_silent) and not run.dry_run and job is None,
        can_cancel=not row.is_over,
        switch=kill_switch.state(tx, settings),
    )


def _rows() -> Select[Any]:
    return select(*(backfill_runs.c[name] for name in RunRow.__slots__))


def _row(stored: Any) -> RunRow:
    values = {name: getattr(stored, name) for name in RunRow.__slots__}
    return RunRow(**values | {"status": RunStatus(stored.status), "mode": EndpointMode(stored.mode)})


def _walks(run: Run) -> Iterator[WalkRow]:
    """In the order of the run."""
    for slug in run.sources:
        for walk in run.walks.values():
            if walk.source == slug:
                yield _walk(walk)


def _walk(walk: WalkState) -> WalkRow:
    pages = 0 if walk.place is None else walk.place.page - (walk.place.url is None)
    counts = walk.counters
    return WalkRow(
        walk.source, walk.endpoint, walk.done, pages, counts.discovered, counts.queued, counts.skipped, counts.errors
    )


def _items(tx: Tx, run_id: str) -> dict[ItemStatus, int]:
    query = (
        select(discovered_items.c.status, func.count())
        .where(discovered_items.c.run_id == run_id)
        .group_by(discovered_items.c.status)
    )
    counts = {ItemStatus(status): count for status, count in tx.execute(query)}
    return {status: counts.get(status, 0) for status in ItemStatus}


def _job(tx: Tx, run: Run) -> str | None:
    alive = select(jobs.c.id).where(
        jobs.c.idempotency_key == backfill_job(run.id).key, jobs.c.state.not_in(list(FINISHED))
    )
    return tx.execute(alive).scalar()


MOST_FAILED = 50
_MOST_PROBLEMS = 20


@dataclass(frozen=True, slots=True)
class SourceRow:
    slug: str
    name: str
    domains: Sequence[str]
    endpoints: Sequence[EndpointView]
    origin: str
    """`file`, or `added`: by command, dashboard or tool."""
    is_outranked: bool
    """It was added as well, but what the file says counts."""
    paused: bool
    notify: Sequence[str]
    every: CheckCadence
    next_check: datetime | None
    """Null if it is not checked by itself."""
    looks: Sequence[SentinelReport]
    """What the last check did, by endpoint."""
    problems: Sequence[str]
    """Problems of the last check."""
    last_run: RunRow | None
    """The newest of the latest runs that included it."""

    @property
    def found(self) -> int:
        return sum(each.waiting + each.fetched + each.failed + each.skipped for each in self.endpoints)


@dataclass(frozen=True, slots=True)
class LookRow:
    """A worker's last check of all sources."""

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
    """An error in the sources file: nothing is checked until it is fixed."""
    file: str
    """The path of the sources file."""
    last_look: LookRow | None
    checked_at: datetime | None
    """When a source was last checked, by a worker or a command."""
    next_look: datetime | None
    """Of any source; null if no worker has run yet, or checking is switched off."""
    failed: Sequence[FailedPage]
    """Pages that could not be fetched, the newest 50."""
    switch: SwitchState


@dataclass(frozen=True, slots=True)
class SourcesFile:
    """The sources that are followed now, or the error of the file."""

    sources: ConfiguredSources
    problem: str | None


async def read_sources(web: WebService) -> SourcesFile:
    try:
        return SourcesFile(await web.sources(), None)
    except BadInput as error:
        return SourcesFile(ConfiguredSources({}), error.message)


def web_overview(tx: Tx, settings: Settings, found: SourcesFile, now: datetime) -> WebOverview:
    keys = [sentinel_job().key, due_job([]).key]
    newest_last = select(jobs).where(jobs.c.idempotency_key.in_(keys)).order_by(jobs.c.updated_at)
    looks = list(tx.execute(newest_last))
    look = next((each for each in looks if each.idempotency_key == sentinel_job().key), None)
    sources = list(_sources(tx, found.sources, looks, settings.recurring.sentinel, now))
    sentinel_at = tx.execute(select(schedules.c.next_at).where(schedules.c.name == WEB_SENTINEL.name)).scalar()
    checked = [each.looked_at for source in sources for each in source.endpoints if each.looked_at is not None]
    return WebOverview(
        sources,
        found.problem,
        str(settings.home / FILE_NAME),
        None if look is None else LookRow(look.id, look.state, look.finished_at, look.last_error),
        max(checked, default=None),
        min((each.next_check for each in sources if each.next_check is not None), default=sentinel_at),
        _failed(tx),
        kill_switch.state(tx, settings.backfill),
    )


def _sources(
    tx: Tx, sources: ConfiguredSources, checks: Sequence[Row[Any]], cadence: str, now: datetime
) -> Iterator[SourceRow]:
    views = overview(tx, sources, cadence, now)
    newest: dict[str, RunRow] = {}
    for run in recent_runs(tx):
        for slug in run.sources:
            newest.setdefault(slug, run)
    reports = {(each.source, each.endpoint): each for check in checks for each in _reports(check)}.values()
    for source in sources:
        slug = source.slug
        looks = [report for report in reports if report.source == slug]
        met = [f"{report.endpoint}: {problem}" for report in looks for problem in report.problems]
        yield SourceRow(
            slug,
            source.name or slug,
            source.domains,
            [view for view in views if view.source == slug],
            "added" if slug in sources.added else "file",
            slug in sources.outranked,
            slug in sources.paused,
            [str(way) for way in source.notify],
            source.every,
            next((view.next_check for view in views if view.source == slug and view.watched), None),
            looks,
            met[:_MOST_PROBLEMS],
            newest.get(slug),
        )


def _reports(look: Row[Any]) -> list[SentinelReport]:
    """The result of a check; of an earlier version it has fewer figures."""
    result = json.loads(look.result_json) if look.result_json else []
    known = {field.name for field in fields(SentinelReport)}
    listed = result if isinstance(result, list) else []
    return [SentinelReport(**{name: value for name, value in each.items() if name in known}) for each in listed]


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


MODES = [mode.lower() for mode in EndpointMode]


CADENCES = [str(every) for every in CheckCadence]
NOTICE_WAYS = [str(way) for way in NoticeWay]


def new_source_of(form: Form) -> dict[str, Any]:
    """The arguments of the tool, as a form asks for them."""
    return {
        "url": form["url"],
        "mode": form.one_of("mode", MODES).upper() if form["mode"] else None,
        "name": form.optional("name"),
        "domains": form["domains"].replace(",", " ").split(),
        "notify": list(form.all("notify")),
        "watched": not form.checked("unwatched"),
        "every": form.one_of("every", CADENCES) if form["every"] else CheckCadence.DAILY,
    }


def new_run_of(form: Form) -> dict[str, Any]:
    """The arguments of the tool, as a form asks for them."""
    return {
        "sources": list(form.all("sources")),
        "mode": form.one_of("mode", MODES).upper(),
        "max_urls": _count(form, "max_urls"),
        "max_urls_per_source": _count(form, "max_urls_per_source"),
        "date_from": _day(form, "date_from"),
        "date_to": _day(form, "date_to"),
        "dry_run": form.checked("dry_run"),
    }


def _count(form: Form, name: str) -> int | None:
    return form.number(name) if form[name] else None


def _day(form: Form, name: str) -> date | None:
    try:
        return date.fromisoformat(form[name]) if form[name] else None
    except ValueError:
        raise BadInput(name, f"{form[name]!r} is not a date; write for example 2024-01-31") from None

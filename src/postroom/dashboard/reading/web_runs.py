"""Backfill runs of web sources: the list, and one with its walks, its errors and what became of what it found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Select, func, select

from postroom import kill_switch
from postroom.dashboard.paging import PAGE, Order, Paged, paged
from postroom.db import Tx
from postroom.db.tables.queue import jobs
from postroom.db.tables.web import backfill_runs as table
from postroom.db.tables.web import discovered_items
from postroom.domain.errors import NotFound
from postroom.kill_switch import SwitchState
from postroom.queue.model import FINISHED
from postroom.settings import BackfillSettings
from postroom.websources import runs
from postroom.websources.config import Mode
from postroom.websources.items import ItemStatus
from postroom.websources.jobs import backfill_job
from postroom.websources.run_model import MOST_ERRORS_KEPT, Run, Status, WalkState

_ORDER = Order((table.c.id,), falling=("id",))
_RECENT = 200
_MOST_WALKS = 200


@dataclass(frozen=True, slots=True)
class RunRow:
    id: str
    status: Status
    status_reason: str | None
    sources: Sequence[str]
    mode: Mode
    dry_run: bool
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    max_urls: int
    discovered_count: int
    """Distinct addresses found."""
    queued_count: int
    """New ones, that are fetched."""
    skipped_count: int
    """Known already."""
    error_count: int
    run_by: str | None

    @property
    def is_over(self) -> bool:
        return self.status in (Status.COMPLETED, Status.CANCELLED)


@dataclass(frozen=True, slots=True)
class WalkRow:
    """How far one endpoint of a run is."""

    source: str
    endpoint: str
    is_done: bool
    pages: int
    """Pages of the site's lists that were read."""
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
    """It says that it runs, and has not been heard of: its process is gone."""
    last_url: str | None
    last_page: int | None
    walks: Sequence[WalkRow]
    items: dict[ItemStatus, int]
    """What became of the pages that it found."""
    errors: Sequence[RunError]
    """The first of them."""
    job: str | None
    """The job that waits for a worker, or drives it."""
    can_resume: bool
    can_cancel: bool
    switch: SwitchState


@dataclass(frozen=True, slots=True)
class RunsWanted:
    status: Status | None = None
    after: str | None = None
    limit: int = PAGE


def list_runs(tx: Tx, wanted: RunsWanted) -> Paged[RunRow]:
    """Newest first."""
    start = None
    if wanted.after is not None:
        start = tx.execute(select(table.c.id).where(table.c.id == wanted.after)).one_or_none()
        if start is None:
            raise NotFound("after", "that run is gone; begin the list again")
    query = _rows().limit(wanted.limit + 1)
    if wanted.status is not None:
        query = query.where(table.c.status == wanted.status)
    return paged([_row(row) for row in tx.execute(_ORDER.apply(query, start))], wanted.limit, lambda run: run.id)


def recent_runs(tx: Tx) -> list[RunRow]:
    """The latest, newest first: enough to find the last one of each source."""
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
        can_resume=(run.status is Status.FAILED or is_silent) and not run.dry_run and job is None,
        can_cancel=not row.is_over,
        switch=kill_switch.state(tx, settings),
    )


def _rows() -> Select[Any]:
    return select(*(table.c[name] for name in RunRow.__slots__))


def _row(stored: Any) -> RunRow:
    values = {name: getattr(stored, name) for name in RunRow.__slots__}
    return RunRow(**values | {"status": Status(stored.status), "mode": Mode(stored.mode)})


def _walks(run: Run) -> Iterator[WalkRow]:
    """In the order in which they are gone through."""
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

"""A backfill run as it stands in the database: what was asked for, how far each walk is, and what came of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import Row

from postroom.web.listings import DateWindow
from postroom.web.sources import Endpoint, EndpointMode, WebSource
from postroom.web.strategies import WalkPlace

MOST_ERRORS_KEPT = 100

_LONGEST_PROBLEM = 500


class RunStatus(StrEnum):
    PENDING = "PENDING"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


@dataclass(frozen=True, slots=True)
class Counters:
    discovered: int = 0
    queued: int = 0
    skipped: int = 0
    errors: int = 0

    def plus(self, other: Counters) -> Counters:
        return Counters(
            self.discovered + other.discovered,
            self.queued + other.queued,
            self.skipped + other.skipped,
            self.errors + other.errors,
        )


@dataclass(frozen=True, slots=True)
class WalkState:
    """How far one endpoint of a run is."""

    source: str
    endpoint: str
    place: WalkPlace | None = None
    done: bool = False
    counters: Counters = Counters()

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> WalkState:
        place, counters = stored["place"], Counters(**stored["counters"])
        lists = {name: tuple(place[name]) for name in ("pending", "visited", "again")} if place else {}
        return cls(**{**stored, "place": WalkPlace(**{**place, **lists}) if place else None, "counters": counters})


@dataclass(frozen=True, slots=True)
class NewRun:
    sources: list[str]
    mode: EndpointMode
    max_urls: int | None = None
    max_urls_per_source: int | None = None
    concurrency: int | None = None
    date_from: datetime | None = None
    date_to: datetime | None = None
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Run:
    id: str
    created_at: datetime
    updated_at: datetime
    status: RunStatus
    status_reason: str | None
    sources: list[str]
    mode: EndpointMode
    date_from: datetime | None
    date_to: datetime | None
    max_urls: int
    max_urls_per_source: int
    concurrency: int
    delay_ms: int
    dry_run: bool
    started_at: datetime | None
    finished_at: datetime | None
    discovered_count: int
    queued_count: int
    skipped_count: int
    error_count: int
    error_log: list[dict[str, Any]]
    run_by: str | None
    last_processed_source: str | None
    last_processed_page: int | None
    last_processed_url: str | None
    fence: int
    heartbeat_at: datetime | None
    walks: dict[str, WalkState] = field(repr=False)

    @property
    def window(self) -> DateWindow:
        return DateWindow(self.date_from, self.date_to)

    @property
    def counters(self) -> Counters:
        return Counters(self.discovered_count, self.queued_count, self.skipped_count, self.error_count)

    def of_source(self, slug: str) -> Counters:
        total = Counters()
        for walk in self.walks.values():
            if walk.source == slug:
                total = total.plus(walk.counters)
        return total


def walk_key(source: WebSource, endpoint: Endpoint) -> str:
    return f"{source.slug}/{endpoint.name}"


def with_error(run: Run, key: str, url: str, problem: str, now: datetime, times: int = 1) -> Run:
    """Counted always; kept in words while there is room, so that a hostile site cannot fill the row."""
    entry = {"at": now.isoformat(), "source": run.walks[key].source, "url": url[:_LONGEST_PROBLEM]}
    kept = [*run.error_log, {**entry, "error": problem[:_LONGEST_PROBLEM]}][:MOST_ERRORS_KEPT]
    return with_counters(replace(run, error_log=kept), key, Counters(errors=times))


def with_counters(run: Run, key: str, more: Counters, place: WalkPlace | None = None, *, done: bool = False) -> Run:
    walk = run.walks[key]
    total = run.counters.plus(more)
    place = place or walk.place
    walks = run.walks | {key: replace(walk, counters=walk.counters.plus(more), place=place, done=done)}
    return replace(
        run,
        discovered_count=total.discovered,
        queued_count=total.queued,
        skipped_count=total.skipped,
        error_count=total.errors,
        last_processed_source=walk.source,
        last_processed_page=None if place is None else place.page,
        last_processed_url=(place and place.url) or run.last_processed_url,
        walks=walks,
    )


def read_run(row: Row[Any]) -> Run:
    values = {field.name: getattr(row, field.name) for field in fields(Run)}
    walks = {key: WalkState.read(stored) for key, stored in row.walks.items()}
    parsed = {"status": RunStatus(row.status), "mode": EndpointMode(row.mode), "error_log": json.loads(row.error_log)}
    return Run(**values | parsed | {"walks": walks})


def stored_walks(walks: Mapping[str, WalkState]) -> dict[str, Any]:
    return {key: asdict(walk) for key, walk in walks.items()}


def progress_of(run: Run) -> dict[str, Any]:
    """The columns that say how far it is."""
    return {
        "discovered_count": run.discovered_count,
        "queued_count": run.queued_count,
        "skipped_count": run.skipped_count,
        "error_count": run.error_count,
        "error_log": json.dumps(run.error_log, ensure_ascii=False),
        "last_processed_source": run.last_processed_source,
        "last_processed_page": run.last_processed_page,
        "last_processed_url": run.last_processed_url,
        "walks": stored_walks(run.walks),
    }


def audited(run: Run) -> dict[str, Any]:
    """What the audit log keeps of it."""
    return {
        "status": run.status,
        "reason": run.status_reason,
        "sources": run.sources,
        "mode": run.mode,
        "dry_run": run.dry_run,
        "fence": run.fence,
        **asdict(run.counters),
    }

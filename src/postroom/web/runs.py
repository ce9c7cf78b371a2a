"""Backfill runs: the row of a run, and how it is created, started, resumed, completed, failed and cancelled.

`fence` grows with each start, so that a process that was thought dead cannot write into a run that has gone on
without it. A run that no process drives, or that the kill switch stops, becomes FAILED with the reason.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, Row, select, update

from postroom import audit, kill_switch
from postroom.audit import SYSTEM, Actor
from postroom.db import Tx
from postroom.db.tables.queue import jobs
from postroom.db.tables.web import backfill_runs
from postroom.domain.errors import BadInput, NotFound, Retryable
from postroom.domain.ids import new_id, parse_id
from postroom.domain.jobs import WEB_BACKFILL
from postroom.queue import NewJob, QueueName
from postroom.queue.job import FINISHED
from postroom.settings import BackfillSettings, WebSettings
from postroom.web.listings import DateWindow
from postroom.web.sources import ConfiguredSources, Endpoint, EndpointMode, WebSource
from postroom.web.strategies import WalkPlace

MOST_ERRORS_KEPT = 100

LONGEST_PROBLEM = 500


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

    @property
    def new(self) -> int:
        """Those that count toward the caps."""
        return self.discovered - self.skipped

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
    """Count an error, and keep its text if there is room: a hostile site must not fill the row."""
    entry = {"at": now.isoformat(), "source": run.walks[key].source, "url": url[:LONGEST_PROBLEM]}
    kept = [*run.error_log, {**entry, "error": problem[:LONGEST_PROBLEM]}][:MOST_ERRORS_KEPT]
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
        status_reason=None,
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
    """The columns of its progress; the reason of a running one is what it waits for."""
    return {
        "status_reason": run.status_reason,
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
    """What the audit log records of a run."""
    return {
        "status": run.status,
        "reason": run.status_reason,
        "sources": run.sources,
        "mode": run.mode,
        "dry_run": run.dry_run,
        "fence": run.fence,
        **asdict(run.counters),
    }


SILENCE = timedelta(minutes=2)
"""A running run without a heartbeat for this long has lost its process."""
MOST_LISTED = 500
SUBJECT = "web_run"
SILENT = "silent for two minutes: its process is gone"


class RunEvent(StrEnum):
    """What happens to a run. The value is its name in the audit log, after `web_run.`."""

    START = "start"
    RESUME = "resume"
    COMPLETE = "complete"
    FAIL = "fail"
    CANCEL = "cancel"


_MOVES: Mapping[RunEvent, tuple[frozenset[RunStatus], RunStatus]] = {
    RunEvent.START: (frozenset({RunStatus.PENDING}), RunStatus.RUNNING),
    RunEvent.RESUME: (frozenset({RunStatus.FAILED}), RunStatus.RUNNING),
    RunEvent.COMPLETE: (frozenset({RunStatus.RUNNING}), RunStatus.COMPLETED),
    RunEvent.FAIL: (frozenset({RunStatus.PENDING, RunStatus.RUNNING}), RunStatus.FAILED),
    RunEvent.CANCEL: (frozenset({RunStatus.PENDING, RunStatus.RUNNING, RunStatus.FAILED}), RunStatus.CANCELLED),
}


class RunLost(Retryable):
    """This process no longer holds the run: it was stopped, or another process resumed it."""


def create(
    tx: Tx,
    sources: ConfiguredSources,
    web: WebSettings,
    backfill: BackfillSettings,
    new: NewRun,
    who: Actor,
    now: datetime,
) -> Run:
    """A PENDING run. Refused while backfill is switched off, and if a cap exceeds the settings."""
    kill_switch.require_on(tx, backfill)
    slugs = list(dict.fromkeys(new.sources))
    if not slugs:
        raise BadInput("source", "name at least one")
    walks = _walks(sources, slugs, new.mode)
    if new.date_from is not None and new.date_to is not None and new.date_from >= new.date_to:
        raise BadInput("from", "lies after the last day")
    delays = [sources[slug].min_delay_ms for slug in slugs]
    values = {
        "id": new_id(),
        "created_at": now,
        "updated_at": now,
        "status": RunStatus.PENDING,
        "sources": slugs,
        "mode": new.mode,
        "date_from": new.date_from,
        "date_to": new.date_to,
        "max_urls": _within("max-urls", new.max_urls, web.max_urls_per_run),
        "max_urls_per_source": _within("max-urls-per-source", new.max_urls_per_source, web.max_urls_per_source),
        "concurrency": _within("concurrency", new.concurrency, web.concurrency),
        "delay_ms": min(web.min_delay_ms if delay is None else delay for delay in delays),
        "dry_run": new.dry_run,
        "run_by": who.name,
        "walks": stored_walks(walks),
    }
    run = read_run(tx.execute(backfill_runs.insert().values(**values).returning(backfill_runs)).one())
    audit.record(tx, who, f"{SUBJECT}.create", (SUBJECT, run.id), now, after=audited(run))
    return run


def find(tx: Tx, run_id: str, *, lock: bool = False) -> Run:
    run_id = parse_id(run_id, "run")
    query = select(backfill_runs).where(backfill_runs.c.id == run_id)
    row = tx.execute(tx.locking(query) if lock else query).one_or_none()
    if row is None:
        raise NotFound("run", f"there is no run {run_id}; `postroom web runs` shows those there are")
    return read_run(row)


def held(tx: Tx, run: Run) -> Run:
    """The current row, locked; raises RunLost if the caller no longer holds the run."""
    current = find(tx, run.id, lock=True)
    if current.status is not RunStatus.RUNNING or current.fence != run.fence:
        raise RunLost(f"The run {run.id} is {current.status} now: {current.status_reason or 'it went on elsewhere'}.")
    return current


def list_runs(tx: Tx, *, status: str | None = None, limit: int = 50) -> list[Run]:
    if not 1 <= limit <= MOST_LISTED:
        raise BadInput("limit", f"{limit} is not within 1 to {MOST_LISTED}")
    query = select(backfill_runs).order_by(backfill_runs.c.id.desc()).limit(limit)
    if status is not None:
        query = query.where(backfill_runs.c.status == _status(status))
    return [read_run(row) for row in tx.execute(query)]


def start(
    tx: Tx, sources: ConfiguredSources, settings: BackfillSettings, run_id: str, who: Actor, now: datetime
) -> Run:
    """From PENDING to RUNNING."""
    kill_switch.require_on(tx, settings)
    run = find(tx, run_id, lock=True)
    _require_endpoints(run, run.walks, sources)
    return _begin(tx, run, RunEvent.START, who, now)


def resume(
    tx: Tx, sources: ConfiguredSources, settings: BackfillSettings, run_id: str, who: Actor, now: datetime
) -> Run:
    """From FAILED to RUNNING; the walks go on where they were. A run that lost its process may be resumed at once."""
    run = resumable(tx, sources, settings, run_id, now)
    return _begin(tx, run, RunEvent.RESUME, who, now, walks=_resumed(run))


def resumable(tx: Tx, sources: ConfiguredSources, settings: BackfillSettings, run_id: str, now: datetime) -> Run:
    """The run, locked; raises BadInput if it cannot be resumed."""
    kill_switch.require_on(tx, settings)
    run = find(tx, run_id, lock=True)
    if is_silent(run, now):
        run = fail(tx, run, SILENT, SYSTEM, now)
    if run.status is not RunStatus.FAILED:
        raise BadInput("run", f"{run.id} is {run.status}; only FAILED runs can be resumed")
    if run.dry_run:
        raise BadInput("run", f"{run.id} is a dry run, which leaves nothing to go on from; start it again")
    _require_endpoints(run, _resumed(run), sources)
    return run


def complete(tx: Tx, run: Run, reason: str | None, now: datetime) -> Run:
    return _move(tx, run, RunEvent.COMPLETE, SYSTEM, now, status_reason=reason, finished_at=now)


def fail(tx: Tx, run: Run, reason: str, who: Actor, now: datetime) -> Run:
    return _move(tx, run, RunEvent.FAIL, who, now, status_reason=reason[:LONGEST_PROBLEM], finished_at=now)


def cancel(tx: Tx, run_id: str, who: Actor, now: datetime) -> Run:
    """Cancel permanently. What was discovered and queued stays; its process stops at its next database write."""
    run = find(tx, run_id, lock=True)
    return _move(tx, run, RunEvent.CANCEL, who, now, status_reason=f"cancelled by {who.name}", finished_at=now)


def is_silent(run: Run, now: datetime) -> bool:
    return run.status is RunStatus.RUNNING and until_silent(run, now) < timedelta()


def until_silent(run: Run, now: datetime) -> timedelta:
    """How long until a running run counts as lost without another heartbeat."""
    return (run.heartbeat_at or run.updated_at) + SILENCE - now


def beat(tx: Tx, run: Run, settings: BackfillSettings, now: datetime) -> Run:
    """Record a heartbeat. The returned run is FAILED if backfill has been switched off meanwhile."""
    current = held(tx, run)
    switch = kill_switch.state(tx, settings)
    if not switch.in_force:
        return fail(tx, current, f"backfill is off: {switch.reason}", SYSTEM, now)
    return save(tx, current, now)


def save(tx: Tx, run: Run, now: datetime) -> Run:
    """Record the progress, which counts as a heartbeat. The caller has the row locked."""
    values = {**progress_of(run), "heartbeat_at": now, "updated_at": now}
    tx.execute(update(backfill_runs).where(backfill_runs.c.id == run.id).values(**values))
    return replace(run, heartbeat_at=now, updated_at=now)


def _begin(tx: Tx, run: Run, event: RunEvent, who: Actor, now: datetime, **values: Any) -> Run:
    started = run.started_at or now
    begun = {"started_at": started, "finished_at": None, "heartbeat_at": now, "fence": run.fence + 1}
    if "walks" in values:
        values["walks"] = stored_walks(values["walks"])
    return _move(tx, run, event, who, now, status_reason=None, **begun, **values)


def _move(tx: Tx, run: Run, event: RunEvent, who: Actor, now: datetime, **values: Any) -> Run:
    """Change the status by an event, if it is still as it was read, and audit the change."""
    sources, target = _MOVES[event]
    if run.status not in sources:
        raise BadInput("run", f"{run.id} is {run.status}; it cannot {event} now")
    unchanged = (backfill_runs.c.id == run.id, backfill_runs.c.status == run.status, backfill_runs.c.fence == run.fence)
    changed = update(backfill_runs).where(*unchanged).values(status=target, updated_at=now, **values)
    row = tx.execute(changed.returning(backfill_runs)).one_or_none()
    if row is None:
        raise RunLost(f"The run {run.id} was changed by another process meanwhile.")
    moved = read_run(row)
    audit.record(tx, who, f"{SUBJECT}.{event}", (SUBJECT, run.id), now, before=audited(run), after=audited(moved))
    return moved


def _walks(sources: ConfiguredSources, slugs: list[str], mode: EndpointMode) -> dict[str, WalkState]:
    walks = {}
    for slug in slugs:
        endpoints = sources.require_active(slug).endpoints(mode)
        if not endpoints:
            raise BadInput("mode", f"the source {slug} has no endpoint of the mode {mode.lower()}")
        for endpoint in endpoints:
            walks[walk_key(sources[slug], endpoint)] = WalkState(slug, endpoint.name)
    return walks


def _resumed(run: Run) -> dict[str, WalkState]:
    """Its walks as they resume: failed pages come first."""
    return {
        key: replace(
            walk, done=walk.done and not (walk.place and walk.place.again), place=walk.place and walk.place.resumed()
        )
        for key, walk in run.walks.items()
    }


def _require_endpoints(run: Run, walks: Mapping[str, WalkState], sources: ConfiguredSources) -> None:
    """Raises if the file lacks an endpoint of an unfinished walk: the run would end as if it had been walked."""
    for key, walk in walks.items():
        source = sources.by_slug.get(walk.source)
        known = [] if source is None else [endpoint.name for endpoint in source.endpoints(run.mode)]
        if not walk.done and walk.endpoint not in known:
            problem = f"{run.id} is not through with {key} ({run.mode.lower()}), which is no longer followed"
            raise BadInput("run", f"{problem}; put it back, or cancel the run")


def _within(name: str, wanted: int | None, cap: int) -> int:
    if wanted is None:
        return cap
    if not 1 <= wanted <= cap:
        raise BadInput(name, f"{wanted:,} is not within 1 to {cap:,}; web settings set the cap")
    return wanted


def _status(text: str) -> RunStatus:
    try:
        return RunStatus(text.upper())
    except ValueError:
        raise BadInput("status", f"{text!r} is not one of {', '.join(RunStatus)}") from None


def fail_silent(tx: Tx, now: datetime) -> list[Run]:
    """Fail every running run whose process is gone."""
    silent = _locked(tx, RunStatus.RUNNING, backfill_runs.c.heartbeat_at < now - SILENCE)
    return [fail(tx, run, SILENT, SYSTEM, now) for run in silent]


def fail_abandoned(tx: Tx, now: datetime) -> list[Run]:
    """Fail every run that waits for a worker although its job has ended, for instance cancelled."""
    waiting = _locked(tx, RunStatus.PENDING, backfill_runs.c.updated_at < now - SILENCE)
    keys = {backfill_job(run.id).key: run for run in waiting}
    alive = select(jobs.c.idempotency_key).where(jobs.c.idempotency_key.in_(keys), jobs.c.state.not_in(list(FINISHED)))
    for key in tx.execute(alive).scalars():
        del keys[key]
    return [fail(tx, run, "its job ended before it began", SYSTEM, now) for run in keys.values()]


def fail_switched_off(tx: Tx, settings: BackfillSettings, now: datetime) -> list[Run]:
    """Fail all running runs while backfill is switched off; they can be resumed later."""
    switch = kill_switch.state(tx, settings)
    if switch.in_force:
        return []
    running = _locked(tx, RunStatus.RUNNING)
    return [fail(tx, run, f"backfill is off: {switch.reason}", SYSTEM, now) for run in running]


def _locked(tx: Tx, status: RunStatus, *conditions: ColumnElement[bool]) -> list[Run]:
    query = select(backfill_runs).where(backfill_runs.c.status == status, *conditions)
    return [read_run(row) for row in tx.execute(tx.locking(query, skip_locked=True)).all()]


def backfill_job(run_id: str) -> NewJob:
    """The job that drives a run."""
    return NewJob(WEB_BACKFILL.name, {"run": run_id}, queue=QueueName.HISTORY, key=f"web.backfill:{run_id}")

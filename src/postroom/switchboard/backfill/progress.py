"""What a connector reports of its work, and what it is told back.

Counts and cursor move together, so that nothing is counted twice or passed over. An operator's pause or cancel that
landed meanwhile is never overwritten, and the last batch still counts. A repeated report changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from postroom import kill_switch
from postroom.audit import Actor
from postroom.db import Tx
from postroom.domain.errors import BadInput
from postroom.domain.roles import Caller
from postroom.kill_switch import SwitchState
from postroom.settings import BackfillSettings
from postroom.switchboard.backfill import ledger, switch
from postroom.switchboard.backfill.leases import StaleFence, require_identity, retry_after
from postroom.switchboard.backfill.model import BackfillJob, change, find, move
from postroom.switchboard.backfill.transitions import Event, Status

MOST_ROWS = 1_000_000
LARGEST_CURSOR = 65_536
LONGEST_ERROR = 2_000

_LARGEST_NUMBER = 2**53
_MAY_REPORT = (Status.ACTIVE, Status.COMPLETED, Status.ERROR)


@dataclass(frozen=True, slots=True)
class Report:
    """Deltas since the last report. `cost_spent_cents` is the connector's own guess: only the ledger moves the cap."""

    job_id: str
    fence: int
    rows_processed: int = 0
    rows_skipped: int = 0
    cost_spent_cents: int = 0
    cursor: Mapping[str, Any] | None = None
    status: str | None = None
    error: str | None = None
    report_seq: int | None = None
    """Grows from report to report of a lease; a report that carries one can be repeated safely."""

    def __post_init__(self) -> None:
        _require_whole("fence", self.fence, 1, _LARGEST_NUMBER)
        for name in ("rows_processed", "rows_skipped", "cost_spent_cents"):
            _require_whole(name, getattr(self, name), 0, MOST_ROWS)
        if self.report_seq is not None:
            _require_whole("report_seq", self.report_seq, 1, _LARGEST_NUMBER)
        if self.status is not None and self.status not in set(_MAY_REPORT):
            raise BadInput("status", f"{self.status!r} is not one of {', '.join(_MAY_REPORT)}")
        if self.error is not None and self.status != Status.ERROR:
            raise BadInput("error", "goes together with status error")
        _require_cursor(self.cursor)


@dataclass(frozen=True, slots=True)
class ProgressReply:
    status: Status
    """Authoritative. Anything but active means: stop."""
    backfill_enabled: bool
    reason: str | None = None
    retry_after: float | None = None
    """Seconds until the job's hour has room for a message; None: at once."""


def progress(tx: Tx, settings: BackfillSettings, who: Caller, report: Report, now: datetime) -> ProgressReply:
    job = find(tx, report.job_id, lock=True)
    require_identity(who, job.endpoint_identity)
    if report.fence != job.fence:
        raise StaleFence()
    on = kill_switch.state(tx, settings)
    if not _is_repeated(job, report):
        job = _counted(tx, job, report, now)
        if job.status is Status.ACTIVE:
            job = _moved(tx, settings, who, job, report, on, now)
    wait = retry_after(tx, settings, job, now) if job.status is Status.ACTIVE else None
    return ProgressReply(job.status, on.in_force, job.status_reason or job.error, wait)


def _is_repeated(job: BackfillJob, report: Report) -> bool:
    """Seen before; or sent after the connector itself had ended the job."""
    seen = report.report_seq is not None and job.last_report_seq is not None
    return job.lease_holder is None or (seen and (report.report_seq or 0) <= (job.last_report_seq or 0))


def _counted(tx: Tx, job: BackfillJob, report: Report, now: datetime) -> BackfillJob:
    return change(
        tx,
        job,
        now,
        rows_processed=job.rows_processed + report.rows_processed,
        rows_skipped=job.rows_skipped + report.rows_skipped,
        reported_cost_cents=job.reported_cost_cents + report.cost_spent_cents,
        cursor=job.cursor if report.cursor is None else dict(report.cursor),
        last_report_seq=job.last_report_seq if report.report_seq is None else report.report_seq,
    )


def _moved(
    tx: Tx,
    settings: BackfillSettings,
    who: Caller,
    job: BackfillJob,
    report: Report,
    on: SwitchState,
    now: datetime,
) -> BackfillJob:
    """Where a running job goes from here: to its end, to a stop, or on under a renewed lease."""
    over = {"lease_holder": None, "lease_expires_at": None}
    if report.status == Status.COMPLETED:
        return move(tx, job, Event.COMPLETE, Actor.of(who), now, completed_at=now, **over)
    if report.status == Status.ERROR:
        error = (report.error or "the connector gave no reason")[:LONGEST_ERROR]
        return move(tx, job, Event.FAIL, Actor.of(who), now, error=error, **over)
    if not on.in_force:
        return switch.switch_off(tx, job, on, now)
    job = ledger.review(tx, settings, job, now)
    return renew(tx, settings, job, now) if job.status is Status.ACTIVE else job


def renew(tx: Tx, settings: BackfillSettings, job: BackfillJob, now: datetime) -> BackfillJob:
    return change(tx, job, now, lease_expires_at=now + timedelta(seconds=settings.lease_s))


def _require_whole(field: str, value: object, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise BadInput(field, f"{value!r} is not a whole number within {least} to {most}")


def _require_cursor(cursor: Mapping[str, Any] | None) -> None:
    if cursor is None:
        return
    if not isinstance(cursor, Mapping):
        raise BadInput("cursor", f"must be an object, not {type(cursor).__name__}")
    try:
        size = len(json.dumps(cursor, allow_nan=False).encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise BadInput("cursor", f"is not JSON: {error}") from None
    if size > LARGEST_CURSOR:
        raise BadInput("cursor", f"is {size:,} bytes; the most is {LARGEST_CURSOR:,}")

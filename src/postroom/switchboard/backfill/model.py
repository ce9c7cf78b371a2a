"""A backfill job as the code sees it, and how it is read, locked and changed in the database."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import date, datetime, timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import Row, Table, select, update

from postroom import audit
from postroom.audit import Actor
from postroom.db import Tx
from postroom.db.tables.backfill import BACKFILL_JOBS
from postroom.domain.errors import NotFound, Retryable
from postroom.domain.ids import parse_id
from postroom.domain.money import Micros, from_cents
from postroom.switchboard.backfill.transitions import Event, Status, after

SUBJECT = "backfill_job"

Json = Mapping[str, Any]


class Mode(StrEnum):
    SELECTIVE = "selective"
    BACKGROUND = "background"
    """Only while no live mail waits."""


class Include(StrEnum):
    """Mail that is left out unless asked for."""

    DRAFTS = "drafts"
    SENT = "sent"
    SPAM = "spam"
    TRASH = "trash"


@dataclass(frozen=True, slots=True)
class BackfillJob:
    id: str
    connector_type: str
    endpoint_identity: str
    target_categories: list[str]
    date_from: date
    date_to: date
    rate_limit_per_hour: int
    daily_cost_cap_cents: int
    status: Status
    cursor: dict[str, Any] | None
    rows_processed: int
    rows_skipped: int
    cost_spent_cents: int
    error: str | None
    created_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    updated_at: datetime
    mode: Mode
    includes: list[str]
    status_reason: str | None
    spent_microdollars: Micros
    reported_cost_cents: int
    auto_resume: bool
    capped_day: date | None
    refused_microdollars: Micros | None
    fence: int
    lease_holder: str | None
    lease_expires_at: datetime | None
    last_report_seq: int | None
    estimate: dict[str, Any] | None
    consent_at: datetime | None
    consent_by: str | None

    @property
    def cap(self) -> Micros:
        return from_cents(self.daily_cost_cap_cents)

    @property
    def audited(self) -> dict[str, Any]:
        """What the audit log keeps of it."""
        return {"status": self.status, "reason": self.status_reason, "error": self.error, "fence": self.fence}


def table(tx: Tx) -> Table:
    return BACKFILL_JOBS[tx.dialect]


def read(row: Row[Any]) -> BackfillJob:
    values = {field.name: getattr(row, field.name) for field in fields(BackfillJob)}
    return BackfillJob(**values | {"status": Status(row.status), "mode": Mode(row.mode)})


def find(tx: Tx, job_id: str, *, lock: bool = False) -> BackfillJob:
    """The job; locked until the transaction ends if it is about to change."""
    jobs, job_id = table(tx), parse_id(job_id, "job_id")
    query = select(jobs).where(jobs.c.id == job_id)
    row = tx.execute(tx.locking(query) if lock else query).one_or_none()
    if row is None:
        raise NotFound("job_id", f"there is no backfill job {job_id}; `postroom backfill list` shows those there are")
    return read(row)


def change(tx: Tx, job: BackfillJob, now: datetime, **values: object) -> BackfillJob:
    """Write these columns if the job is still as it was read: a status that has moved since is never overwritten."""
    jobs = table(tx)
    unchanged = (jobs.c.id == job.id) & (jobs.c.status == job.status) & (jobs.c.fence == job.fence)
    row = tx.execute(update(jobs).where(unchanged).values(**values, updated_at=now).returning(jobs)).one_or_none()
    if row is None:
        raise Retryable(f"The backfill job {job.id} was changed by somebody else meanwhile.", retry_after=timedelta())
    return read(row)


def move(tx: Tx, job: BackfillJob, event: Event, who: Actor, now: datetime, **values: object) -> BackfillJob:
    """Change the status by an event of the table, and write it into the audit log."""
    cleared = {"status_reason": None, "capped_day": None, "refused_microdollars": None}
    moved = change(tx, job, now, status=after(event, job.status), **(cleared | values))
    subject = (SUBJECT, job.id)
    audit.record(tx, who, f"backfill.{event}", subject, now, before=job.audited, after=moved.audited)
    return moved

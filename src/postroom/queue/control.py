"""What a person, or another job, does to jobs by hand: cancel them, and retry the failed ones."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from sqlalchemy import ColumnElement, Select, select, update

from postroom.db import Tx
from postroom.db.tables.queue import jobs
from postroom.domain.clock import require_utc
from postroom.domain.errors import BadInput, NotFound
from postroom.domain.ids import parse_id
from postroom.queue.enqueue import reserve
from postroom.queue.model import FINISHED, JobState


class CancelOutcome(StrEnum):
    """All three are success for a caller that only wants the job not to run (any more)."""

    CANCELED = "canceled"
    NOT_RUNNING = "not_running"  # it had already finished
    JOB_NOT_FOUND = "job_not_found"


def cancel(tx: Tx, job_id: str, now: datetime, *, dry_run: bool = False) -> CancelOutcome:
    """Cancel at once, in whatever state it is. A worker that runs it loses the right to complete it and is told."""
    job_id = parse_id(job_id, "job")
    state = tx.execute(tx.locking(select(jobs.c.state).where(jobs.c.id == job_id))).scalar()
    if state is None:
        return CancelOutcome.JOB_NOT_FOUND
    if state in FINISHED:
        return CancelOutcome.NOT_RUNNING
    if not dry_run:
        tx.execute(
            update(jobs)
            .where(jobs.c.id == job_id)
            .values(state=JobState.CANCELED, ready=False, lease_expires_at=None, finished_at=now, updated_at=now)
        )
    return CancelOutcome.CANCELED


@dataclass(frozen=True, slots=True)
class FailedJobs:
    """Which failed jobs are meant: those of a type, of a time window, or both."""

    type: str | None = None
    since: datetime | None = None
    until: datetime | None = None

    def __post_init__(self) -> None:
        if self.type is None and self.since is None and self.until is None:
            raise BadInput(
                "type", "name a job, a type, or a time window; retrying everything is never meant by accident"
            )
        for name in ("since", "until"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, require_utc(value, name))
        if self.since is not None and self.until is not None and self.since > self.until:
            raise BadInput("since", "lies after until")

    def conditions(self) -> list[ColumnElement[bool]]:
        conditions = [jobs.c.state == JobState.FAILED, jobs.c.finished_at.is_not(None)]  # as the index says it
        if self.type is not None:
            conditions.append(jobs.c.type == self.type)
        if self.since is not None:
            conditions.append(jobs.c.finished_at >= self.since)
        if self.until is not None:
            conditions.append(jobs.c.finished_at < self.until)
        return conditions

    def query(self) -> Select[tuple[str]]:
        return select(jobs.c.id).where(*self.conditions()).order_by(jobs.c.seq)


def retry_one(tx: Tx, job_id: str, now: datetime, *, dry_run: bool = False) -> None:
    """Queue a failed or cancelled job again, with all its attempts before it."""
    job_id = parse_id(job_id, "job")
    state = tx.execute(tx.locking(select(jobs.c.state).where(jobs.c.id == job_id))).scalar()
    if state is None:
        raise NotFound("job", f"there is no job {job_id}")
    if state not in (JobState.FAILED, JobState.CANCELED):
        raise BadInput("job", f"{job_id} is {state}; only failed and canceled jobs can be retried")
    if not dry_run:
        _arm(tx, [job_id], now)


def retry_failed(tx: Tx, which: FailedJobs, now: datetime, *, dry_run: bool = False) -> list[str]:
    """Queue all failed jobs that are meant; returns their ids, in the order in which they were first accepted."""
    ids = list(tx.execute(tx.locking(which.query(), skip_locked=True)).scalars())
    if not dry_run:
        _arm(tx, ids, now)
    return ids


def _arm(tx: Tx, ids: list[str], now: datetime) -> None:
    """Retried jobs join the end of their line: mail that came since is not made to wait for them."""
    armed = {
        "state": JobState.QUEUED,
        "ready": True,
        "attempts": 0,
        "not_before": None,
        "started_at": None,
        "finished_at": None,
        "queued_at": now,
        "updated_at": now,
    }
    for job_id, seq in zip(ids, reserve(tx, len(ids)), strict=True):
        tx.execute(update(jobs).where(jobs.c.id == job_id).values(seq=seq, **armed))

"""Jobs of the queue: counts, lists, one job with its steps."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import Select, func, literal, select, text

from postroom.dashboard.paging import PAGE, BoundedCount, Paged, SortOrder, bounded_count, paged
from postroom.db import Tx
from postroom.db.tables.queue import jobs
from postroom.domain.errors import NotFound
from postroom.domain.ids import parse_id
from postroom.domain.jobs import JobState
from postroom.domain.tiers import TIERS, Tier
from postroom.queue.inspection import JobRecord, StepRecord, depth, show_job
from postroom.queue.job import QueueName

_COUNTED = 5_000
"""So many waiting and failed jobs are counted by type."""


class JobPhase(StrEnum):
    """How a job stands, as a person sees it: the queue's `queued` is waiting, or scheduled for later."""

    WAITING = "waiting"
    SCHEDULED = "scheduled"
    RUNNING = "running"
    FAILED = "failed"
    COMPLETED = "completed"
    CANCELED = "canceled"


@dataclass(frozen=True, slots=True)
class JobRow:
    id: str
    type: str
    state: JobState
    queue: QueueName
    tier: Tier
    attempts: int
    max_attempts: int
    created_at: datetime
    not_before: datetime | None
    finished_at: datetime | None
    last_error: str | None


@dataclass(frozen=True, slots=True)
class QueueTierRow:
    """One tier of one queue."""

    queue: QueueName
    tier: Tier
    waiting: int
    running: int
    first_since: datetime | None
    """Since when the job that is next in this line has waited."""


@dataclass(frozen=True, slots=True)
class TypeCount:
    """Jobs of a type. Of very many waiting or failed ones only the first are counted."""

    type: str
    waiting: int
    running: int
    failed: int


@dataclass(frozen=True, slots=True)
class QueueOverview:
    standings: dict[JobPhase, BoundedCount]
    lines: list[QueueTierRow]
    types: list[TypeCount]


@dataclass(frozen=True, slots=True)
class JobDetail:
    job: JobRecord
    steps: list[StepRecord]
    can_retry: bool
    can_cancel: bool


@dataclass(frozen=True, slots=True)
class JobsWanted:
    standing: JobPhase | None = None
    type: str | None = None
    queue: QueueName | None = None
    tier: Tier | None = None
    after: str | None = None
    limit: int = PAGE


PHASE_CONDITIONS = {
    JobPhase.WAITING: text("jobs.state = 'queued' AND jobs.ready"),
    JobPhase.SCHEDULED: text("jobs.state = 'queued' AND NOT jobs.ready"),
    JobPhase.RUNNING: text("jobs.state = 'running'"),
    JobPhase.FAILED: text("jobs.state = 'failed' AND jobs.finished_at IS NOT NULL"),
    JobPhase.COMPLETED: text("jobs.state = 'completed' AND jobs.finished_at IS NOT NULL"),
    JobPhase.CANCELED: text("jobs.state = 'canceled' AND jobs.finished_at IS NOT NULL"),
}
"""In the very words of the partial indexes: SQLite uses one only if it can tell, and of a parameter it cannot."""

_NEWEST_FIRST = SortOrder((jobs.c.id,), falling=("id",))
_LAST_ENDED_FIRST = SortOrder((jobs.c.finished_at, jobs.c.id), falling=("finished_at", "id"))
_ORDERS = {
    JobPhase.WAITING: SortOrder(
        (jobs.c.queue_name, jobs.c.policy_tier, jobs.c.priority, jobs.c.seq), falling=("priority",)
    ),
    JobPhase.SCHEDULED: SortOrder((jobs.c.not_before, jobs.c.id)),
    JobPhase.RUNNING: SortOrder((jobs.c.worker_id, jobs.c.id)),
    JobPhase.FAILED: _LAST_ENDED_FIRST,
    JobPhase.COMPLETED: _LAST_ENDED_FIRST,
    JobPhase.CANCELED: _LAST_ENDED_FIRST,
}


def queue_overview(tx: Tx) -> QueueOverview:
    standings = {
        standing: bounded_count(tx, select(literal(1)).select_from(jobs).where(condition))
        for standing, condition in PHASE_CONDITIONS.items()
    }
    return QueueOverview(standings, queue_lines(tx), _types(tx))


def list_jobs(tx: Tx, wanted: JobsWanted) -> Paged[JobRow]:
    """Waiting jobs as they are served, scheduled ones as they fall due, running ones by worker, others newest first."""
    conditions = [
        column == value
        for column, value in (
            (jobs.c.type, wanted.type),
            (jobs.c.queue_name, wanted.queue),
            (jobs.c.policy_tier, wanted.tier),
        )
        if value is not None
    ]
    query = select(jobs).where(*conditions).limit(wanted.limit + 1)
    rows = tx.execute(_placed(tx, query, wanted)).all()
    page = paged(rows, wanted.limit, lambda row: str(row.id))
    return Paged([_row(row) for row in page.items], page.next)


def job_detail(tx: Tx, job_id: str) -> JobDetail:
    job, steps = show_job(tx, job_id)
    can_retry = job.state in (JobState.FAILED, JobState.CANCELED)
    return JobDetail(job, steps, can_retry, job.state in (JobState.QUEUED, JobState.RUNNING))


def _placed(tx: Tx, query: Select[Any], wanted: JobsWanted) -> Select[Any]:
    """In the order of what is wanted, from the job on that the page before ended with."""
    start = None if wanted.after is None else _start(tx, wanted.after)
    if wanted.standing is None:
        return _NEWEST_FIRST.apply(query, start)
    return _ORDERS[wanted.standing].apply(query.where(PHASE_CONDITIONS[wanted.standing]), start)


def _start(tx: Tx, after: str) -> Any:
    row = tx.execute(select(jobs).where(jobs.c.id == parse_id(after, "after"))).one_or_none()
    if row is None:
        raise NotFound("after", "the job that the page before ended with is gone; begin again at the first page")
    return row


def queue_lines(tx: Tx) -> list[QueueTierRow]:
    """All lines, the empty ones too: that a tier has nothing waiting is worth seeing."""
    waiting = depth(tx)
    running = Counter(
        (row.queue_name, row.policy_tier)
        for row in tx.execute(select(jobs.c.queue_name, jobs.c.policy_tier).where(PHASE_CONDITIONS[JobPhase.RUNNING]))
    )
    return [
        QueueTierRow(queue, tier, waiting.get((queue, tier), 0), running[queue, tier], _first_since(tx, queue, tier))
        for queue in QueueName
        for tier in TIERS
    ]


def _first_since(tx: Tx, queue: QueueName, tier: Tier) -> datetime | None:
    line = (jobs.c.queue_name == queue, jobs.c.policy_tier == tier, PHASE_CONDITIONS[JobPhase.WAITING])
    query = select(jobs.c.queued_at).where(*line).order_by(jobs.c.priority.desc(), jobs.c.seq).limit(1)
    since: datetime | None = tx.execute(query).scalar()
    return since


def _types(tx: Tx) -> list[TypeCount]:
    shown = (JobPhase.WAITING, JobPhase.RUNNING, JobPhase.FAILED)
    counts = {standing: _by_type(tx, standing) for standing in shown}
    names = sorted(set().union(*counts.values()))
    return [TypeCount(name, *(counts[standing].get(name, 0) for standing in shown)) for name in names]


def _by_type(tx: Tx, standing: JobPhase) -> dict[str, int]:
    some = select(jobs.c.type).where(PHASE_CONDITIONS[standing]).limit(_COUNTED).subquery()
    return {
        row.type: row.jobs for row in tx.execute(select(some.c.type, func.count().label("jobs")).group_by(some.c.type))
    }


def _row(row: Any) -> JobRow:
    return JobRow(
        id=row.id,
        type=row.type,
        state=JobState(row.state),
        queue=QueueName(row.queue_name),
        tier=Tier(row.policy_tier),
        attempts=row.attempts,
        max_attempts=row.max_attempts,
        created_at=row.created_at,
        not_before=row.not_before,
        finished_at=row.finished_at,
        last_error=row.last_error,
    )

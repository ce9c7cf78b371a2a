"""Reading the queue: lists, one job with its steps, and numbers. Never changes anything."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, func, select, text

from postroom.db import Tx
from postroom.db.tables.queue import job_steps, jobs
from postroom.domain.errors import BadInput, NotFound
from postroom.domain.ids import parse_id
from postroom.domain.jobs import JobState
from postroom.domain.tiers import Tier
from postroom.queue.job import FINISHED, Json, QueueName

MOST_JOBS_LISTED = 1_000


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job as it stands in the database."""

    id: str
    type: str
    state: JobState
    queue: QueueName
    tier: Tier
    priority: int
    payload: Json
    attempts: int
    max_attempts: int
    key: str | None
    not_before: datetime | None
    last_error: str | None
    result: Json
    worker_id: str | None
    heartbeat_at: datetime | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class StepRecord:
    name: str
    attempt: int
    started_at: datetime
    finished_at: datetime | None
    result: Json
    error: str | None


@dataclass(frozen=True, slots=True)
class QueueLine:
    """The jobs of one queue, tier and state; `ready` of them could be claimed now."""

    queue: QueueName
    tier: Tier
    state: JobState
    jobs: int
    ready: int
    oldest_ready_at: datetime | None


@dataclass(frozen=True, slots=True)
class JobFilter:
    state: str | None = None
    type: str | None = None
    queue: str | None = None
    limit: int = 50

    def __post_init__(self) -> None:
        if self.state is not None and self.state not in set(JobState):
            raise BadInput("state", f"{self.state!r} is not one of {', '.join(JobState)}")
        if self.queue is not None and self.queue not in set(QueueName):
            raise BadInput("queue", f"{self.queue!r} is not one of {', '.join(QueueName)}")
        if not 1 <= self.limit <= MOST_JOBS_LISTED:
            raise BadInput("limit", f"{self.limit} is not within 1 to {MOST_JOBS_LISTED}")


def list_jobs(tx: Tx, which: JobFilter) -> list[JobRecord]:
    """Newest first: by creation, or by when they ended if only finished jobs are wanted."""
    query = select(jobs).limit(which.limit)
    if which.state in FINISHED:
        query = query.where(jobs.c.finished_at.is_not(None)).order_by(jobs.c.finished_at.desc(), jobs.c.id.desc())
    else:
        query = query.order_by(jobs.c.id.desc())
    if which.state is not None:
        query = query.where(jobs.c.state == which.state)
    if which.type is not None:
        query = query.where(jobs.c.type == which.type)
    if which.queue is not None:
        query = query.where(jobs.c.queue_name == which.queue)
    return [_record(row) for row in tx.execute(query)]


def show_job(tx: Tx, job_id: str) -> tuple[JobRecord, list[StepRecord]]:
    job_id = parse_id(job_id, "job")
    row = tx.execute(select(jobs).where(jobs.c.id == job_id)).first()
    if row is None:
        raise NotFound("job", f"there is no job {job_id}; `postroom jobs list` shows the latest")
    steps = tx.execute(select(job_steps).where(job_steps.c.job_id == job_id).order_by(job_steps.c.id))
    return _record(row), [
        StepRecord(s.name, s.attempt, s.started_at, s.finished_at, _decode(s.result_json), s.error) for s in steps
    ]


def is_under_way(tx: Tx, key: str) -> bool:
    query = select(jobs.c.id).where(jobs.c.idempotency_key == key, jobs.c.state.not_in(FINISHED))
    return tx.execute(query).first() is not None


def stats(tx: Tx) -> list[QueueLine]:
    """How many jobs are in each line, in the order in which lines are served."""
    rows = tx.execute(
        select(
            jobs.c.queue_name,
            jobs.c.policy_tier,
            jobs.c.state,
            func.count().label("jobs"),
            func.count().filter(jobs.c.ready).label("ready"),
            func.min(jobs.c.queued_at).filter(jobs.c.ready).label("oldest"),
        ).group_by(jobs.c.queue_name, jobs.c.policy_tier, jobs.c.state)
    )
    lines = [
        QueueLine(QueueName(r.queue_name), Tier(r.policy_tier), JobState(r.state), r.jobs, r.ready, r.oldest)
        for r in rows
    ]
    places = [*QueueName, *Tier, *JobState]
    return sorted(lines, key=lambda line: [places.index(part) for part in (line.queue, line.tier, line.state)])


def depth(tx: Tx) -> dict[tuple[QueueName, Tier], int]:
    """How many jobs are ready in each line; reads only the index that claims read."""
    rows = tx.execute(
        select(jobs.c.queue_name, jobs.c.policy_tier, func.count())
        .where(text("state = 'queued' AND ready"))  # as the index says it: of a parameter SQLite cannot tell
        .group_by(jobs.c.queue_name, jobs.c.policy_tier)
    )
    return {(QueueName(queue), Tier(tier)): count for queue, tier, count in rows}


def _record(row: Row[Any]) -> JobRecord:
    return JobRecord(
        id=row.id,
        type=row.type,
        state=JobState(row.state),
        queue=QueueName(row.queue_name),
        tier=Tier(row.policy_tier),
        priority=row.priority,
        payload=_decode(row.payload_json),
        attempts=row.attempts,
        max_attempts=row.max_attempts,
        key=row.idempotency_key,
        not_before=row.not_before,
        last_error=row.last_error,
        result=_decode(row.result_json),
        worker_id=row.worker_id,
        heartbeat_at=row.heartbeat_at,
        created_at=row.created_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        updated_at=row.updated_at,
    )


def _decode(text: str | None) -> Json:
    """The stored value; damaged JSON is returned as text."""
    try:
        return None if text is None else json.loads(text)
    except ValueError:
        return text

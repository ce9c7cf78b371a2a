"""Reading the queue: lists, one job with its steps, and numbers. Never changes anything.

The statements are hand-written, so that a command which shows jobs can do without SQLAlchemy (`db/plain_sqlite.py`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, cast

from postroom.db import Reader
from postroom.db.database import driver_sql, read_time
from postroom.domain.errors import BadInput, NotFound
from postroom.domain.ids import parse_id
from postroom.domain.jobs import JobState
from postroom.domain.terms import Tier
from postroom.queue.job import FINISHED, Json, QueueName
from postroom.queue.sql import statements

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


_FIELDS = tuple(field.name for field in fields(JobRecord))
_TIMES = ("not_before", "heartbeat_at", "created_at", "started_at", "finished_at", "updated_at")

# The columns stand in the order of `JobRecord`.
_JOB = """
    SELECT id, type, state, queue_name, policy_tier, priority, payload_json, attempts, max_attempts, idempotency_key,
           not_before, last_error, result_json, worker_id, heartbeat_at, created_at, started_at, finished_at, updated_at
    FROM jobs"""

_STEPS = """
    SELECT name, attempt, started_at, finished_at, result_json, error FROM job_steps WHERE job_id = :id ORDER BY id"""

_UNFINISHED_WITH_KEY = """
    SELECT id FROM jobs WHERE idempotency_key = :key AND state NOT IN ('completed', 'failed', 'canceled')"""

_STATS = """
    SELECT queue_name, policy_tier, state, count(*), count(*) FILTER (WHERE ready), min(queued_at) FILTER (WHERE ready)
    FROM jobs GROUP BY queue_name, policy_tier, state"""


def list_jobs(reader: Reader, which: JobFilter) -> list[JobRecord]:
    """Newest first: by creation, or by when they ended if only finished jobs are wanted."""
    wanted = {"state": which.state, "type": which.type, "queue_name": which.queue}
    conditions = [f"{column} = :{column}" for column, value in wanted.items() if value is not None]
    order = "id DESC"
    if which.state in FINISHED:
        conditions.append("finished_at IS NOT NULL")
        order = "finished_at DESC, id DESC"
    where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
    return [_record(row) for row in _rows(reader, f"{_JOB} {where} ORDER BY {order} LIMIT {which.limit:d}", **wanted)]


def show_job(reader: Reader, job_id: str) -> tuple[JobRecord, list[StepRecord]]:
    job_id = parse_id(job_id, "job")
    found = _rows(reader, f"{_JOB} WHERE id = :id", id=job_id)
    if not found:
        raise NotFound("job", f"there is no job {job_id}; `postroom jobs list` shows the latest")
    return _record(found[0]), [_step(*row) for row in _rows(reader, _STEPS, id=job_id)]


def is_under_way(reader: Reader, key: str) -> bool:
    return bool(_rows(reader, _UNFINISHED_WITH_KEY, key=key))


def stats(reader: Reader) -> list[QueueLine]:
    """How many jobs are in each line, in the order in which lines are served."""
    lines = [
        QueueLine(QueueName(queue), Tier(tier), JobState(state), jobs, ready, read_time(oldest))
        for queue, tier, state, jobs, ready, oldest in _rows(reader, _STATS)
    ]
    places = [*QueueName, *Tier, *JobState]
    return sorted(lines, key=lambda line: [places.index(part) for part in (line.queue, line.tier, line.state)])


def depth(reader: Reader) -> dict[tuple[QueueName, Tier], int]:
    """How many jobs are ready in each line; reads only the index that claims read."""
    lines = reader.rows(statements(reader.dialect).depth)
    return {(QueueName(queue), Tier(tier)): count for queue, tier, count in lines if count}


def _rows(reader: Reader, sql: str, **parameters: str | None) -> Sequence[Sequence[Any]]:
    return reader.rows(driver_sql(reader.dialect, sql), parameters)


def _record(row: Sequence[Any]) -> JobRecord:
    job = dict(zip(_FIELDS, row, strict=True))
    times = {name: read_time(job[name]) for name in _TIMES}
    enums = {"state": JobState(job["state"]), "queue": QueueName(job["queue"]), "tier": Tier(job["tier"])}
    return JobRecord(**job | times | enums | {name: _decode(job[name]) for name in ("payload", "result")})


def _step(name: str, attempt: int, started: Any, finished: Any, result: str | None, error: str | None) -> StepRecord:
    started_at = cast(datetime, read_time(started))
    return StepRecord(name, attempt, started_at, read_time(finished), _decode(result), error)


def _decode(text: str | None) -> Json:
    """The stored value; damaged JSON is returned as text."""
    try:
        return None if text is None else json.loads(text)
    except ValueError:
        return text

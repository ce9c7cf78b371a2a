"""What a handler did within one attempt, written as it happens, so that a failure can be understood later.

A step is written before its work and again after it. Both writes check the claim, so a worker that has lost its lease
is stopped here instead of acting on the outside.
"""

from __future__ import annotations

import json
from datetime import datetime

from sqlalchemy import insert, select, update

from postroom.db import Tx
from postroom.db.tables.queue import job_steps, jobs
from postroom.domain.errors import PostroomError
from postroom.domain.ids import new_id
from postroom.queue.model import ClaimedJob, Json


class LeaseLost(PostroomError):
    """This job was cancelled or handed to another worker; what this one still does would be done twice."""


def check_claim(tx: Tx, job: ClaimedJob) -> None:
    """Raise LeaseLost unless this claim is still the one in force; holds until the transaction ends."""
    query = select(jobs.c.id).where(
        jobs.c.id == job.id, jobs.c.fence == job.fence, jobs.c.lease_expires_at.is_not(None)
    )
    if tx.execute(tx.locking(query)).first() is None:
        raise LeaseLost()


def begin(tx: Tx, job: ClaimedJob, name: str, now: datetime) -> str:
    check_claim(tx, job)
    step_id = new_id()
    tx.execute(insert(job_steps).values(id=step_id, job_id=job.id, name=name, attempt=job.attempt, started_at=now))
    return step_id


def end(tx: Tx, job: ClaimedJob, step_id: str, now: datetime, *, result: Json = None, error: str | None = None) -> None:
    check_claim(tx, job)
    encoded = None if result is None else json.dumps(result)
    tx.execute(
        update(job_steps).where(job_steps.c.id == step_id).values(finished_at=now, result_json=encoded, error=error)
    )

"""What a handler is given: its job, and ways to act that fail once another worker or a cancellation has taken the job
away.

A step is written before its work and again after it. Both writes check the claim, so a worker that has lost its lease
is stopped here instead of acting on the outside.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TypeVar

from sqlalchemy import insert, select, update

from postroom.db import Tx
from postroom.db.tables.queue import job_steps, jobs
from postroom.domain.errors import PostroomError
from postroom.domain.ids import new_id
from postroom.domain.jobs import JobState
from postroom.queue.claims import settle_within
from postroom.queue.job import ClaimedJob, Json
from postroom.queue.jobqueue import JobQueue
from postroom.queue.outcome import Settlement, describe, encode_result


class LeaseLost(PostroomError):
    """This job was cancelled or handed to another worker; what this one still does would be done twice."""


def check_claim(tx: Tx, job: ClaimedJob) -> None:
    """Raise LeaseLost unless this claim is still the one in force; holds until the transaction ends."""
    query = select(jobs.c.id).where(
        jobs.c.id == job.id, jobs.c.fence == job.fence, jobs.c.lease_expires_at.is_not(None)
    )
    if tx.execute(tx.locking(query)).first() is None:
        raise LeaseLost()


def begin_step(tx: Tx, job: ClaimedJob, name: str, now: datetime) -> str:
    check_claim(tx, job)
    step_id = new_id()
    tx.execute(insert(job_steps).values(id=step_id, job_id=job.id, name=name, attempt=job.attempt, started_at=now))
    return step_id


def end_step(
    tx: Tx, job: ClaimedJob, step_id: str, now: datetime, *, result: Json = None, error: str | None = None
) -> None:
    check_claim(tx, job)
    encoded = None if result is None else json.dumps(result)
    tx.execute(
        update(job_steps).where(job_steps.c.id == step_id).values(finished_at=now, result_json=encoded, error=error)
    )


T = TypeVar("T")


class JobStep:
    """A step under way; what is assigned to `result` is kept with it."""

    result: Json = None


class JobContext:
    def __init__(self, queue: JobQueue, job: ClaimedJob) -> None:
        self.queue = queue
        self.job = job
        self.is_completed = False

    async def write(self, transaction: Callable[[Tx], T]) -> T:
        """Run a transaction that is committed only if this job is still ours."""

        def run(tx: Tx) -> T:
            check_claim(tx, self.job)
            return transaction(tx)

        return await self.queue.database.write(run)

    async def complete(self, transaction: Callable[[Tx], Json]) -> None:
        """Commit the handler's effects and the job's completion together: both happen, once, or neither does."""

        def run(tx: Tx) -> None:
            check_claim(tx, self.job)
            result = encode_result(transaction(tx))
            done = Settlement(JobState.COMPLETED, self.job.attempt, result_json=result)
            if settle_within(tx, [(self.job, done)], self.queue.clock.now()):
                raise LeaseLost()

        await self.queue.database.write(run)
        self.is_completed = True

    @asynccontextmanager
    async def step(self, name: str) -> AsyncIterator[JobStep]:
        """Record a step before its work begins, and how it ended."""
        clock, database, job = self.queue.clock, self.queue.database, self.job
        step_id = await database.write(lambda tx: begin_step(tx, job, name, clock.now()))
        step = JobStep()
        try:
            yield step
        except Exception as error:
            reason = describe(error)
            await database.write(lambda tx: end_step(tx, job, step_id, clock.now(), error=reason))
            raise
        await database.write(lambda tx: end_step(tx, job, step_id, clock.now(), result=step.result))


Handler = Callable[[JobContext], Awaitable[Json]]

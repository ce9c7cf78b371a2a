"""What a handler is given: its job, and ways to act that fail once another worker or a cancellation has taken the job
away.

A step is written before its work and again after it. Both writes check the claim, so a worker that has lost its lease
is stopped here instead of acting on the outside.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
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
from postroom.queue.outcome import Postponed, Settlement, describe, encode_result


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


@dataclass(frozen=True, slots=True)
class PutOff:
    """The job cannot go on now: it comes back at `until`, or when it is released before that."""

    until: datetime
    reason: str


class JobStep:
    """A step under way; what is assigned to `result` is kept with it."""

    result: Json = None


class JobContext:
    def __init__(self, queue: JobQueue, job: ClaimedJob) -> None:
        self.queue = queue
        self.job = job
        self.is_settled = False
        """What becomes of the job is written already."""

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
            self._settle(tx, Settlement(JobState.COMPLETED, self.job.attempt, result_json=result))

        await self.queue.database.write(run)
        self.is_settled = True

    async def write_or_postpone(self, transaction: Callable[[Tx], T | PutOff]) -> T:
        """Run a transaction that may put the job off. What it wrote and the postponement are then committed together,
        so that nothing that would release the job can be missed; the attempt does not count. Raises Postponed."""

        def run(tx: Tx) -> T | PutOff:
            check_claim(tx, self.job)
            found = transaction(tx)
            if isinstance(found, PutOff):
                self._settle(tx, Settlement(JobState.QUEUED, self.job.attempt - 1, not_before=found.until))
            return found

        found = await self.queue.database.write(run)
        if isinstance(found, PutOff):
            self.is_settled = True
            raise Postponed(timedelta(), found.reason)
        return found

    def _settle(self, tx: Tx, settlement: Settlement) -> None:
        if settle_within(tx, [(self.job, settlement)], self.queue.clock.now()):
            raise LeaseLost()

    def record_step(self, tx: Tx, name: str, started_at: datetime, result: Json = None) -> None:
        """A step that is over, in the transaction of what it did: cheaper than `step` for many short jobs."""
        step_id = begin_step(tx, self.job, name, started_at)
        end_step(tx, self.job, step_id, self.queue.clock.now(), result=result)

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

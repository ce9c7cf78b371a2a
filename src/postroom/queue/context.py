"""What a handler is given: its job, and ways to act that fail once another worker or a cancellation has taken the job
away.

A step is written before its work and again after it. Both writes check the claim, so a worker that has lost its lease
is stopped here instead of acting on the outside. Either may be part of a transaction that the handler makes anyway.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

from sqlalchemy import bindparam, insert, select, update

from postroom.db import Prepared, Tx
from postroom.db.tables.queue import job_steps, jobs
from postroom.domain.errors import PostroomError
from postroom.domain.ids import new_id
from postroom.domain.jobs import JobState
from postroom.queue.claims import settle_within
from postroom.queue.job import ClaimedJob, Json, Postponed, Settlement, describe, encode_result
from postroom.queue.jobqueue import JobQueue


class NoFreeSlot(PostroomError):
    """All slots of this worker are taken by jobs that wait; this one goes back to its place in the queue."""


class LeaseLost(PostroomError):
    """This job was cancelled or handed to another worker; what this one still does would be done twice."""


# Made once: every write of a handler begins with the first, and to build a statement takes longer than to run it.
_CLAIM_IN_FORCE = Prepared(
    select(jobs.c.id).where(
        jobs.c.id == bindparam("job"), jobs.c.fence == bindparam("claim_fence"), jobs.c.lease_expires_at.is_not(None)
    )
)
_BEGIN_STEP = Prepared(insert(job_steps))
_END_STEP = Prepared(
    update(job_steps)
    .where(job_steps.c.id == bindparam("step"))
    .values(finished_at=bindparam("now"), result_json=bindparam("result"), error=bindparam("reason"))
)


def check_claim(tx: Tx, job: ClaimedJob) -> None:
    """Raise LeaseLost unless this claim is still the one in force; holds until the transaction ends."""
    if not tx.run(_CLAIM_IN_FORCE, {"job": job.id, "claim_fence": job.fence}, lock=True):
        raise LeaseLost()


def begin_step(tx: Tx, job: ClaimedJob, name: str, now: datetime) -> str:
    """In a transaction that has checked the claim."""
    step_id = new_id()
    row = {"id": step_id, "job_id": job.id, "name": name, "attempt": job.attempt, "started_at": now}
    tx.run(_BEGIN_STEP, row)
    return step_id


def end_step(tx: Tx, step_id: str, now: datetime, *, result: Json = None, error: str | None = None) -> None:
    """In a transaction that has checked the claim."""
    encoded = None if result is None else json.dumps(result)
    tx.run(_END_STEP, {"step": step_id, "now": now, "result": encoded, "reason": error})


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PutOff:
    """The job cannot go on now: it comes back at `until`, or when it is released before that."""

    until: datetime
    reason: str


class JobStep:
    """A step under way; what is assigned to `result` is kept with it."""

    def __init__(self, step_id: str) -> None:
        self.id = step_id
        self.result: Json = None
        self.is_ended = False

    def end(self, tx: Tx, now: datetime) -> None:
        """End it in the last transaction of the handler, instead of in one of its own after the block."""
        end_step(tx, self.id, now, result=self.result)
        self.is_ended = True


class JobContext:
    def __init__(self, queue: JobQueue, job: ClaimedJob, offer_slot: Callable[[], bool] = lambda: True) -> None:
        self.queue = queue
        self.job = job
        self._offer_slot = offer_slot
        self.is_settled = False
        """What becomes of the job is written already."""
        self.account: Any = None
        """The account that the job names, where a wrapper of its handler has just read it."""

    def take_slot(self) -> None:
        """For a brief job that is about to wait for something slow, before it begins with that: it counts from now on
        among those that wait. Raises NoFreeSlot where there are enough of them; the attempt does not count then."""
        if not self._offer_slot():
            raise NoFreeSlot()

    async def write(self, transaction: Callable[[Tx], T]) -> T:
        """Run a transaction that is committed only if this job is still ours."""

        def run(tx: Tx) -> T:
            check_claim(tx, self.job)
            return transaction(tx)

        return await self.queue.database.write(run)

    async def complete(self, transaction: Callable[[Tx], Json], *, together: str | None = None) -> None:
        """Commit the handler's effects and the job's completion together: both happen, once, or neither does.
        `together`: as in `Database.write`."""

        def run(tx: Tx) -> None:
            check_claim(tx, self.job)
            result = encode_result(transaction(tx))
            self._settle(tx, Settlement(JobState.COMPLETED, self.job.attempt, result_json=result))

        await self.queue.database.write(run, together=together)
        self.is_settled = True

    async def write_or_postpone(self, transaction: Callable[[Tx], T | PutOff], *, together: str | None = None) -> T:
        """Run a transaction that may put the job off. What it wrote and the postponement are then committed together,
        so that nothing that would release the job can be missed; the attempt does not count. Raises Postponed.
        `together`: as in `Database.write`."""

        def run(tx: Tx) -> T | PutOff:
            check_claim(tx, self.job)
            found = transaction(tx)
            if isinstance(found, PutOff):
                self._settle(tx, Settlement(JobState.QUEUED, self.job.attempt - 1, not_before=found.until))
            return found

        found = await self.queue.database.write(run, together=together)
        if isinstance(found, PutOff):
            self.is_settled = True
            raise Postponed(timedelta(), found.reason)
        return found

    def _settle(self, tx: Tx, settlement: Settlement) -> None:
        if settle_within(tx, [(self.job, settlement)], self.queue.clock.now()):
            raise LeaseLost()

    def record_step(self, tx: Tx, name: str, started_at: datetime, result: Json = None) -> None:
        """A step that is over, in the transaction of what it did: cheaper than `step` for many short jobs. That
        transaction has checked the claim."""
        row = {"id": new_id(), "job_id": self.job.id, "name": name, "attempt": self.job.attempt}
        row |= {"started_at": started_at, "finished_at": self.queue.clock.now()}
        tx.run(_BEGIN_STEP, row | {"result_json": None if result is None else json.dumps(result)})

    def begin_step(self, tx: Tx, name: str) -> str:
        """Begin a step in a transaction of the handler; `step` takes the id, and its block comes right after."""
        return begin_step(tx, self.job, name, self.queue.clock.now())

    @asynccontextmanager
    async def step(self, name: str, begun: str | None = None) -> AsyncIterator[JobStep]:
        """Record a step before its work begins, unless that is done already, and how it ended."""
        clock = self.queue.clock
        if begun is None:
            begun = await self.write(lambda tx: self.begin_step(tx, name))
        step = JobStep(begun)
        try:
            yield step
        except Exception as error:
            reason = describe(error)
            await self.write(lambda tx: end_step(tx, step.id, clock.now(), error=reason))
            raise
        if not step.is_ended:
            await self.write(lambda tx: end_step(tx, step.id, clock.now(), result=step.result))


Handler = Callable[[JobContext], Awaitable[Json]]

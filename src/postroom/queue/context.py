"""What a handler is given: its job, and ways to act that stop working once the job is no longer its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from postroom.db import Tx
from postroom.queue import steps
from postroom.queue.claims import settle_within
from postroom.queue.jobqueue import JobQueue
from postroom.queue.model import ClaimedJob, JobState, Json
from postroom.queue.outcome import Settlement, describe, encode_result
from postroom.queue.steps import LeaseLost

T = TypeVar("T")


class Step:
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
            steps.check_claim(tx, self.job)
            return transaction(tx)

        return await self.queue.database.write(run)

    async def complete(self, transaction: Callable[[Tx], Json]) -> None:
        """Commit the handler's effects and the job's completion together: both happen, once, or neither does."""

        def run(tx: Tx) -> None:
            steps.check_claim(tx, self.job)
            result = encode_result(transaction(tx))
            done = Settlement(JobState.COMPLETED, self.job.attempt, result_json=result)
            if settle_within(tx, [(self.job, done)], self.queue.clock.now()):
                raise LeaseLost()

        await self.queue.database.write(run)
        self.is_completed = True

    @asynccontextmanager
    async def step(self, name: str) -> AsyncIterator[Step]:
        """Record a step before its work begins, and how it ended."""
        clock, database, job = self.queue.clock, self.queue.database, self.job
        step_id = await database.write(lambda tx: steps.begin(tx, job, name, clock.now()))
        step = Step()
        try:
            yield step
        except Exception as error:
            reason = describe(error)
            await database.write(lambda tx: steps.end(tx, job, step_id, clock.now(), error=reason))
            raise
        await database.write(lambda tx: steps.end(tx, job, step_id, clock.now(), result=step.result))


Handler = Callable[[JobContext], Awaitable[Json]]

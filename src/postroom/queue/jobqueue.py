"""The queue as the rest of Postroom sees it: put work in, take it back, look at it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from postroom.db import Database, Tx
from postroom.db.wake import Topic
from postroom.domain.clock import Clock
from postroom.queue import control, enqueue, inspection, schedules
from postroom.queue.catalogue import Catalogue
from postroom.queue.control import CancelOutcome, FailedJobs
from postroom.queue.model import Enqueued, NewJob, Payload
from postroom.queue.schedules import Schedule


class JobQueue:
    def __init__(self, database: Database, catalogue: Catalogue, clock: Clock) -> None:
        self.database = database
        self.catalogue = catalogue
        self.clock = clock

    def add(self, tx: Tx, *jobs: NewJob) -> list[Enqueued]:
        """Enqueue within a transaction, so that the jobs exist exactly if what they follow from does."""
        answers = enqueue.insert(tx, self.catalogue, jobs, self.clock.now()) if jobs else []
        self._wake_after(tx, Topic.WORK)
        return answers

    async def enqueue(self, *jobs: NewJob) -> list[Enqueued]:
        return await self.database.write(lambda tx: self.add(tx, *jobs))

    async def enqueue_scheduled(
        self, job_type: str, payload: Payload, key: str | None, priority: int, not_before: datetime
    ) -> str:
        """Enqueue one job that no worker takes before its time; returns its id."""
        job = NewJob(job_type, payload, key=key, priority=priority, not_before=not_before)
        answers = await self.enqueue(job)
        return answers[0].job_id

    async def is_under_way(self, key: str) -> bool:
        """Whether a job of this key waits or is at work."""
        return await self.database.read(lambda tx: inspection.is_under_way(tx, key))

    def cancel_within(self, tx: Tx, job_id: str, *, dry_run: bool = False) -> CancelOutcome:
        self._wake_after(tx, Topic.CANCEL)
        return control.cancel(tx, job_id, self.clock.now(), dry_run=dry_run)

    async def cancel(self, job_id: str, *, dry_run: bool = False) -> CancelOutcome:
        return await self.database.write(lambda tx: self.cancel_within(tx, job_id, dry_run=dry_run))

    def retry_within(self, tx: Tx, job_id: str, *, dry_run: bool = False) -> None:
        self._wake_after(tx, Topic.WORK)
        control.retry_one(tx, job_id, self.clock.now(), dry_run=dry_run)

    async def retry(self, job_id: str, *, dry_run: bool = False) -> None:
        await self.database.write(lambda tx: self.retry_within(tx, job_id, dry_run=dry_run))

    def retry_failed_within(self, tx: Tx, which: FailedJobs, *, dry_run: bool = False) -> list[str]:
        self._wake_after(tx, Topic.WORK)
        return control.retry_failed(tx, which, self.clock.now(), dry_run=dry_run)

    async def retry_failed(self, which: FailedJobs, *, dry_run: bool = False) -> Sequence[str]:
        return await self.database.write(lambda tx: self.retry_failed_within(tx, which, dry_run=dry_run))

    async def declare_schedules(self, *wanted: Schedule) -> None:
        await self.database.write(lambda tx: schedules.declare(tx, self.catalogue, wanted, self.clock.now()))

    def fire_schedules(self, tx: Tx) -> list[str]:
        """Enqueue what is due now; returns the names of the schedules."""
        self._wake_after(tx, Topic.WORK)
        return schedules.fire_due(tx, self.catalogue, self.clock.now())

    def _wake_after(self, tx: Tx, topic: Topic) -> None:
        tx.after_commit(f"wake:{topic}", lambda: self.database.wake.send(topic))

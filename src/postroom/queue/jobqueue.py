"""The queue as the rest of Postroom sees it: enqueue, cancel, retry failed jobs, declare schedules."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from sqlalchemy import ColumnElement, Select, insert, select, update

from postroom.db import Database, Tx
from postroom.db.database import Dialect, Topic
from postroom.db.tables.queue import jobs, queue_returned
from postroom.domain.clock import Clock, require_utc
from postroom.domain.errors import BadInput, NotFound, Retryable
from postroom.domain.ids import parse_id
from postroom.domain.jobs import JobCatalogue, JobState, Schedule
from postroom.queue import enqueue, inspection, schedules
from postroom.queue.enqueue import reserve
from postroom.queue.job import FINISHED, Enqueued, NewJob, Payload
from postroom.queue.sql import mark_name

_MOST_GATHERED = 100


class CancelOutcome(StrEnum):
    """All three are success for a caller that only wants the job not to run."""

    CANCELED = "canceled"
    NOT_RUNNING = "not_running"  # it had already finished
    JOB_NOT_FOUND = "job_not_found"


def cancel_job(tx: Tx, job_id: str, now: datetime, *, dry_run: bool = False) -> CancelOutcome:
    """Cancel at once, whatever its state. A worker that runs it can no longer complete it and stops its handler."""
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
    """Selects failed jobs: those of a type, of a time window, or both."""

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


def retry_job(tx: Tx, job_id: str, now: datetime, *, dry_run: bool = False) -> None:
    """Queue a failed or cancelled job again, with all of its attempts."""
    job_id = parse_id(job_id, "job")
    state = tx.execute(tx.locking(select(jobs.c.state).where(jobs.c.id == job_id))).scalar()
    if state is None:
        raise NotFound("job", f"there is no job {job_id}")
    if state not in (JobState.FAILED, JobState.CANCELED):
        raise BadInput("job", f"{job_id} is {state}; only failed and canceled jobs can be retried")
    if not dry_run:
        _arm(tx, [job_id], now)


def retry_failed(tx: Tx, which: FailedJobs, now: datetime, *, dry_run: bool = False) -> list[str]:
    """Queue the selected failed jobs again; returns their ids, in the order in which they were first accepted."""
    ids = list(tx.execute(tx.locking(which.query(), skip_locked=True)).scalars())
    if not dry_run:
        _arm(tx, ids, now)
    return ids


def _arm(tx: Tx, ids: list[str], now: datetime) -> None:
    """Retried jobs go to the end of their line, so that newer mail does not wait for them."""
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


@dataclass(frozen=True, slots=True)
class _WaitingEnqueue:
    jobs: Sequence[NewJob]
    answer: asyncio.Future[list[Enqueued]]

    def tell(self, result: list[Enqueued] | BaseException) -> None:
        """The caller may have gone."""
        if self.answer.done():
            return
        if isinstance(result, BaseException):
            self.answer.set_exception(result)
        else:
            self.answer.set_result(result)


class JobQueue:
    def __init__(self, database: Database, catalogue: JobCatalogue, clock: Clock) -> None:
        self.database = database
        self.catalogue = catalogue
        self.clock = clock
        self._is_enqueueing = False
        self._waiting: list[_WaitingEnqueue] = []
        self._gathered: asyncio.Task[None] | None = None

    def add(self, tx: Tx, *jobs: NewJob) -> list[Enqueued]:
        """Enqueue within a transaction, so that the jobs exist exactly if what they follow from does."""
        answers = enqueue.insert(tx, self.catalogue, jobs, self.clock.now()) if jobs else []
        self._wake_after(tx, Topic.WORK)
        return answers

    async def enqueue(self, *jobs: NewJob) -> list[Enqueued]:
        """Enqueue in a transaction. Calls that come while one is under way share the next, and its statements."""
        if self._is_enqueueing:
            waiting = _WaitingEnqueue(jobs, asyncio.get_running_loop().create_future())
            self._waiting.append(waiting)
            return await waiting.answer
        self._is_enqueueing = True
        try:
            return await self._enqueue_alone(jobs)
        finally:
            if self._waiting:
                self._gathered = asyncio.create_task(self._enqueue_gathered())
            else:
                self._is_enqueueing = False

    async def _enqueue_alone(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        return await self.database.write(lambda tx: self.add(tx, *jobs))

    async def _enqueue_gathered(self) -> None:
        try:
            while self._waiting:
                group, self._waiting = self._waiting[:_MOST_GATHERED], self._waiting[_MOST_GATHERED:]
                await self._enqueue_group([each for each in group if not each.answer.done()])
                await asyncio.sleep(0)  # callers with their answer may enqueue again, and share the next one
        finally:
            self._is_enqueueing = False
            for each in self._waiting:  # there are some only if this task was cancelled
                each.answer.cancel()

    async def _enqueue_group(self, group: Sequence[_WaitingEnqueue]) -> None:
        """One transaction for all. If it is refused, for what one of them asks, each gets a transaction of its own."""
        try:
            answers = iter(await self._enqueue_alone([job for each in group for job in each.jobs]))
        except asyncio.CancelledError:
            for each in group:
                each.answer.cancel()
            raise
        except BaseException as error:  # whatever it is, it belongs to the callers
            one_by_one = len(group) > 1 and not isinstance(error, Retryable)
            for each in group:
                await self._enqueue_group([each]) if one_by_one else each.tell(error)
        else:
            for each in group:
                each.tell([next(answers) for _ in each.jobs])

    async def enqueue_scheduled(
        self, job_type: str, payload: Payload, key: str | None, priority: int, not_before: datetime
    ) -> str:
        """Enqueue one job that no worker takes before its time; returns its id."""
        job = NewJob(job_type, payload, key=key, priority=priority, not_before=not_before)
        answers = await self.enqueue(job)
        return answers[0].job_id

    async def is_under_way(self, key: str) -> bool:
        """Whether a job of this key is waiting or running."""
        return await self.database.read(lambda tx: inspection.is_under_way(tx, key))

    def cancel_within(self, tx: Tx, job_id: str, *, dry_run: bool = False) -> CancelOutcome:
        self._wake_after(tx, Topic.CANCEL)
        return cancel_job(tx, job_id, self.clock.now(), dry_run=dry_run)

    async def cancel(self, job_id: str, *, dry_run: bool = False) -> CancelOutcome:
        return await self.database.write(lambda tx: self.cancel_within(tx, job_id, dry_run=dry_run))

    def retry_within(self, tx: Tx, job_id: str, *, dry_run: bool = False) -> None:
        self._wake_after(tx, Topic.WORK)
        retry_job(tx, job_id, self.clock.now(), dry_run=dry_run)

    async def retry(self, job_id: str, *, dry_run: bool = False) -> None:
        await self.database.write(lambda tx: self.retry_within(tx, job_id, dry_run=dry_run))

    def retry_failed_within(self, tx: Tx, which: FailedJobs, *, dry_run: bool = False) -> list[str]:
        self._wake_after(tx, Topic.WORK)
        return retry_failed(tx, which, self.clock.now(), dry_run=dry_run)

    async def retry_failed(self, which: FailedJobs, *, dry_run: bool = False) -> Sequence[str]:
        return await self.database.write(lambda tx: self.retry_failed_within(tx, which, dry_run=dry_run))

    def release_within(self, tx: Tx, ids: Collection[str]) -> None:
        """Let jobs that were put off go on at once, at their old place in line. Others stay as they are."""
        if ids:
            self._wake_after(tx, Topic.WORK)
            put_off = (jobs.c.state == JobState.QUEUED) & ~jobs.c.ready
            now = self.clock.now()
            values = {"ready": True, "not_before": None, "queued_at": now, "updated_at": now}
            release = update(jobs).where(jobs.c.id.in_(sorted(ids)), put_off).values(**values)
            released = tx.execute(release.returning(jobs.c.queue_name, jobs.c.policy_tier, jobs.c.seq)).all()
            if tx.dialect is Dialect.POSTGRESQL and released:
                rows = [{"line": mark_name(queue, tier), "seq": seq} for queue, tier, seq in released]
                tx.execute(insert(queue_returned), rows)

    async def declare_schedules(self, *wanted: Schedule) -> None:
        await self.database.write(lambda tx: schedules.declare_schedules(tx, self.catalogue, wanted, self.clock.now()))

    def fire_schedules(self, tx: Tx) -> list[str]:
        """Enqueue what is due now; returns the names of the schedules."""
        self._wake_after(tx, Topic.WORK)
        return schedules.fire_due_schedules(tx, self.catalogue, self.clock.now())

    def _wake_after(self, tx: Tx, topic: Topic) -> None:
        tx.after_commit(f"wake:{topic}", lambda: self.database.wake.send(topic))

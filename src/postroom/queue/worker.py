"""Runs jobs: claims up to its free slots, keeps leases alive, settles what is done, and leaves in good order.

One coroutine, `_serve`, talks to the database about jobs: each of its turns writes all outcomes that have gathered and
fills the slots that are free. Everything else only tells it that something changed. Where the database can do both at
once, and no other worker claims jobs, many outcomes are written on a connection of their own, while the next jobs are
claimed.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import Counter, deque
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial
from math import inf
from random import Random
from typing import Any

from postroom.db.database import Dialect, Topic, Wakeups
from postroom.domain.errors import Fatal, PostroomError, Retryable
from postroom.domain.ids import new_id
from postroom.domain.jobs import JobState, RetryPolicy
from postroom.queue import inspection, queue_metrics, schedules
from postroom.queue.claims import Claimant, ClaimTurn
from postroom.queue.context import Handler, JobContext, LeaseLost, NoFreeSlot
from postroom.queue.job import (
    ClaimedJob,
    Interrupted,
    Outcome,
    QueueName,
    Raised,
    Settlement,
    Succeeded,
    TimedOut,
    plain_completion,
    settle,
)
from postroom.queue.jobqueue import JobQueue
from postroom.queue.marks import Marks
from postroom.queue.plan import Slots, Width, first_after
from postroom.settings import QueueSettings, WorkerSettings
from postroom.telemetry import logs

log = logs.get(__name__)

_HEARTBEATS_PER_LEASE = 3
_DEPTH_EVERY_S = 15.0
_AFTER_TROUBLE_S = 1.0
_LONGEST_NAP_S = 60.0
_RECOVER_EVERY_S = 1.0
_MOST_CLAIMED_AT_ONCE = 250
_SETTLED_APART = 50
"""So many outcomes are written beside the claim and not before it, where the database can do both at once, and no other
worker claims."""
_FIRST_RUNNERS = 8
_BEGUN_IN_A_ROW = 32
"""After so many short attempts the event loop turns, so that the next jobs are claimed while these run."""
_DONE = Succeeded()


class _Stop(StrEnum):
    """Why the worker itself ended a job."""

    LEASE_LOST = "lease lost"
    TIME_LIMIT = "time limit"
    DRAIN = "drain"


@dataclass(slots=True)
class _Run:
    """A running attempt."""

    job: ClaimedJob
    context: JobContext
    lease_ends: float  # on the monotonic clock: past it, others may have the job
    holds_slot: bool = False
    task: asyncio.Task[None] | None = None  # None: it has not begun
    stop: _Stop | None = None
    time_limit_ends: float = inf  # on the loop's clock

    def end(self, why: _Stop) -> None:
        """Stop the handler. One that has completed its job has no lease to lose, but must end too."""
        if why is _Stop.LEASE_LOST and self.context.is_settled:
            return
        self.stop = self.stop or why
        if self.task is not None:
            self.task.cancel()


class _TimeLimits:
    """Ends attempts that run for too long, with one timer for all: it is set for the first limit to be reached."""

    def __init__(self, runs: Mapping[str, _Run]) -> None:
        self._runs = runs
        self._timer: asyncio.TimerHandle | None = None
        self._first = inf  # what the timer is set for

    def begin(self, loop: asyncio.AbstractEventLoop, run: _Run, seconds: float) -> None:
        ends = run.time_limit_ends = loop.time() + seconds
        if ends < self._first:
            self._set(loop, ends)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _set(self, loop: asyncio.AbstractEventLoop, when: float) -> None:
        self.close()
        self._first = when
        self._timer = loop.call_at(when, self._end_late, loop)

    def _end_late(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer, self._first = None, inf
        for run in self._runs.values():
            if run.time_limit_ends <= loop.time():
                run.time_limit_ends = inf
                run.end(_Stop.TIME_LIMIT)
        first = min((run.time_limit_ends for run in self._runs.values()), default=inf)
        if first < inf:
            self._set(loop, first)


class Worker:
    def __init__(
        self,
        queue: JobQueue,
        handlers: Mapping[str, Handler],
        settings: WorkerSettings | None = None,
        queue_settings: QueueSettings | None = None,
        *,
        random: Random | None = None,
        until_idle: bool = False,
    ) -> None:
        self.id = f"{socket.gethostname()}:{os.getpid()}:{new_id()[-6:]}"
        self._queue = queue
        self._handlers = handlers
        self._settings = settings or WorkerSettings()
        self._lease = timedelta(seconds=self._settings.lease_s)
        limit = (queue_settings or QueueSettings()).max_consecutive_same_tier
        marks = Marks() if queue.database.dialect is Dialect.POSTGRESQL else None
        self._claimant = Claimant(self.id, self._lease, limit, marks)
        self._random = random or Random()  # noqa: S311 (jitter, not a secret)
        self._until_idle = until_idle
        self._runs: dict[str, _Run] = {}
        self._holders = Counter[QueueName]()  # of slots, by the queues of their jobs
        self._brief = {job_type.name for job_type in queue.catalogue if job_type.brief}
        self._time_limits = {job_type.name: job_type.time_limit for job_type in queue.catalogue}
        self._to_begin: deque[_Run] = deque()
        self._begun = 0
        self._pausing = 0  # runners that go on in the next turn of the event loop
        self._is_watched = False
        self._limits = _TimeLimits(self._runs)
        self._settlements: list[tuple[ClaimedJob, Settlement]] = []
        self._first = QueueName.LIVE
        self._settles_apart = False
        self._last_fence = 0
        self._width = Width(self._settings.concurrency, shares=not queue.database.writes_at_once)
        self._changed = asyncio.Event()
        self._doubt = asyncio.Event()  # a lease may be gone: look now
        self._recover_next = 0.0
        self._broken: Exception | None = None
        self._stopping = False

    def stop(self) -> None:
        """Take no more jobs, let the running ones finish for a while, then hand them back. `run` returns after that."""
        self._stopping = True
        self._changed.set()

    async def run(self) -> None:
        """Work until `stop` is called, or until there is nothing left to do if the worker is to run `until_idle`."""
        log.info("worker.started", worker=self.id, concurrency=self._settings.concurrency)
        try:
            await self._run_all()
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from group
        log.info("worker.stopped", worker=self.id)
        if self._broken is not None:
            raise self._broken

    async def _run_all(self) -> None:
        async with self._queue.database.wake.listen() as wakeups, asyncio.TaskGroup() as group:
            side_tasks = [
                group.create_task(self._supervise(name, coroutine), name=name)
                for name, coroutine in (
                    ("wakeups", self._relay(wakeups)),
                    ("heartbeats", self._keep_leases()),
                    ("schedules", self._fire_schedules()),
                    ("depth", self._measure_depth()),
                )
            ]
            try:
                await self._serve(group)
            finally:
                self._to_begin.clear()
                self._limits.close()
                for task in side_tasks:
                    task.cancel()

    async def _serve(self, group: asyncio.TaskGroup) -> None:
        while not self._stopping:
            self._changed.clear()
            was_busy = bool(self._runs)
            lease_ends = self._queue.clock.monotonic() + self._lease.total_seconds()
            slots = self._slots()
            free = 0 if slots is None else slots.free
            turn = await self._take_turn(slots)
            if turn is None:
                await self._wait(_AFTER_TROUBLE_S)
                continue
            self._start(group, turn, lease_ends, free)
            if self._until_idle and not was_busy and not turn.claimed:
                return
            if len(turn.claimed) < _MOST_CLAIMED_AT_ONCE:
                await self._wait(self._nap(turn.next_ripe))
        await self._drain()

    async def _drain(self) -> None:
        """Settle what is running; past the deadline it is handed back, and left to its lease if even that fails."""
        deadline = self._queue.clock.monotonic() + self._settings.drain_s
        while self._runs or self._settlements:
            self._changed.clear()
            turn = await self._take_turn(None)
            left = deadline - self._queue.clock.monotonic()
            if left <= 0 and turn is None:
                log.error("worker.left_unsettled", worker=self.id, jobs=len(self._settlements) + len(self._runs))
                self._hand_back()
                return
            if left <= 0:
                self._hand_back()
            if self._runs or turn is None:
                await self._wait(_AFTER_TROUBLE_S if turn is None else max(left, _AFTER_TROUBLE_S))

    async def _wait(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(max(seconds, 0.01)):
                await self._changed.wait()

    def _nap(self, next_ripe: datetime | None) -> float:
        """How long to sleep if nothing happens: until the next scheduled job is due, but never long."""
        if next_ripe is None:
            return self._settings.poll_s
        return min(self._settings.poll_s, (next_ripe - self._queue.clock.now()).total_seconds())

    async def _take_turn(self, slots: Slots | None) -> ClaimTurn | None:
        """Settle and claim; None if the database cannot be used now (nothing is forgotten: the next turn settles)."""
        settlements, self._settlements = self._settlements, []
        if not settlements and slots is None:
            return ClaimTurn()
        if slots is None or len(settlements) < _SETTLED_APART or not self._settles_apart:
            return await self._write_turn(settlements, slots)
        settling = [job.id for job, _ in settlements]
        settled, turn = await asyncio.gather(
            self._write_turn(settlements, None), self._write_turn([], slots, settling=settling)
        )
        if settled is None:
            asyncio.get_running_loop().call_later(_AFTER_TROUBLE_S, self._changed.set)
        return turn

    async def _write_turn(
        self, settlements: list[tuple[ClaimedJob, Settlement]], slots: Slots | None, settling: Sequence[str] = ()
    ) -> ClaimTurn | None:
        """`settling`: jobs that are done, and whose outcome is being written meanwhile."""
        now = self._queue.clock.now()
        recover, held = slots is not None and self._recovery_is_due(), [*self._runs, *settling]
        try:
            turn = await self._queue.database.write(
                lambda tx: self._claimant.take_turn(tx, now, settlements, slots, recover=recover, held=held)
            )
        except Retryable as error:
            log.warning("worker.database_trouble", worker=self.id, error=error.message)
            self._settlements[:0] = settlements
            return None
        self._report(settlements, turn)
        return turn

    def _recovery_is_due(self) -> bool:
        """A busy worker takes hundreds of turns a second; stale leases need not be looked for in each."""
        now = self._queue.clock.monotonic()
        if now < self._recover_next:
            return False
        self._recover_next = now + min(_RECOVER_EVERY_S, self._settings.lease_s / 2)
        return True

    def _slots(self) -> Slots | None:
        jobs = self._width.jobs
        if len(self._runs) >= jobs:
            return None
        busy_with_history = sum(run.job.queue is QueueName.HISTORY for run in self._runs.values())
        return Slots(
            free=min(jobs - len(self._runs), _MOST_CLAIMED_AT_ONCE),
            history=max(jobs - self._width.kept_from_history - busy_with_history, 0),
            first=self._first,
        )

    def _start(self, group: asyncio.TaskGroup, turn: ClaimTurn, lease_ends: float, free: int) -> None:
        """`free`: how many were asked for."""
        if turn.claimed:
            self._first = first_after(pick for pick, _ in turn.claimed)
            self._look_for_others(turn.claimed[0][1].fence)
        are_brief = [job.type in self._brief for _, job in turn.claimed]
        self._width.claimed(free, are_brief, self._holders.total())
        for (_, job), is_brief in zip(turn.claimed, are_brief, strict=True):
            if job.id in self._runs:
                self._runs[job.id].end(_Stop.LEASE_LOST)
                self._let_go(self._runs[job.id])
            context = JobContext(self._queue, job, partial(self._offer_slot, job.id))
            run = self._runs[job.id] = _Run(job, context, lease_ends)
            if is_brief or self._take_slot(run):
                self._to_begin.append(run)
            else:
                self._ended(run, Interrupted())
        self._add_runners(group, _FIRST_RUNNERS)
        self._watch(group)

    def _look_for_others(self, fence: int) -> None:
        """Whether other workers claim too: each claim on PostgreSQL has the next number. They keep the server busy
        while this one waits, so that a second transaction, on a second connection, would cost more and gain nothing."""
        is_alone = fence == self._last_fence + 1
        self._settles_apart = is_alone and self._queue.database.writes_at_once
        self._last_fence = fence

    def _offer_slot(self, job_id: str) -> bool:
        """Whether this run holds a slot from now on. One that the worker has let go of needs none."""
        run = self._runs.get(job_id)
        return run is None or run.holds_slot or self._take_slot(run)

    def _take_slot(self, run: _Run) -> bool:
        queue = run.job.queue
        run.holds_slot = self._width.offers_slot(queue, self._holders)
        if run.holds_slot:
            self._holders[queue] += 1
        return run.holds_slot

    def _let_go(self, run: _Run) -> None:
        """Of its place among the runs, and of its slot."""
        del self._runs[run.job.id]
        if run.holds_slot:
            self._holders[run.job.queue] -= 1

    def _add_runners(self, group: asyncio.TaskGroup, most: int) -> None:
        for _ in range(min(len(self._to_begin), most)):
            group.create_task(self._run_attempts(group))

    def _watch(self, group: asyncio.TaskGroup) -> None:
        """See to it that all attempts are begun soon."""
        if not self._is_watched:
            self._is_watched = True
            asyncio.get_running_loop().call_soon(self._add_runners_for_all, group)

    def _add_runners_for_all(self, group: asyncio.TaskGroup) -> None:
        """For those that the first runners have not begun, because their own attempts wait."""
        self._is_watched = False
        if self._to_begin and self._pausing:
            self._watch(group)
        else:
            self._add_runners(group, len(self._to_begin))

    async def _run_attempts(self, group: asyncio.TaskGroup) -> None:
        """Run attempts one after the other, so that short ones cost no task each. If the first ones have to wait, every
        other gets a task too. An attempt that was stopped, or that left something behind in the context of its task, is
        the last one of that task."""
        if self._pausing:
            return self._watch(group)
        loop, task, context = asyncio.get_running_loop(), asyncio.current_task(), copy_context()
        while self._to_begin:
            run = self._to_begin.popleft()
            run.task = task
            outcome = await self._attempt(loop, run)
            run.task = None
            self._ended(run, outcome)
            if run.stop or (task is not None and task.cancelling()) or copy_context() != context:
                return self._watch(group)
            self._begun += 1
            if self._begun % _BEGUN_IN_A_ROW == 0:
                await self._pause()

    async def _pause(self) -> None:
        """Let the event loop turn once."""
        self._pausing += 1
        try:
            await asyncio.sleep(0)
        finally:
            self._pausing -= 1

    def _ended(self, run: _Run, outcome: Outcome | None) -> None:
        job = run.job
        if self._runs.get(job.id) is run:
            self._let_go(run)
        if outcome is not None and not run.context.is_settled:
            settlement = plain_completion(job.attempt) if outcome is _DONE else self._settle(job, outcome)
            self._settlements.append((job, settlement))
        self._changed.set()

    def _settle(self, job: ClaimedJob, outcome: Outcome) -> Settlement:
        try:
            return settle(job, outcome, self._policy(job), self._queue.clock.now(), self._random)
        except Exception:
            log.exception("job.outcome_not_understood", job=job.id, job_type=job.type)
            return Settlement(JobState.FAILED, job.attempt, error="what the handler did could not be made sense of")

    async def _attempt(self, loop: asyncio.AbstractEventLoop, run: _Run) -> Outcome | None:
        """Run the handler and return how it ended; None if the job is no longer ours: nothing may be written."""
        job = run.job
        handler, limit = self._handlers.get(job.type), self._time_limits.get(job.type)
        if handler is None or limit is None:
            return Raised(Fatal(f"no handler for job type {job.type!r}; was it made by a newer Postroom?"))
        if run.stop:
            return self._interrupted(run, limit)
        bound = logs.bind(job=job.id, job_type=job.type, attempt=job.attempt)
        self._limits.begin(loop, run, limit.total_seconds())
        try:
            result = await handler(run.context)
            return _DONE if result is None else Succeeded(result)
        except LeaseLost:
            log.warning("job.lease_lost")
            return None
        except NoFreeSlot:
            return Interrupted()
        except asyncio.CancelledError as error:
            return self._interrupted(run, limit) if run.stop else Raised(error)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # panics of native libraries and sys.exit() too: one handler ends no other
            if not isinstance(error, PostroomError):
                log.error("job.crashed", exc_info=error)
            return Raised(error)
        finally:
            logs.unbind(bound)

    def _interrupted(self, run: _Run, limit: timedelta) -> Outcome | None:
        log.warning("job.interrupted", reason=run.stop)
        match run.stop:
            case _Stop.TIME_LIMIT:
                return TimedOut(limit)
            case _Stop.DRAIN:
                return Interrupted()
            case _:
                return None

    def _policy(self, job: ClaimedJob) -> RetryPolicy:
        known = job.type in self._queue.catalogue
        return self._queue.catalogue[job.type].retry if known else RetryPolicy()

    def _report(self, settlements: list[tuple[ClaimedJob, Settlement]], turn: ClaimTurn) -> None:
        counts = Counter[tuple[str, str]]()
        for job, settlement in settlements:
            if job.id in turn.refused:
                log.warning("job.settlement_refused", job=job.id, job_type=job.type)
                counts[job.type, "refused"] += 1
                continue
            counts[job.type, settlement.outcome] += 1
            if settlement.error is not None:
                event = "job.will_retry" if settlement.state is JobState.QUEUED else "job.failed"
                log.warning(event, job=job.id, job_type=job.type, attempt=job.attempt, error=settlement.error)
        for stale in turn.recovered:
            log.warning("job.recovered", job=stale.job_id, job_type=stale.type, state=stale.state, reason=stale.reason)
        queue_metrics.record_settled(counts)
        queue_metrics.record_claims(turn.claimed)

    def _hand_back(self) -> None:
        for run in self._runs.values():
            run.end(_Stop.DRAIN)

    async def _supervise(self, name: str, coroutine: Coroutine[Any, Any, None]) -> None:
        """A side task that fails is a bug: running jobs are finished, then `run` raises the error."""
        try:
            await coroutine
        except Exception as error:
            log.exception("worker.side_task_failed", task=name)
            self._broken = self._broken or error
            self.stop()

    async def _relay(self, wakeups: Wakeups) -> None:
        while True:
            await wakeups.wait()
            topics = wakeups.take()
            if Topic.CANCEL in topics:
                self._doubt.set()
            if Topic.WORK in topics:
                self._changed.set()

    async def _keep_leases(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._lease.total_seconds() / _HEARTBEATS_PER_LEASE):
                    await self._doubt.wait()
            self._doubt.clear()
            if self._runs:
                await self._beat()

    async def _beat(self) -> None:
        """Extend all leases. If the database does not answer, handlers stop when their leases end: others may begin."""
        clock = self._queue.clock
        runs = list(self._runs.values())
        lease_ends = clock.monotonic() + self._lease.total_seconds()
        patience = min(run.lease_ends for run in runs) - clock.monotonic()
        try:
            async with asyncio.timeout(max(patience, 0.01)):
                ours = await self._queue.database.write(
                    lambda tx: self._claimant.heartbeat(tx, clock.now(), [run.job for run in runs])
                )
        except (Retryable, TimeoutError) as error:
            log.warning("worker.heartbeat_failed", worker=self.id, error=str(error) or "the database does not answer")
            for run in runs:
                if clock.monotonic() >= run.lease_ends:
                    run.end(_Stop.LEASE_LOST)
            return
        for run in runs:
            if run.job.id in ours:
                run.lease_ends = lease_ends
            else:
                run.end(_Stop.LEASE_LOST)

    async def _fire_schedules(self) -> None:
        queue = self._queue
        while True:
            nap = _AFTER_TROUBLE_S
            with suppress(Retryable):
                now = queue.clock.now()
                due = await queue.database.read(
                    partial(schedules.next_schedule_due, catalogue=queue.catalogue, now=now)
                )
                if due is not None and due <= now:
                    fired = await queue.database.write(queue.fire_schedules)
                    if fired:
                        continue
                until_due = _LONGEST_NAP_S if due is None else (due - queue.clock.now()).total_seconds()
                nap = min(max(until_due, _AFTER_TROUBLE_S if due == now else 0.01), _LONGEST_NAP_S)
            await asyncio.sleep(nap)

    async def _measure_depth(self) -> None:
        while True:
            with suppress(Retryable):
                queue_metrics.record_depth(await self._queue.database.read(inspection.depth))
            await asyncio.sleep(_DEPTH_EVERY_S)

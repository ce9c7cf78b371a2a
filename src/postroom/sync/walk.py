"""One walk over the mailbox: slices are listed oldest first, what the archive lacks is fetched by a pool of workers,
and slices are closed when they are complete.

A resumed walk continues from the stored state: nothing below the frontier is listed again, and mail that is in the
archive is not fetched again. A slice that cannot be listed goes to the end of the queue; a job without a heartbeat is
cancelled and queued again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import assert_never

from postroom.accounts.history_cursor import HistoryLease, renew_reader
from postroom.db import Database, Tx
from postroom.domain.clock import Clock
from postroom.domain.errors import Fatal, PostroomError, Retryable
from postroom.mailboxes.pace import Tuner
from postroom.settings import SyncSettings
from postroom.sync.fetch import FetchOutcome, MailFetcher, OutageBackoff
from postroom.sync.slice_ledger import (
    Again,
    Bad,
    Done,
    FetchJob,
    SliceCloser,
    SliceLedger,
    SliceTallies,
    SliceTally,
    Split,
    judge_attempt,
)
from postroom.sync.slices import Slice, TooDeep, ids_of
from postroom.sync.state import SyncState, bad_of, replace_slice, slices_of
from postroom.sync.status import ProgressCounters


@contextmanager
def first_error() -> Iterator[None]:
    """Around a task group: its first PostroomError, alone. Anything else in it is a mistake and comes out whole."""
    try:
        yield
    except BaseExceptionGroup as group:
        ours, others = group.split(PostroomError)
        if ours is None or others is not None:
            raise
        raise _first(ours) from None


def _first(group: BaseExceptionGroup[PostroomError]) -> PostroomError:
    first = group.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


class Dispatcher:
    def __init__(self, most_waiting: int) -> None:
        self._most_waiting = most_waiting
        self._waiting: deque[FetchJob] = deque()
        self._unsettled = 0
        self._is_closing = False
        self._changed = asyncio.Condition()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def unsettled(self) -> int:
        """Jobs that are waiting, being worked on, or in a pause before the next attempt."""
        return self._unsettled

    async def put(self, job: FetchJob) -> None:
        """A new job; waits for room."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self._waiting) < self._most_waiting)
            self._unsettled += 1
            self._waiting.append(job)
            self._changed.notify_all()

    async def put_back(self, job: FetchJob) -> None:
        """The same work once more; it was never settled."""
        async with self._changed:
            self._waiting.append(job)
            self._changed.notify_all()

    async def replace(self, *jobs: FetchJob) -> None:
        """Settle one job by what becomes of it: these, or nothing."""
        async with self._changed:
            self._unsettled += len(jobs) - 1
            self._waiting.extend(jobs)
            self._changed.notify_all()

    async def take(self) -> FetchJob | None:
        """The next job; None when there will never be another."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._waiting or self._is_over)
            if not self._waiting:
                return None
            job = self._waiting.popleft()
            self._changed.notify_all()
            return job

    async def close_when_idle(self) -> None:
        """No new jobs will come."""
        async with self._changed:
            self._is_closing = True
            self._changed.notify_all()

    @property
    def _is_over(self) -> bool:
        return self._is_closing and self._unsettled == 0


_LISTINGS_AT_ONCE = 4
"""Many slices hold little or nothing, and each costs a round trip; the workers should not wait for them one by one."""
_FEWEST_FAILURES = 10
"""However long ago the first one was: between two of them, many other slices may have been listed."""


@dataclass(slots=True)
class _ListingTrouble:
    since: float
    failures: int = 0


class SliceLister:
    def __init__(
        self,
        database: Database,
        bringer: MailFetcher,
        reader: HistoryLease,
        settings: SyncSettings,
        ledger: SliceLedger,
        tallies: SliceTallies,
        dispatcher: Dispatcher,
        weather: OutageBackoff,
        clock: Clock,
    ) -> None:
        self._database = database
        self._bringer = bringer
        self._reader = reader
        self._settings = settings
        self._ledger = ledger
        self._tallies = tallies
        self._dispatcher = dispatcher
        self._weather = weather
        self._clock = clock
        self._troubles: dict[Slice, _ListingTrouble] = {}

    async def run(self, parts: Sequence[Slice]) -> None:
        """List them all, a few at a time, then let the queue close when it is idle."""
        left = deque(parts)
        with first_error():
            async with asyncio.TaskGroup() as tasks:
                for _ in range(_LISTINGS_AT_ONCE):
                    tasks.create_task(self._list_all(left), name="sync listing")
        await self._dispatcher.close_when_idle()

    async def _list_all(self, left: deque[Slice]) -> None:
        while left:
            part = left.popleft()
            try:
                left.extendleft(reversed(await self._list(part)))
            except Retryable as error:
                self._put_off(part, error)
                left.append(part)

    def _put_off(self, part: Slice, error: Retryable) -> None:
        """Raises the error where this slice alone has failed for too long, however fair the weather."""
        self._weather.storm(error)
        now = self._clock.monotonic()
        trouble = self._troubles.setdefault(part, _ListingTrouble(now))
        trouble.failures += 1
        if error.retry_after:
            trouble.since += error.retry_after.total_seconds()
        if trouble.failures >= _FEWEST_FAILURES and now - trouble.since >= self._settings.patience_s:
            raise error

    async def _list(self, part: Slice) -> Sequence[Slice]:
        """What is left to list of this slice: nothing, or its halves."""
        await self._weather.wait()
        tally = self._tallies.begin(part)
        try:
            async for ids in ids_of(self._bringer.mailbox, part, self._settings):
                await self._queue(tally, ids)
        except TooDeep as deep:
            halves = deep.halves
            await self._database.write(lambda tx: self._replace(tx, part, halves))
            self._ledger.slice_split(tally, halves[1].start)
            return halves
        except Retryable:
            self._ledger.listing_failed(tally)
            raise
        self._troubles.pop(part, None)
        self._weather.fair()
        self._ledger.listed(tally)
        return ()

    def _replace(self, tx: Tx, whole: Slice, halves: Sequence[Slice]) -> None:
        """Refused if another process has taken over this account: the slice may be under way there."""
        renew_reader(tx, self._reader, self._clock.now())
        replace_slice(tx, self._reader.account_id, whole, halves)

    async def _queue(self, tally: SliceTally, listed: Sequence[str]) -> None:
        ids = list(dict.fromkeys(listed))
        tally.listed += len(ids)
        bad = self._ledger.known_bad.intersection(ids)
        known = await self._bringer.store.known([each for each in ids if each not in bad])
        self._ledger.not_asked_for(tally, len(known), len(bad))
        wanted = [each for each in ids if each not in known and each not in bad]
        size = self._settings.job_size
        for start in range(0, len(wanted), size):
            tally.jobs += 1
            tally.open_jobs += 1
            await self._dispatcher.put(FetchJob(tally.listing, tuple(wanted[start : start + size])))


_LOOKS_A_TIMEOUT = 4
_SHORTEST_PAUSE_S = 0.02


class JobAttempt:
    """One attempt of a job, as the supervisor sees it."""

    def __init__(self, task: asyncio.Task[object], now: float) -> None:
        self.task = task
        self.last_beat = now
        self.is_stalled = False


class Supervisor:
    def __init__(self, clock: Clock, stall_timeout_s: float) -> None:
        self.stall_timeout_s = stall_timeout_s
        self._clock = clock
        self._attempts: set[JobAttempt] = set()

    @contextmanager
    def watching(self) -> Iterator[JobAttempt]:
        """The current task is an attempt, until the block ends."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine always runs in a task
        attempt = JobAttempt(task, self._clock.monotonic())
        self._attempts.add(attempt)
        try:
            yield attempt
        finally:
            self._attempts.discard(attempt)

    def beat(self, attempt: JobAttempt) -> None:
        attempt.last_beat = self._clock.monotonic()

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await self._clock.sleep(max(self.stall_timeout_s / _LOOKS_A_TIMEOUT, _SHORTEST_PAUSE_S))
            self.look()

    def look(self) -> None:
        silent_since = self._clock.monotonic() - self.stall_timeout_s
        for attempt in self._attempts:
            if attempt.last_beat <= silent_since and not attempt.is_stalled:
                attempt.is_stalled = True
                attempt.task.cancel()


_LOOK_AGAIN_S = 1.0
_PROBE_S = 60.0


class Stalled(Retryable):
    """It gave no sign of life and was cancelled."""


class WorkerPool:
    def __init__(
        self,
        bringer: MailFetcher,
        dispatcher: Dispatcher,
        ledger: SliceLedger,
        supervisor: Supervisor,
        weather: OutageBackoff,
        settings: SyncSettings,
        clock: Clock,
    ) -> None:
        self._bringer = bringer
        self._dispatcher = dispatcher
        self._ledger = ledger
        self._supervisor = supervisor
        self._weather = weather
        self._settings = settings
        self._clock = clock
        self._busy = 0
        self._freed = asyncio.Event()

    async def run(self) -> None:
        """Until the dispatcher closes. A job that is waiting for its next attempt keeps no worker busy."""
        async with asyncio.TaskGroup() as jobs:
            while (job := await self._dispatcher.take()) is not None:
                await self._wait_for_a_hand(self._bringer.mailbox.limiter.gate.tuner)
                self._busy += 1
                jobs.create_task(self._work(job, jobs), name="sync job")

    async def _wait_for_a_hand(self, tuner: Tuner) -> None:
        while self._busy >= tuner.workers:
            self._freed.clear()
            try:
                await asyncio.wait_for(self._freed.wait(), _LOOK_AGAIN_S)
            except TimeoutError:
                continue  # the tuner may have found room for more meanwhile

    async def _work(self, job: FetchJob, later: asyncio.TaskGroup) -> None:
        try:
            await self._weather.wait()
            after = await self._attempt(job)
        finally:
            self._busy -= 1
            self._freed.set()
        if after is not None:
            pause_s, again = after
            later.create_task(self._put_back(again, pause_s), name="sync job, waiting")

    async def _put_back(self, job: FetchJob, pause_s: float) -> None:
        await self._clock.sleep(pause_s)
        await self._dispatcher.put_back(job)

    async def _attempt(self, job: FetchJob) -> tuple[float, FetchJob] | None:
        """One attempt; returns the pause and the job where another one follows."""
        progress = _AttemptProgress()
        try:
            if await self._brings(job, progress):
                failed = progress.brought.failed
            else:
                failed = await self._after_stall(job, progress)
        except Retryable as error:
            return self._postpone(job, progress.brought, error)
        finally:
            self._ledger.attempted(job, progress.brought)
        await self._ledger.unread(job, progress.brought)
        self._weather.fair()
        return await self._decide(job, failed)

    async def _brings(self, job: FetchJob, progress: _AttemptProgress) -> bool:
        """Whether it came to its end; False if the supervisor cancelled it."""
        with self._supervisor.watching() as attempt:
            try:
                await self._bringer.bring(job.ids, lambda chunk: self._beat(attempt, job, progress, chunk))
            except asyncio.CancelledError:
                if not attempt.is_stalled or attempt.task.uncancel() > 0:
                    raise
                self._ledger.stalled(job)
        return not attempt.is_stalled

    def _beat(self, attempt: JobAttempt, job: FetchJob, progress: _AttemptProgress, chunk: FetchOutcome) -> None:
        self._supervisor.beat(attempt)
        self._add(job, progress, chunk)

    def _add(self, job: FetchJob, progress: _AttemptProgress, brought: FetchOutcome) -> None:
        progress.brought |= brought
        self._ledger.brought(job, brought)

    def _postpone(self, job: FetchJob, brought: FetchOutcome, error: Retryable) -> tuple[float, FetchJob]:
        """No message is to blame: what is left of the job comes again, as if it had never been tried."""
        self._weather.storm(error)
        left = tuple(each for each in job.ids if each not in brought.settled)
        return 0.0, replace(job, ids=left)

    async def _after_stall(self, job: FetchJob, progress: _AttemptProgress) -> Mapping[str, PostroomError]:
        """What is to be held against its messages: only if the service and the archive do answer."""
        brought = progress.brought
        silent = [each for each in job.ids if each not in brought.settled and each not in brought.failed]
        try:
            async with asyncio.timeout(min(self._supervisor.stall_timeout_s, _PROBE_S)):
                await self._bringer.require_messages()
                known = await self._bringer.store.known(silent)
        except TimeoutError:
            raise Stalled("Neither the job nor a simple question was answered in time.") from None
        self._add(job, progress, FetchOutcome(duplicates=frozenset(known)))
        reason = Stalled(f"No sign of life for {self._supervisor.stall_timeout_s:g} s.")
        return {**brought.failed, **{each: reason for each in silent if each not in known}}

    async def _decide(self, job: FetchJob, failed: Mapping[str, PostroomError]) -> tuple[float, FetchJob] | None:
        match judge_attempt(job, failed, self._settings.retry_budget):
            case Done():
                self._ledger.done(job)
                await self._dispatcher.replace()
            case Again(ids, tries, pause_s):
                self._ledger.again(job, ids, tries)
                return pause_s, replace(job, ids=ids, tries=tries)
            case Split(halves, tries):
                self._ledger.split(job, halves, tries)
                await self._dispatcher.replace(*(replace(job, ids=half, tries=tries) for half in halves))
            case Bad(gmail_id, error):
                await self._ledger.bad(job, gmail_id, error)
                await self._dispatcher.replace()
            case other:
                assert_never(other)
        return None


class _AttemptProgress:
    """What an attempt has brought so far, also if it is cancelled."""

    def __init__(self) -> None:
        self.brought = FetchOutcome()


_JOBS_WAITING_A_WORKER = 2


class Walk:
    def __init__(
        self,
        database: Database,
        bringer: MailFetcher,
        reader: HistoryLease,
        settings: SyncSettings,
        counters: ProgressCounters,
        weather: OutageBackoff,
        clock: Clock,
    ) -> None:
        self._database = database
        self._bringer = bringer
        self._reader = reader
        self._settings = settings
        self._counters = counters
        self._weather = weather
        self._clock = clock

    async def run(self, state: SyncState) -> None:
        """Until every slice is done. Raises what stops the account as a whole; the state is right all the same."""
        parts = await self._open_slices(state)
        already_bad = await self._bad_of_this_walk(state)
        tallies = SliceTallies()
        closer = SliceCloser(
            self._database,
            self._bringer.store,
            self._reader,
            state,
            tallies,
            self._counters,
            self._weather,
            self._clock,
        )
        ledger = SliceLedger(self._database, state, already_bad, tallies, closer, self._counters, self._clock)
        supervisor = Supervisor(self._clock, self._settings.stall_timeout_s)
        dispatcher = Dispatcher(_JOBS_WAITING_A_WORKER * self._settings.workers_max)
        crew = WorkerPool(self._bringer, dispatcher, ledger, supervisor, self._weather, self._settings, self._clock)
        lister = SliceLister(
            self._database,
            self._bringer,
            self._reader,
            self._settings,
            ledger,
            tallies,
            dispatcher,
            self._weather,
            self._clock,
        )
        with first_error():
            async with asyncio.TaskGroup() as tasks:
                aides = [tasks.create_task(supervisor.run()), tasks.create_task(closer.run())]
                tasks.create_task(lister.run(parts), name="sync lister")
                await crew.run()
                await closer.close_complete()
                for aide in aides:
                    aide.cancel()
        if closer.state.is_walking:
            raise Fatal("The walk ended with slices open. This is a mistake in Postroom; the watermark is right.")

    async def _open_slices(self, state: SyncState) -> deque[Slice]:
        rows = await self._database.read(lambda tx: slices_of(tx, state.account_id))
        self._counters.slices_total = len(rows)
        self._counters.slices_done = sum(row.is_done for row in rows)
        return deque(row.slice for row in rows if not row.is_done)

    async def _bad_of_this_walk(self, state: SyncState) -> list[str]:
        bad = await self._database.read(lambda tx: bad_of(tx, state.account_id))
        return [each.key for each in bad if each.last_tried >= state.walk_started_at]

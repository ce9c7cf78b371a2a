"""One walk over the mailbox: slices are listed, the newest days first and then from the oldest on, what the archive
lacks is fetched by a pool of workers, and slices are closed when they are complete.

A resumed walk continues from the stored state: nothing below the frontier is listed again, and mail that is in the
archive is not fetched again. A slice that cannot be listed goes to the end of the queue. A failed job is retried, then
split in halves down to single messages, which are recorded as bad; a job without a heartbeat is cancelled and retried.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeAlias, assert_never

from postroom.accounts.history import HistoryLease, history_standing, renew_reader
from postroom.db import Tx
from postroom.domain.clock import Clock
from postroom.domain.errors import Fatal, PostroomError, Retryable, first_error
from postroom.sync.context import SyncContext
from postroom.sync.fetch import FetchOutcome, bad_of
from postroom.sync.slice_ledger import Again, Bad, Done, FetchJob, SliceLedger, SliceTally, Split, judge_attempt
from postroom.sync.slices import Slice, TooDeep, ids_of, in_walk_order, newest_from
from postroom.sync.state import Listing, SliceRow, SyncState, replace_slice, slices_of


class Dispatcher:
    """The queue of jobs. It closes once no new jobs will come and every job is settled."""

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
        """A job that is tried again. It was never settled, so there is always room."""
        async with self._changed:
            self._waiting.append(job)
            self._changed.notify_all()

    async def replace(self, *jobs: FetchJob) -> None:
        """Settle one job: it is done, or these take its place."""
        async with self._changed:
            self._unsettled += len(jobs) - 1
            self._waiting.extend(jobs)
            self._changed.notify_all()

    async def take(self) -> FetchJob | None:
        """The next job; None once the queue is closed."""
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


_FEW_JOBS_PER_WORKER = 2
_SHARES_OF_A_JOB = 6
_FEWEST_FAILURES = 10
"""A slice must fail at least this often before its error is raised: many others may be listed in between."""


@dataclass(slots=True)
class _ListingTrouble:
    since: float
    failures: int = 0


_ListingEnd: TypeAlias = TooDeep | Retryable | None


@dataclass(frozen=True, slots=True, eq=False)
class _ListingAhead:
    """A slice that is being listed before its turn to be queued has come."""

    tally: SliceTally
    found: asyncio.Queue[Sequence[str] | _ListingEnd]
    """Portions of ids; then why there are no more, None after the last."""
    task: asyncio.Task[None]


class SliceLister:
    """Many slices have few messages or none, and each listing is a round trip. So as many as share a request are listed
    at once, and the next few while these are queued. They are queued in order, so that the newest day comes first."""

    def __init__(self, context: SyncContext, lease: HistoryLease, ledger: SliceLedger, dispatcher: Dispatcher) -> None:
        self._context = context
        self._lease = lease
        self._ledger = ledger
        self._dispatcher = dispatcher
        self._troubles: dict[Slice, _ListingTrouble] = {}
        self._again: set[Slice] = set()
        settings = context.settings
        self._may_split = context.counters.messages_total > settings.max_pages_per_slice * settings.page_size
        """Where the mailbox has no more than a slice may have, its messages are fetched from the first page on."""

    async def run(self, rows: Sequence[SliceRow]) -> None:
        """List them all, a few ahead, then let the queue close when it is idle."""
        self._again = {row.slice for row in rows if row.listing is not None}
        left = deque(self._in_order([row.slice for row in rows]))
        ahead: deque[_ListingAhead] = deque()
        at_once = self._context.mailbox.listings_at_once
        with first_error():
            async with asyncio.TaskGroup() as tasks:
                while left or ahead:
                    if len(ahead) <= at_once // 2:
                        more = [left.popleft() for _ in range(min(at_once, len(left)))]
                        ahead.extend(self._start(part, tasks) for part in more)
                    listing = ahead.popleft()
                    try:
                        halves = await self._finish(listing)
                    except Retryable as error:
                        self._note_failure(listing, error)
                        left.append(listing.tally.part)  # after all others
                    else:
                        ahead.extendleft(reversed([self._start(part, tasks) for part in self._in_order(halves)]))
        await self._dispatcher.close_when_idle()

    def _in_order(self, parts: Sequence[Slice]) -> list[Slice]:
        return in_walk_order(parts, self._ledger.state.until)

    def _start(self, part: Slice, tasks: asyncio.TaskGroup) -> _ListingAhead:
        tally = self._ledger.begin(part, is_again=part in self._again)
        found: asyncio.Queue[Sequence[str] | _ListingEnd] = asyncio.Queue(self._context.settings.max_pages_per_slice)
        return _ListingAhead(tally, found, tasks.create_task(self._list(tally, found), name="sync listing"))

    async def _list(self, tally: SliceTally, found: asyncio.Queue[Sequence[str] | _ListingEnd]) -> None:
        end: _ListingEnd = None
        mailbox, settings = self._context.mailbox, self._context.settings
        try:
            await self._context.outage.wait()
            tally.begun = await self._begun()
            async for ids in ids_of(mailbox, tally.part, settings, may_split=self._may_split):
                await found.put(ids)
            self._context.outage.succeeded()
        except (TooDeep, Retryable) as problem:
            end = problem
        await found.put(end)

    async def _begun(self) -> Listing:
        account_id, now = self._lease.account_id, self._context.clock.now()
        history = await self._context.database.read(lambda tx: history_standing(tx, account_id))
        return Listing(now, history.epoch)

    async def _finish(self, listing: _ListingAhead) -> Sequence[Slice]:
        """Queue what it finds. Returns what is left to list of its slice: nothing, or its halves."""
        tally = listing.tally
        try:
            while (found := await listing.found.get()) is not None:
                if isinstance(found, Retryable):
                    raise found
                if isinstance(found, TooDeep):
                    return await self._split(tally, found.halves)
                await self._queue(tally, found)
        finally:
            listing.task.cancel()  # where the database or the archive has failed, it may be under way
        self._troubles.pop(tally.part, None)
        self._ledger.listed(tally)
        return ()

    async def _split(self, tally: SliceTally, halves: tuple[Slice, Slice]) -> Sequence[Slice]:
        await self._context.database.write(lambda tx: self._replace(tx, tally.part, halves))
        self._ledger.slice_split(tally, halves[1].start)
        return halves

    def _replace(self, tx: Tx, whole: Slice, halves: Sequence[Slice]) -> None:
        """Refused if another process has taken over this account: the slice may be under way there."""
        renew_reader(tx, self._lease, self._context.clock.now())
        replace_slice(tx, self._lease.account_id, whole, halves)

    def _note_failure(self, listing: _ListingAhead, error: Retryable) -> None:
        """Raises the error if this slice has failed for too long, even while other calls succeed."""
        self._ledger.listing_failed(listing.tally)
        self._context.outage.failed(error)
        now = self._context.clock.monotonic()
        trouble = self._troubles.setdefault(listing.tally.part, _ListingTrouble(now))
        trouble.failures += 1
        if error.retry_after:
            trouble.since += error.retry_after.total_seconds()
        if trouble.failures >= _FEWEST_FAILURES and now - trouble.since >= self._context.settings.patience_s:
            raise error

    async def _queue(self, tally: SliceTally, listed: Sequence[str]) -> None:
        ids = [each for each in dict.fromkeys(listed) if each not in tally.ids]
        bad = self._ledger.known_bad.intersection(ids)
        known = await self._context.store.known([each for each in ids if each not in bad])
        self._ledger.add(tally, ids, len(known), len(bad))
        wanted = [each for each in ids if each not in known and each not in bad]
        while wanted:
            size = self._job_size(tally.part)
            tally.add_job()
            await self._dispatcher.put(FetchJob(tally.listing, tuple(wanted[:size])))
            wanted = wanted[size:]

    def _job_size(self, part: Slice) -> int:
        """Small jobs of the newest days, so that workers share a day and the newest mail is not the last to come; and
        smaller ones while there are few, or few messages left, so that all workers have one from the first page on, and
        none has much to do when the others are done."""
        size, batch = self._context.settings.job_size, self._context.mailbox.batch_size
        if part.start >= newest_from(self._ledger.state.until):
            return min(size, batch)
        workers = self._context.mailbox.limiter.gate.tuner.workers
        is_short = self._dispatcher.unsettled < _FEW_JOBS_PER_WORKER * workers
        if is_short or self._context.counters.left <= workers * size:
            return max(size // _SHARES_OF_A_JOB // batch, 1) * batch
        return size


_CHECKS_PER_TIMEOUT = 4
_SHORTEST_PAUSE_S = 0.02


class JobAttempt:
    """One attempt of a job, as the supervisor sees it."""

    def __init__(self, task: asyncio.Task[object], now: float) -> None:
        self.task = task
        self.last_heartbeat = now
        self.is_stalled = False


class Supervisor:
    """Cancels attempts that have sent no heartbeat for longer than the timeout."""

    def __init__(self, clock: Clock, stall_timeout_s: float) -> None:
        self.stall_timeout_s = stall_timeout_s
        self._clock = clock
        self._attempts: set[JobAttempt] = set()

    @contextmanager
    def watching(self) -> Iterator[JobAttempt]:
        """Watch the current task as an attempt, until the block ends."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine always runs in a task
        attempt = JobAttempt(task, self._clock.monotonic())
        self._attempts.add(attempt)
        try:
            yield attempt
        finally:
            self._attempts.discard(attempt)

    def heartbeat(self, attempt: JobAttempt) -> None:
        attempt.last_heartbeat = self._clock.monotonic()

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            await self._clock.sleep(max(self.stall_timeout_s / _CHECKS_PER_TIMEOUT, _SHORTEST_PAUSE_S))
            self.check()

    def check(self) -> None:
        silent_since = self._clock.monotonic() - self.stall_timeout_s
        for attempt in self._attempts:
            if attempt.last_heartbeat <= silent_since and not attempt.is_stalled:
                attempt.is_stalled = True
                attempt.task.cancel()


_TUNER_CHECK_S = 1.0
_PROBE_S = 60.0


class Stalled(Retryable):
    """A job sent no heartbeat and was cancelled."""


class _AttemptProgress:
    """What an attempt has fetched so far; kept when it is cancelled."""

    def __init__(self) -> None:
        self.outcome = FetchOutcome()


class WorkerPool:
    """As many workers as the tuner allows at the moment."""

    def __init__(self, context: SyncContext, ledger: SliceLedger, dispatcher: Dispatcher) -> None:
        self.supervisor = Supervisor(context.clock, context.settings.stall_timeout_s)
        self._context = context
        self._ledger = ledger
        self._dispatcher = dispatcher
        self._busy = 0
        self._freed = asyncio.Event()

    async def run(self) -> None:
        """Until the dispatcher closes. A job that is waiting for its next attempt keeps no worker busy."""
        async with asyncio.TaskGroup() as jobs:
            while (job := await self._dispatcher.take()) is not None:
                await self._wait_for_worker()
                self._busy += 1
                jobs.create_task(self._work(job, jobs), name="sync job")

    async def _wait_for_worker(self) -> None:
        tuner = self._context.mailbox.limiter.gate.tuner
        while self._busy >= tuner.workers:
            self._freed.clear()
            try:
                await asyncio.wait_for(self._freed.wait(), _TUNER_CHECK_S)
            except TimeoutError:
                continue  # the tuner may allow more workers by now

    async def _work(self, job: FetchJob, later: asyncio.TaskGroup) -> None:
        try:
            await self._context.outage.wait()
            after = await self._attempt(job)
        finally:
            self._busy -= 1
            self._freed.set()
        if after is not None:
            pause_s, again = after
            later.create_task(self._put_back(again, pause_s), name="sync job, waiting")

    async def _put_back(self, job: FetchJob, pause_s: float) -> None:
        await self._context.clock.sleep(pause_s)
        await self._dispatcher.put_back(job)

    async def _attempt(self, job: FetchJob) -> tuple[float, FetchJob] | None:
        """One attempt; returns the pause and the job where another one follows."""
        progress = _AttemptProgress()
        try:
            if await self._fetch(job, progress):
                failed = progress.outcome.failed
            else:
                failed = await self._after_stall(job, progress)
        except Retryable as error:
            return self._postpone(job, progress.outcome, error)
        finally:
            self._ledger.attempted(job, progress.outcome)
        await self._ledger.unreadable(job, progress.outcome)
        self._context.outage.succeeded()
        return await self._decide(job, failed)

    async def _fetch(self, job: FetchJob, progress: _AttemptProgress) -> bool:
        """False if the supervisor cancelled it."""
        with self.supervisor.watching() as attempt:

            def on_chunk(chunk: FetchOutcome) -> None:
                self.supervisor.heartbeat(attempt)
                self._add(job, progress, chunk)

            try:
                await self._context.fetcher.fetch(job.ids, on_chunk)
            except asyncio.CancelledError:
                if not attempt.is_stalled or attempt.task.uncancel() > 0:
                    raise
                self._ledger.stalled(job)
        return not attempt.is_stalled

    def _add(self, job: FetchJob, progress: _AttemptProgress, outcome: FetchOutcome) -> None:
        progress.outcome |= outcome
        self._ledger.fetched(job, outcome)

    def _postpone(self, job: FetchJob, outcome: FetchOutcome, error: Retryable) -> tuple[float, FetchJob]:
        """No message is at fault: the rest of the job is queued again, and the attempt does not count."""
        self._context.outage.failed(error)
        left = tuple(each for each in job.ids if each not in outcome.settled)
        return 0.0, replace(job, ids=left)

    async def _after_stall(self, job: FetchJob, progress: _AttemptProgress) -> Mapping[str, PostroomError]:
        """The messages that caused the stall, with errors; raises Stalled if the service or archive is silent too."""
        outcome, timeout_s = progress.outcome, self.supervisor.stall_timeout_s
        silent = [each for each in job.ids if each not in outcome.settled and each not in outcome.failed]
        try:
            async with asyncio.timeout(min(timeout_s, _PROBE_S)):
                await self._context.fetcher.require_messages()
                known = await self._context.store.known(silent)
        except TimeoutError:
            raise Stalled("Neither the job nor a simple question was answered in time.") from None
        self._add(job, progress, FetchOutcome(duplicates=frozenset(known)))
        reason = Stalled(f"No sign of life for {timeout_s:g} s.")
        return {**outcome.failed, **{each: reason for each in silent if each not in known}}

    async def _decide(self, job: FetchJob, failed: Mapping[str, PostroomError]) -> tuple[float, FetchJob] | None:
        match judge_attempt(job, failed, self._context.settings.retry_budget):
            case Done():
                self._ledger.done(job)
                await self._dispatcher.replace()
            case Again(ids, tries, pause_s):
                self._ledger.retried(job, ids, tries)
                return pause_s, replace(job, ids=ids, tries=tries)
            case Split(halves, tries):
                self._ledger.split(job, halves, tries)
                await self._dispatcher.replace(*(replace(job, ids=half, tries=tries) for half in halves))
            case Bad(message_id, error):
                await self._ledger.bad(job, message_id, error)
                await self._dispatcher.replace()
            case other:
                assert_never(other)
        return None


_JOBS_WAITING_PER_WORKER = 2


class Walk:
    def __init__(self, context: SyncContext, lease: HistoryLease) -> None:
        self._context = context
        self._lease = lease

    async def run(self, state: SyncState) -> None:
        """Run until every slice is done. Errors of the whole account are raised; the stored state stays right."""
        before: list[SliceRow] = []
        while (rows := await self._open_slices(state)) and rows != before:
            state, before = await self._round(state, rows), rows
        if state.is_walking:
            raise Fatal("The walk ended with slices open. This is a mistake in Postroom; the watermark is right.")

    async def _round(self, state: SyncState, rows: Sequence[SliceRow]) -> SyncState:
        """List and fetch these. Slices that were done ahead and have to be listed again are open after it."""
        ledger = SliceLedger(self._context, self._lease, state, await self._bad_of_this_walk(state))
        dispatcher = Dispatcher(_JOBS_WAITING_PER_WORKER * self._context.settings.workers_max)
        workers = WorkerPool(self._context, ledger, dispatcher)
        lister = SliceLister(self._context, self._lease, ledger, dispatcher)
        with first_error():
            async with asyncio.TaskGroup() as tasks:
                background = [tasks.create_task(workers.supervisor.run()), tasks.create_task(ledger.run())]
                tasks.create_task(lister.run(rows), name="sync lister")
                await workers.run()
                await ledger.close_complete()
                for task in background:
                    task.cancel()
        return ledger.state

    async def _open_slices(self, state: SyncState) -> list[SliceRow]:
        rows = await self._context.database.read(lambda tx: slices_of(tx, state.account_id))
        self._context.counters.slices_total = len(rows)
        self._context.counters.slices_done = sum(row.is_done for row in rows)
        return [row for row in rows if not row.is_done]

    async def _bad_of_this_walk(self, state: SyncState) -> list[str]:
        bad = await self._context.database.read(lambda tx: bad_of(tx, state.account_id))
        return [each.key for each in bad if each.last_tried >= state.walk_started_at]

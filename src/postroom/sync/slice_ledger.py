"""The jobs of a walk, and the ledger of the slices under way: what was listed, what became of every message, which jobs
are open.

A slice is closed, and the watermark moved, only when its messages add up and the archive is checkpointed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import TypeAlias

from postroom.accounts.history import HistoryLease, renew_reader
from postroom.db import Tx
from postroom.domain.clock import Backoff
from postroom.domain.errors import Fatal, PostroomError, Retryable
from postroom.reading.mail import READER_VERSION
from postroom.sync import status
from postroom.sync.context import SyncContext
from postroom.sync.fetch import FetchOutcome, record_bad, record_outcome
from postroom.sync.slices import Slice
from postroom.sync.state import FinishedSlice, Listing, SyncState, add_counters, finish_slices
from postroom.telemetry import logs

log = logs.get(__name__)
_BACKOFF = Backoff(2.0, 120.0)


@dataclass(frozen=True, slots=True)
class FetchJob:
    """A batch of message ids from a listed slice."""

    listing: int
    """The number of the listing that it comes from."""
    ids: tuple[str, ...]
    tries: int = 0


@dataclass(frozen=True, slots=True)
class Done:
    """Every id has an outcome."""


@dataclass(frozen=True, slots=True)
class Again:
    """Try what failed again after a pause."""

    ids: tuple[str, ...]
    tries: int
    pause_s: float


@dataclass(frozen=True, slots=True)
class Split:
    """Two halves of what failed, each a new job."""

    halves: tuple[tuple[str, ...], tuple[str, ...]]
    tries: int


@dataclass(frozen=True, slots=True)
class Bad:
    """The one id left; it cannot be fetched or stored."""

    message_id: str
    error: PostroomError


JobVerdict: TypeAlias = Done | Again | Split | Bad


def judge_attempt(job: FetchJob, failed: Mapping[str, PostroomError], budget: int) -> JobVerdict:
    """`failed` has the ids that this attempt did not settle, with the errors; `budget` is the most tries."""
    left = tuple(each for each in job.ids if each in failed)
    if not left:
        return Done()
    tries = job.tries + 1
    is_worth_a_retry = any(isinstance(failed[each], Retryable) for each in left)
    if tries < budget and is_worth_a_retry:
        return Again(left, tries, _BACKOFF.delay_s(tries))
    if len(left) == 1:
        return Bad(left[0], failed[left[0]])
    middle = len(left) // 2
    return Split((left[:middle], left[middle:]), tries)


@dataclass(slots=True)
class SliceTally:
    """One listing of a slice. A slice that is listed again, or in halves, gets another; one whose listing failed keeps
    it."""

    listing: int
    part: Slice
    is_again: bool = False
    """It was finished before: what was known then is not counted once more."""
    begun: Listing | None = None
    """Set when the source is asked."""
    listed: int = 0
    ids: set[str] = field(default_factory=set)
    """What was listed, until all is: pages may overlap, and a listing that failed begins anew."""
    jobs: int = 0
    open_jobs: int = 0
    at_listing: Counter[str] = field(default_factory=Counter)
    """Outcomes that were known without a call to the mailbox."""
    is_listed: bool = False
    outcomes: Counter[str] = field(default_factory=Counter)
    """How many of its messages were stored, known, gone or bad."""

    @property
    def is_complete(self) -> bool:
        """Everything it holds was listed, and no job of it is open."""
        return self.is_listed and self.open_jobs == 0

    def add_job(self) -> None:
        self.jobs += 1
        self.open_jobs += 1

    def require_balance(self) -> None:
        if self.outcomes.total() != self.listed:
            raise Fatal(
                f"The slice from {self.part.start} lists {self.listed} messages and accounts for "
                f"{self.outcomes.total()}. This is a mistake in Postroom; the watermark stays where it is."
            )


class SliceLedger:
    """Lister and workers report to it; `run` closes slices as they become complete, all at once that have gathered."""

    def __init__(self, context: SyncContext, lease: HistoryLease, state: SyncState, known_bad: Iterable[str]) -> None:
        self.state = state
        """As of the last slice that was closed."""
        self.known_bad = set(known_bad)
        """Recorded as bad during this walk: when they are listed again, they are not requested again."""
        self._context = context
        self._lease = lease
        self._tallies: dict[int, SliceTally] = {}
        self._interrupted: dict[Slice, SliceTally] = {}
        self._numbers = count(1)
        self._cuts_before = context.mailbox.limiter.gate.tuner.cuts
        self._recorded = Counter(retried=context.counters.retries)
        self._may_close = asyncio.Event()
        self._closing = asyncio.Lock()

    # Slices

    def begin(self, part: Slice, *, is_again: bool = False) -> SliceTally:
        tally = self._interrupted.pop(part, None) or SliceTally(next(self._numbers), part, is_again)
        self._tallies[tally.listing] = tally
        return tally

    def listed(self, tally: SliceTally) -> None:
        tally.is_listed = True
        tally.ids.clear()
        log.info("slice.listed", listed=tally.listed, jobs=tally.jobs, **tally.at_listing, **self._fields(tally))
        self._may_close.set()

    def slice_split(self, tally: SliceTally, at: int) -> None:
        self._tallies.pop(tally.listing, None)
        self._context.counters.splits += 1
        self._context.counters.slices_total += 1
        status.record_split("slice")
        log.info("slice.split", at=at, **self._fields(tally))

    def listing_failed(self, tally: SliceTally) -> None:
        """What it has queued goes on. The next listing of the slice adds what this one lacks."""
        self._interrupted[tally.part] = tally
        log.info("slice.listing_failed", **self._fields(tally))

    def add(self, tally: SliceTally, listed: Sequence[str], known: int, bad: int) -> None:
        """A portion of a listing, and how many of it need no fetching: in the archive already, or bad."""
        tally.ids.update(listed)
        tally.listed += len(listed)
        outcomes = {"known": known, "bad": bad}
        tally.at_listing.update(outcomes)
        if tally.is_again:
            tally.outcomes.update(outcomes)
        else:
            self._count(tally, outcomes)

    # Jobs

    def fetched(self, job: FetchJob, chunk: FetchOutcome) -> None:
        outcomes = _settled(chunk)
        if tally := self._tallies.get(job.listing):
            self._count(tally, outcomes)
            log.debug("job.fetched", listing=job.listing, **outcomes, ids=sorted(chunk.settled))

    def attempted(self, job: FetchJob, outcome: FetchOutcome) -> None:
        """An attempt has ended, with or without an error."""
        failed = len(outcome.failed)
        log.info("job.attempted", listing=job.listing, ids=len(job.ids), **_settled(outcome), failed=failed)

    async def unreadable(self, job: FetchJob, outcome: FetchOutcome) -> None:
        """Record messages that are stored with their exact bytes but cannot be parsed, before their job is done."""
        if not outcome.unread:
            return
        account_id, unread = self.state.account_id, FetchOutcome(unread=outcome.unread)
        now = self._context.clock.now()
        await self._context.database.write(lambda tx: record_outcome(tx, account_id, unread, now))
        log.warning("message.unreadable", listing=job.listing, messages=len(outcome.unread))

    def done(self, job: FetchJob) -> None:
        log.info("job.done", listing=job.listing, tries=job.tries + 1)
        self._close_job(job)

    def retried(self, job: FetchJob, left: tuple[str, ...], tries: int) -> None:
        self._context.counters.retries += 1
        status.record_retry()
        log.info("job.retried", listing=job.listing, left=len(left), tries=tries)

    def split(self, job: FetchJob, halves: tuple[tuple[str, ...], ...], tries: int) -> None:
        self._context.counters.splits += 1
        status.record_split("job")
        log.info("job.split", listing=job.listing, parts=[len(half) for half in halves], tries=tries)
        if tally := self._tallies.get(job.listing):
            tally.open_jobs += len(halves) - 1

    def stalled(self, job: FetchJob) -> None:
        self._context.counters.stalls += 1
        status.record_stall()
        log.warning("job.stalled", listing=job.listing, ids=len(job.ids), tries=job.tries)

    async def bad(self, job: FetchJob, message_id: str, error: PostroomError) -> None:
        """Recorded before it is counted: after a crash in between it is listed as bad, and its slice is open."""
        reason = logs.clean(error.message)
        now, account_id = self._context.clock.now(), self.state.account_id
        await self._context.database.write(
            lambda tx: record_bad(tx, account_id, message_id, reason, READER_VERSION, now)
        )
        self.known_bad.add(message_id)
        status.count_bad_message()
        log.warning("message.bad", listing=job.listing, reason=reason)
        log.debug("message.bad_id", listing=job.listing, id=message_id)
        if tally := self._tallies.get(job.listing):
            self._count(tally, {"bad": 1})
        self._close_job(job)

    def _close_job(self, job: FetchJob) -> None:
        if tally := self._tallies.get(job.listing):
            tally.open_jobs -= 1
            self._may_close.set()

    def _count(self, tally: SliceTally, outcomes: Mapping[str, int]) -> None:
        tally.outcomes.update(outcomes)
        status.record_processed(outcomes)
        self._context.counters.add(outcomes)

    # Closing

    async def run(self) -> None:
        """Close slices until cancelled."""
        while True:
            await self._may_close.wait()
            self._may_close.clear()
            await self.close_complete()

    async def close_complete(self) -> None:
        async with self._closing:
            complete = self._take_complete()
            if not complete:
                return
            for tally in complete:
                tally.require_balance()
            retry = partial(self._context.outage.retry, ends_outage=False)
            if any(tally.listed for tally in complete):  # an empty slice relies on nothing in the archive
                await retry(self._context.store.checkpoint)
            for tally in complete:
                log.info("slice.stored", **self._fields(tally), listed=tally.listed, **tally.outcomes)
            efforts = self._efforts()
            finish = partial(self._context.database.write, lambda tx: self._finish(tx, complete, efforts))
            before, self.state = self.state, await retry(finish)
            self._recorded += efforts
            self._report_progress(before, len(complete))

    def _take_complete(self) -> list[SliceTally]:
        """Oldest first; they are no longer under way."""
        complete = [tally for tally in self._tallies.values() if tally.is_complete]
        for tally in complete:
            del self._tallies[tally.listing]
        return sorted(complete, key=lambda tally: tally.part.start)

    def _efforts(self) -> Counter[str]:
        """Retries of jobs and cuts of the pace that are not recorded yet."""
        cuts = self._context.mailbox.limiter.gate.tuner.cuts - self._cuts_before
        return Counter(retried=self._context.counters.retries, throttled=cuts) - self._recorded

    def _finish(self, tx: Tx, complete: Sequence[SliceTally], efforts: Mapping[str, int]) -> SyncState:
        """Refused as a whole if another process has taken over this account."""
        now = self._context.clock.now()
        state = self.state
        renew_reader(tx, self._lease, now)
        outcomes: Counter[str] = Counter()
        done = [FinishedSlice(tally.part, tally.listed, tally.begun) for tally in complete]
        state = finish_slices(tx, state.account_id, state.walk, done, now)
        for tally in complete:
            outcomes += tally.outcomes - (tally.at_listing if tally.is_again else Counter())
        add_counters(tx, state.account_id, {**outcomes, "processed": outcomes.total(), **efforts}, now)
        return state

    def _report_progress(self, before: SyncState, slices: int) -> None:
        watermark = self.state.watermark
        self._context.counters.slices_done += slices
        self._context.counters.watermark = watermark
        status.record_watermark(self.state.account_id, watermark)
        if watermark > before.watermark:
            log.info("watermark.moved", walk=before.walk, since=before.watermark, to=watermark)

    def _fields(self, tally: SliceTally) -> dict[str, object]:
        part = tally.part
        return {"walk": self.state.walk, "start": part.start, "end": part.end, "listing": tally.listing}


def _settled(outcome: FetchOutcome) -> dict[str, int]:
    return {"stored": len(outcome.stored), "known": len(outcome.duplicates), "gone": len(outcome.gone)}

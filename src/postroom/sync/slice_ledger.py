"""The jobs of a walk and the account of each slice: what was listed, what became of every message, what is still open.

A failed job is retried, then split in halves down to single messages, which are recorded as bad. A slice is closed,
and the watermark moved, only when its messages add up and its shards are checkpointed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import TypeAlias, TypeVar

from postroom.accounts.history_cursor import HistoryLease, renew_reader
from postroom.archive.service import AccountStore
from postroom.db import Database, Tx
from postroom.domain.backoff import Backoff
from postroom.domain.clock import Clock
from postroom.domain.errors import Fatal, PostroomError, Retryable
from postroom.reading.mail import READER_VERSION
from postroom.sync import status
from postroom.sync.fetch import FetchOutcome, OutageBackoff
from postroom.sync.slices import Slice
from postroom.sync.state import SyncState, add_counters, finish_slice, record_bad, record_outcome
from postroom.sync.status import ProgressCounters
from postroom.telemetry import logs

_BACKOFF = Backoff(2.0, 120.0)


@dataclass(frozen=True, slots=True)
class FetchJob:
    """A batch of message ids. Time ranges are behind us: only ids are retried and split."""

    listing: int
    """Which listing of a slice it comes from."""
    ids: tuple[str, ...]
    tries: int = 0


@dataclass(frozen=True, slots=True)
class Done:
    """Every id was answered for."""


@dataclass(frozen=True, slots=True)
class Again:
    """What failed is worth another attempt after a pause."""

    ids: tuple[str, ...]
    tries: int
    pause_s: float


@dataclass(frozen=True, slots=True)
class Split:
    """Two halves of what failed, each on its own from now on."""

    halves: tuple[tuple[str, ...], tuple[str, ...]]
    tries: int


@dataclass(frozen=True, slots=True)
class Bad:
    gmail_id: str
    error: PostroomError


JobVerdict: TypeAlias = Done | Again | Split | Bad


def judge_attempt(job: FetchJob, failed: Mapping[str, PostroomError], budget: int) -> JobVerdict:
    """`failed` are the ids of the job that this attempt did not settle, with why."""
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
    listing: int
    part: Slice
    listed: int = 0
    jobs: int = 0
    open_jobs: int = 0
    at_listing: Counter[str] = field(default_factory=Counter)
    """Those of its outcomes that were known without asking Gmail."""
    is_listed: bool = False
    outcomes: Counter[str] = field(default_factory=Counter)
    """What became of its messages: stored, known, gone, bad."""

    @property
    def is_complete(self) -> bool:
        """Everything it holds was listed, and no job of it is open."""
        return self.is_listed and self.open_jobs == 0


class SliceTallies:
    """All listings under way, by number. A job of one that was given up counts for nobody."""

    def __init__(self) -> None:
        self._under_way: dict[int, SliceTally] = {}
        self._numbers = count(1)

    def begin(self, part: Slice) -> SliceTally:
        tally = SliceTally(next(self._numbers), part)
        self._under_way[tally.listing] = tally
        return tally

    def drop(self, listing: int) -> None:
        """The slice is listed again, or in halves."""
        self._under_way.pop(listing, None)

    def of(self, listing: int) -> SliceTally | None:
        return self._under_way.get(listing)

    def take_complete(self) -> list[SliceTally]:
        """Those that are complete, oldest first; they are no longer under way."""
        complete = [tally for tally in self._under_way.values() if tally.is_complete]
        for tally in complete:
            del self._under_way[tally.listing]
        return sorted(complete, key=lambda tally: tally.part.start)


T = TypeVar("T")
log = logs.get(__name__)


class SliceCloser:
    """Closes slices as they become complete, as many at once as have gathered."""

    def __init__(
        self,
        database: Database,
        store: AccountStore,
        reader: HistoryLease,
        state: SyncState,
        tallies: SliceTallies,
        counters: ProgressCounters,
        weather: OutageBackoff,
        clock: Clock,
    ) -> None:
        self._database = database
        self._store = store
        self._reader = reader
        self.state = state
        self._tallies = tallies
        self._counters = counters
        self._weather = weather
        self._clock = clock
        self._awake = asyncio.Event()
        self._closing = asyncio.Lock()

    def wake(self) -> None:
        """A slice may be complete."""
        self._awake.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._awake.wait()
            self._awake.clear()
            await self.close_complete()

    async def close_complete(self) -> None:
        async with self._closing:
            complete = self._tallies.take_complete()
            if not complete:
                return
            for tally in complete:
                _require_whole(tally)
            await self._patiently(self._store.checkpoint)
            for tally in complete:
                log.info("slice.stored", **self._fields(tally))
            finish = partial(self._database.write, lambda tx: self._finish(tx, complete))
            before, self.state = self.state, await self._patiently(finish)
            self._tell(before, len(complete))

    async def _patiently(self, work: Callable[[], Awaitable[T]]) -> T:
        while True:
            await self._weather.wait()
            try:
                return await work()
            except Retryable as error:
                self._weather.storm(error)

    def _finish(self, tx: Tx, complete: Sequence[SliceTally]) -> SyncState:
        """Refused as a whole if another process has taken over this account."""
        now = self._clock.now()
        state = self.state
        renew_reader(tx, self._reader, now)
        outcomes: Counter[str] = Counter()
        for tally in complete:
            state = finish_slice(tx, state.account_id, state.walk, tally.part, tally.listed, now)
            outcomes += tally.outcomes
        add_counters(tx, state.account_id, {**outcomes, "processed": outcomes.total()}, now)
        return state

    def _tell(self, before: SyncState, slices: int) -> None:
        self._counters.slices_done += slices
        self._counters.watermark = self.state.watermark
        status.record_watermark(self.state.account_id, self.state.watermark)
        if self.state.watermark > before.watermark:
            log.info("watermark.moved", walk=before.walk, since=before.watermark, to=self.state.watermark)

    def _fields(self, tally: SliceTally) -> dict[str, object]:
        return {
            "walk": self.state.walk,
            "start": tally.part.start,
            "end": tally.part.end,
            "listing": tally.listing,
            "listed": tally.listed,
            **tally.outcomes,
        }


def _require_whole(tally: SliceTally) -> None:
    """Progress is a proof: a slice whose messages do not add up is not done, whatever else says so."""
    if tally.outcomes.total() != tally.listed:
        raise Fatal(
            f"The slice from {tally.part.start} lists {tally.listed} messages and accounts for "
            f"{tally.outcomes.total()}. This is a mistake in Postroom; the watermark stays where it is."
        )


class SliceLedger:
    def __init__(
        self,
        database: Database,
        state: SyncState,
        already_bad: Iterable[str],
        tallies: SliceTallies,
        closer: SliceCloser,
        counters: ProgressCounters,
        clock: Clock,
    ) -> None:
        self.known_bad = set(already_bad)
        """Found bad during this walk: listed once more, they are not asked for again before their time."""
        self._database = database
        self._state = state
        self._tallies = tallies
        self._closer = closer
        self._counters = counters
        self._clock = clock

    # Slices

    def listed(self, tally: SliceTally) -> None:
        tally.is_listed = True
        log.info("slice.listed", listed=tally.listed, jobs=tally.jobs, **tally.at_listing, **self._slice(tally))
        self._closer.wake()

    def slice_split(self, tally: SliceTally, at: int) -> None:
        self._tallies.drop(tally.listing)
        self._counters.splits += 1
        self._counters.slices_total += 1
        status.record_split("slice")
        log.info("slice.split", at=at, **self._slice(tally))

    def listing_failed(self, tally: SliceTally) -> None:
        self._tallies.drop(tally.listing)
        log.info("slice.listing_failed", **self._slice(tally))

    def not_asked_for(self, tally: SliceTally, known: int, bad: int) -> None:
        """Listed messages that need no fetching: in the archive already, or bad."""
        outcomes = {"known": known, "bad": bad}
        tally.at_listing.update(outcomes)
        self._account(tally, outcomes)

    # Jobs

    def brought(self, job: FetchJob, chunk: FetchOutcome) -> None:
        outcomes = {"stored": len(chunk.stored), "known": len(chunk.duplicates), "gone": len(chunk.gone)}
        self._counters.fetched(sum(outcomes.values()))
        tally = self._tallies.of(job.listing)
        if tally is not None:
            self._account(tally, outcomes)
            log.debug("job.brought", listing=job.listing, **outcomes, ids=sorted(chunk.settled))

    def attempted(self, job: FetchJob, brought: FetchOutcome) -> None:
        """An attempt is over, however it went."""
        counts = {"stored": len(brought.stored), "known": len(brought.duplicates), "gone": len(brought.gone)}
        log.info("job.attempted", listing=job.listing, ids=len(job.ids), **counts, failed=len(brought.failed))

    async def unread(self, job: FetchJob, brought: FetchOutcome) -> None:
        """Stored with their exact bytes, and not readable: on record before their job is done."""
        if not brought.unread:
            return
        found = FetchOutcome(unread=brought.unread)
        await self._database.write(lambda tx: record_outcome(tx, self._state.account_id, found, self._clock.now()))
        log.warning("message.unread", listing=job.listing, messages=len(brought.unread))

    def done(self, job: FetchJob) -> None:
        log.info("job.done", listing=job.listing, tries=job.tries + 1)
        self._close(job)

    def again(self, job: FetchJob, left: tuple[str, ...], tries: int) -> None:
        self._counters.retries += 1
        status.record_retry()
        log.info("job.again", listing=job.listing, left=len(left), tries=tries)

    def split(self, job: FetchJob, halves: tuple[tuple[str, ...], ...], tries: int) -> None:
        self._counters.splits += 1
        status.record_split("job")
        log.info("job.split", listing=job.listing, parts=[len(half) for half in halves], tries=tries)
        if tally := self._tallies.of(job.listing):
            tally.open_jobs += len(halves) - 1

    def stalled(self, job: FetchJob) -> None:
        self._counters.stalls += 1
        status.record_stall()
        log.warning("job.stalled", listing=job.listing, ids=len(job.ids), tries=job.tries)

    async def bad(self, job: FetchJob, gmail_id: str, error: PostroomError) -> None:
        """On record before it counts: a crash in between leaves it listed as bad and its slice open."""
        reason = logs.clean(error.message)
        now, account_id = self._clock.now(), self._state.account_id
        await self._database.write(lambda tx: record_bad(tx, account_id, gmail_id, reason, READER_VERSION, now))
        self.known_bad.add(gmail_id)
        status.count_bad_message()
        log.warning("message.bad", listing=job.listing, reason=reason)
        log.debug("message.bad_id", listing=job.listing, id=gmail_id)
        if tally := self._tallies.of(job.listing):
            self._account(tally, {"bad": 1})
        self._close(job)

    def _close(self, job: FetchJob) -> None:
        if tally := self._tallies.of(job.listing):
            tally.open_jobs -= 1
            self._closer.wake()

    def _account(self, tally: SliceTally, outcomes: Mapping[str, int]) -> None:
        tally.outcomes.update(outcomes)
        status.record_processed(outcomes)
        self._counters.add(outcomes)

    def _slice(self, tally: SliceTally) -> dict[str, object]:
        part = tally.part
        return {"walk": self._state.walk, "start": part.start, "end": part.end, "listing": tally.listing}

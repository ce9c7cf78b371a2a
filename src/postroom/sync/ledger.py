"""Writes down what becomes of each job and message: in the slice's account, the progress, the log and the metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from postroom.db import Database
from postroom.domain.clock import Clock
from postroom.domain.errors import PostroomError
from postroom.reading.mail import READER_VERSION
from postroom.sync import instruments
from postroom.sync.bringing import Brought
from postroom.sync.closing import SliceCloser
from postroom.sync.isolation import Job
from postroom.sync.progress import ProgressCounters
from postroom.sync.state import SyncState, record_bad, record_brought
from postroom.sync.tally import SliceTallies, SliceTally
from postroom.telemetry import logs

_log = logs.get(__name__)


class Ledger:
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
        _log.info("slice.listed", listed=tally.listed, jobs=tally.jobs, **tally.at_listing, **self._slice(tally))
        self._closer.wake()

    def slice_split(self, tally: SliceTally, at: int) -> None:
        self._tallies.drop(tally.listing)
        self._counters.splits += 1
        self._counters.slices_total += 1
        instruments.record_split("slice")
        _log.info("slice.split", at=at, **self._slice(tally))

    def listing_failed(self, tally: SliceTally) -> None:
        self._tallies.drop(tally.listing)
        _log.info("slice.listing_failed", **self._slice(tally))

    def not_asked_for(self, tally: SliceTally, known: int, bad: int) -> None:
        """Listed messages that need no fetching: in the archive already, or bad."""
        outcomes = {"known": known, "bad": bad}
        tally.at_listing.update(outcomes)
        self._account(tally, outcomes)

    # Jobs

    def brought(self, job: Job, chunk: Brought) -> None:
        outcomes = {"stored": len(chunk.stored), "known": len(chunk.duplicates), "gone": len(chunk.gone)}
        self._counters.fetched(sum(outcomes.values()))
        tally = self._tallies.of(job.listing)
        if tally is not None:
            self._account(tally, outcomes)
            _log.debug("job.brought", listing=job.listing, **outcomes, ids=sorted(chunk.settled))

    def attempted(self, job: Job, brought: Brought) -> None:
        """An attempt is over, however it went."""
        counts = {"stored": len(brought.stored), "known": len(brought.duplicates), "gone": len(brought.gone)}
        _log.info("job.attempted", listing=job.listing, ids=len(job.ids), **counts, failed=len(brought.failed))

    async def unread(self, job: Job, brought: Brought) -> None:
        """Stored with their exact bytes, and not readable: on record before their job is done."""
        if not brought.unread:
            return
        found = Brought(unread=brought.unread)
        await self._database.write(lambda tx: record_brought(tx, self._state.account_id, found, self._clock.now()))
        _log.warning("message.unread", listing=job.listing, messages=len(brought.unread))

    def done(self, job: Job) -> None:
        _log.info("job.done", listing=job.listing, tries=job.tries + 1)
        self._close(job)

    def again(self, job: Job, left: tuple[str, ...], tries: int) -> None:
        self._counters.retries += 1
        instruments.record_retry()
        _log.info("job.again", listing=job.listing, left=len(left), tries=tries)

    def split(self, job: Job, halves: tuple[tuple[str, ...], ...], tries: int) -> None:
        self._counters.splits += 1
        instruments.record_split("job")
        _log.info("job.split", listing=job.listing, parts=[len(half) for half in halves], tries=tries)
        if tally := self._tallies.of(job.listing):
            tally.open_jobs += len(halves) - 1

    def stalled(self, job: Job) -> None:
        self._counters.stalls += 1
        instruments.record_stall()
        _log.warning("job.stalled", listing=job.listing, ids=len(job.ids), tries=job.tries)

    async def bad(self, job: Job, gmail_id: str, error: PostroomError) -> None:
        """On record before it counts: a crash in between leaves it listed as bad and its slice open."""
        reason = logs.clean(error.message)
        now, account_id = self._clock.now(), self._state.account_id
        await self._database.write(lambda tx: record_bad(tx, account_id, gmail_id, reason, READER_VERSION, now))
        self.known_bad.add(gmail_id)
        instruments.record_bad()
        _log.warning("message.bad", listing=job.listing, reason=reason)
        _log.debug("message.bad_id", listing=job.listing, id=gmail_id)
        if tally := self._tallies.of(job.listing):
            self._account(tally, {"bad": 1})
        self._close(job)

    def _close(self, job: Job) -> None:
        if tally := self._tallies.of(job.listing):
            tally.open_jobs -= 1
            self._closer.wake()

    def _account(self, tally: SliceTally, outcomes: Mapping[str, int]) -> None:
        tally.outcomes.update(outcomes)
        instruments.record_processed(outcomes)
        self._counters.add(outcomes)

    def _slice(self, tally: SliceTally) -> dict[str, object]:
        part = tally.part
        return {"walk": self._state.walk, "start": part.start, "end": part.end, "listing": tally.listing}

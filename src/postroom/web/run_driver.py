"""Drives a backfill run in this process: several walks at once, a heartbeat, and a recorded end.

Items, jobs, counters and the place of a walk are written in one transaction under a lock on the run's row, so caps
are exact and no address counts twice. A dry run counts the same way and writes only its row.
However a run ends, its row says so: COMPLETED, or FAILED with the reason and a place to resume from.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from sqlalchemy import insert, select

from postroom import kill_switch
from postroom.audit import SYSTEM
from postroom.db import Tx
from postroom.db.tables.web import backfill_run_urls
from postroom.domain.errors import PostroomError, Retryable
from postroom.queue import JobQueue
from postroom.queue.job import describe
from postroom.settings import BackfillSettings, WebSettings
from postroom.telemetry import logs
from postroom.web import discovery, runs
from postroom.web.discovery import Discovered, DiscoveryMethod, Finder
from postroom.web.fetching.interface import Fetching
from postroom.web.fetching.urls import url_hash
from postroom.web.runs import Counters, Run, RunLost, RunStatus, walk_key, with_counters, with_error
from postroom.web.sources import ConfiguredSources, Endpoint, WebSource
from postroom.web.strategies import FoundPage, WalkPlace, strategy_of
from postroom.web.walker import Walker, WalkNote

log = logs.get(__name__)

_LOOK_AGAIN_S = 1.0


class QueueFull(Retryable):
    """The queue of fetch jobs is full. Start a worker, wait until it has caught up, then resume the run."""


class SeenAddresses:
    """The addresses that a dry run has counted; a real run has them in the database."""

    def __init__(self) -> None:
        self.hashes: set[str] = set()
        self.turn = asyncio.Lock()


@dataclass(frozen=True, slots=True)
class _Recorded:
    run: Run
    taken: list[FoundPage]
    left: list[FoundPage]
    """Items for which the queue had no room yet."""
    capped: str | None


@dataclass(frozen=True)
class RunLog:
    """The `WalkLog` of one walk of a run. `on_progress` is called on each change."""

    queue: JobQueue
    web: WebSettings
    backfill: BackfillSettings
    run: Run
    source: WebSource
    endpoint: Endpoint
    seen: SeenAddresses
    on_progress: Callable[[Run], None]

    @property
    def key(self) -> str:
        return walk_key(self.source, self.endpoint)

    async def found(self, place: WalkPlace, items: list[FoundPage]) -> WalkNote:
        """Waits for room in the queue; raises QueueFull after `queue_patience_s` without any."""
        clock = self.queue.clock
        fresh, since = 0, clock.monotonic()
        while True:
            recorded = await self._found(place, items)
            fresh += len(recorded.taken)
            if not recorded.left:
                return WalkNote(fresh, recorded.capped)
            items = recorded.left
            if recorded.taken:
                since = clock.monotonic()
            if clock.monotonic() - since >= self.web.queue_patience_s:
                raise QueueFull(f"{self.web.queue_depth:,} fetch jobs wait, the most that may. {QueueFull.__doc__}")
            await clock.sleep(_LOOK_AGAIN_S)

    async def reached(self, place: WalkPlace) -> WalkNote:
        await self._write(lambda tx, run, now: with_counters(run, self.key, Counters(), place))
        return WalkNote(0)

    async def trouble(self, place: WalkPlace, url: str, problem: str, times: int = 1) -> None:
        log.warning("web.trouble", run=self.run.id, source=self.source.slug, url=url, problem=problem)
        await self._write(lambda tx, run, now: with_error(run, self.key, url, problem, now, times))

    async def waiting(self, url: str, reason: str, seconds: float) -> None:
        until = self.queue.clock.now() + timedelta(seconds=seconds)
        said = f"waiting until {until:%H:%M:%S} UTC: {reason}"
        log.info("web.waiting", run=self.run.id, source=self.source.slug, url=url, seconds=seconds, reason=reason)
        await self._write(lambda tx, run, now: replace(run, status_reason=said[: runs.LONGEST_PROBLEM]))

    async def ended(self, place: WalkPlace) -> None:
        """Mark the walk as done; a resumed run only retries its failed pages."""
        await self._write(lambda tx, run, now: with_counters(run, self.key, Counters(), place, done=True))

    async def _found(self, place: WalkPlace, items: list[FoundPage]) -> _Recorded:
        async with self.seen.turn:
            recorded: list[_Recorded] = []

            def change(tx: Tx, run: Run, now: datetime) -> Run:
                recorded[:] = [self._record(tx, run, place, items, now)]
                return recorded[0].run

            await self._write(change)
            if self.run.dry_run:
                self.seen.hashes.update(url_hash(item.url) for item in recorded[0].taken)
        return recorded[0]

    async def _write(self, change: Callable[[Tx, Run, datetime], Run]) -> None:
        """Change the run if this process holds it. If backfill is off, the run is failed instead."""

        def transaction(tx: Tx) -> Run:
            now = self.queue.clock.now()
            run = runs.held(tx, self.run)
            switch = kill_switch.state(tx, self.backfill)
            if not switch.in_force:
                return runs.fail(tx, run, f"backfill is off: {switch.reason}", SYSTEM, now)
            return runs.save(tx, change(tx, run, now), now)

        run = await self.queue.database.write(transaction)
        if run.status is not RunStatus.RUNNING:
            raise runs.RunLost(f"The run {run.id} is {run.status} now: {run.status_reason}.")
        self.on_progress(run)

    def _record(self, tx: Tx, run: Run, place: WalkPlace, items: list[FoundPage], now: datetime) -> _Recorded:
        counted_before = self._counted(tx, run, items)
        fresh = [item for item in items if url_hash(item.url) not in counted_before]
        cap = self._cap(run)
        known = discovery.known_urls(tx, self.source.slug, self.endpoint.name, [item.url for item in fresh])
        new = discovery.without_job(tx, self.source.slug, [item for item in fresh if item.url not in known])
        allowed = discovery.up_to(fresh, new, cap.room)
        taken = allowed if run.dry_run else self._fitting(tx, allowed, new)
        counted = self._add(tx, run, taken, new, now)
        is_waiting = len(taken) < len(allowed)
        if len(taken) < len(fresh):
            place = replace(place, url=taken[-1].url if taken else _last_url(run, self.key))
        for url, problem in counted.problems:
            run = with_error(run, self.key, url, problem, now)
        more = Counters(discovered=len(taken), queued=counted.queued, skipped=counted.skipped)
        return _Recorded(
            run=with_counters(run, self.key, more, place),
            taken=taken,
            left=fresh[len(taken) :] if is_waiting else [],
            capped=cap.name if sum(item.url in new for item in taken) == cap.room else None,
        )

    def _counted(self, tx: Tx, run: Run, items: list[FoundPage]) -> set[str]:
        if run.dry_run:
            return self.seen.hashes
        query = select(backfill_run_urls.c.url_hash).where(
            backfill_run_urls.c.run_id == run.id, backfill_run_urls.c.url_hash.in_([url_hash(i.url) for i in items])
        )
        return set(tx.execute(query).scalars())

    def _cap(self, run: Run) -> _Cap:
        """The nearer of the two caps, and how far away it is. What is known already counts toward neither."""
        most = min(run.max_urls_per_source, self.source.max_urls or run.max_urls_per_source)
        of_source = _Cap(
            most - run.of_source(self.source.slug).new,
            f"reached the cap of {most:,} urls for {self.source.slug}",
        )
        of_run = _Cap(run.max_urls - run.counters.new, f"reached the run's cap of {run.max_urls:,} urls")
        nearer = min(of_run, of_source, key=lambda cap: cap.room)
        return replace(nearer, room=max(nearer.room, 0))

    def _fitting(self, tx: Tx, items: list[FoundPage], new: set[str]) -> list[FoundPage]:
        """As many new items as the queue has room for, and the known ones among them."""
        return discovery.up_to(items, new, discovery.room_in_queue(tx, self.web.queue_depth))

    def _add(self, tx: Tx, run: Run, items: list[FoundPage], new: set[str], now: datetime) -> Discovered:
        if not items:
            return Discovered(0, 0)
        if run.dry_run:
            queued = sum(item.url in new for item in items)
            return Discovered(queued, len(items) - queued)
        counted = [{"run_id": run.id, "url_hash": url_hash(item.url)} for item in items]
        tx.execute(insert(backfill_run_urls), counted)
        endpoint_id = discovery.endpoint_row(tx, self.source, self.endpoint, now)
        return discovery.add(
            tx, self.queue, Finder(self.source.slug, endpoint_id, DiscoveryMethod.BACKFILL, run.id), items, now
        )


@dataclass(frozen=True, slots=True)
class _Cap:
    room: int
    name: str


def _last_url(run: Run, key: str) -> str | None:
    place = run.walks[key].place
    return None if place is None else place.url


LOOK_EVERY_S = 1.0
"""How often the kill switch and the run's status are read while a page is fetched."""
_BEATS_APART = 15

Progress = Callable[[Run], None]


@dataclass
class _Outcome:
    """How the walks of a run ended."""

    caps: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    pages_left: int = 0

    @property
    def failure(self) -> str | None:
        if self.problems:
            return "; ".join(self.problems)
        if self.pages_left:
            return f"pages that could not be read: {self.pages_left:,}; resume the run to try them again"
        return None


@dataclass(frozen=True)
class RunDriver:
    queue: JobQueue
    sources: ConfiguredSources
    fetching: Fetching
    web: WebSettings
    backfill: BackfillSettings
    on_progress: Progress = lambda run: None

    async def drive(self, run: Run, stop: asyncio.Event | None = None) -> Run:
        """Take a RUNNING run to its end; `stop` ends it early, resumable. Returns it as it stands then."""
        work = asyncio.create_task(self._walk_all(run), name="web.walks")
        heartbeat = asyncio.create_task(self._heartbeat(run, stop or asyncio.Event()), name="web.heartbeat")
        try:
            await asyncio.wait({work, heartbeat}, return_when=asyncio.FIRST_COMPLETED)
            return await self._conclude(run, work, heartbeat)
        except RunLost as error:
            log.warning("backfill.lost", run=run.id, reason=error.message)
            return await self._current(run)
        except asyncio.CancelledError:
            await self._give_up(run, "interrupted: its process was stopped")
            raise
        except Exception as error:
            await self._give_up(run, describe(error))
            raise
        finally:
            for task in (work, heartbeat):
                task.cancel()
            await asyncio.gather(work, heartbeat, return_exceptions=True)

    async def _conclude(self, run: Run, work: asyncio.Task[_Outcome], heartbeat: asyncio.Task[str]) -> Run:
        if not work.done():
            why = heartbeat.result()
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            return await self._give_up(run, why)
        outcome = work.result()
        if outcome.failure is not None:
            return await self._give_up(run, outcome.failure)
        reason = "; ".join(dict.fromkeys(outcome.caps)) or None
        return await self._end(run, lambda tx, current: runs.complete(tx, current, reason, self.queue.clock.now()))

    async def _walk_all(self, run: Run) -> _Outcome:
        waiting = deque(self._walks(run))
        outcome, seen = _Outcome(), SeenAddresses()
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(run.concurrency, len(waiting))):
                    group.create_task(self._walk_some(run, waiting, outcome, seen))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return outcome

    async def _walk_some(
        self, run: Run, waiting: deque[tuple[WebSource, Endpoint]], outcome: _Outcome, seen: SeenAddresses
    ) -> None:
        while waiting:
            source, endpoint = waiting.popleft()
            try:
                await self._walk(run, source, endpoint, outcome, seen)
            except RunLost:
                raise
            except PostroomError as error:
                outcome.problems.append(error.message)

    async def _walk(
        self, run: Run, source: WebSource, endpoint: Endpoint, outcome: _Outcome, seen: SeenAddresses
    ) -> None:
        strategy = strategy_of(source, endpoint, run.window, run.created_at.date(), self.web.max_page_bytes)
        place = run.walks[walk_key(source, endpoint)].place or strategy.start()
        log_ = RunLog(self.queue, self.web, self.backfill, run, source, endpoint, seen, self._report)
        ended = await Walker(self.fetching, self.queue.clock, self.web.max_pages).walk(strategy, place, log_)
        if ended.reason is not None:
            outcome.caps.append(ended.reason)
        outcome.pages_left += len(ended.place.again)
        await log_.ended(ended.place)

    def _walks(self, run: Run) -> list[tuple[WebSource, Endpoint]]:
        """The unfinished walks, in the order of the sources."""
        walks = []
        for slug in run.sources:
            source = self.sources[slug]
            for endpoint in source.endpoints(run.mode):
                state = run.walks.get(walk_key(source, endpoint))
                if state is not None and not state.done:
                    walks.append((source, endpoint))
        return walks

    def _report(self, run: Run) -> None:
        counts = {"queued": run.queued_count, "skipped": run.skipped_count, "errors": run.error_count}
        log.info("backfill.progress", run=run.id, discovered=run.discovered_count, of=run.max_urls, **counts)
        self.on_progress(run)

    async def _heartbeat(self, run: Run, stop: asyncio.Event) -> str:
        """Record heartbeats and check the kill switch; returns why the run must end."""
        turn = 0
        while not stop.is_set():
            turn += 1
            try:
                if turn % _BEATS_APART == 0 or await self._is_doubtful(run):
                    await self._beat(run)
            except RunLost:
                raise
            except Retryable as error:  # the walks will find out as well; a short trouble passes
                log.warning("backfill.heartbeat_failed", run=run.id, error=error.message)
            await self.queue.clock.sleep(LOOK_EVERY_S)
        return "interrupted: it was stopped"

    async def _beat(self, run: Run) -> None:
        beaten = await self.queue.database.write(lambda tx: runs.beat(tx, run, self.backfill, self.queue.clock.now()))
        if beaten.status is not RunStatus.RUNNING:
            raise RunLost(f"The run is {beaten.status} now: {beaten.status_reason}.")

    async def _is_doubtful(self, run: Run) -> bool:
        """Whether the run has to end; read only."""

        def look(tx: Tx) -> bool:
            current = runs.find(tx, run.id)
            is_ours = current.status is RunStatus.RUNNING and current.fence == run.fence
            return not is_ours or not kill_switch.state(tx, self.backfill).in_force

        return await self.queue.database.read(look)

    async def _give_up(self, run: Run, reason: str) -> Run:
        log.warning("backfill.failed", run=run.id, reason=reason)
        return await self._end(run, lambda tx, current: runs.fail(tx, current, reason, SYSTEM, self.queue.clock.now()))

    async def _end(self, run: Run, change: Callable[[Tx, Run], Run]) -> Run:
        try:
            return await self.queue.database.write(lambda tx: change(tx, runs.held(tx, run)))
        except RunLost:
            return await self._current(run)

    async def _current(self, run: Run) -> Run:
        return await self.queue.database.read(lambda tx: runs.find(tx, run.id))

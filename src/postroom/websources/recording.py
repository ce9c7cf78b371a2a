"""Writes down what a walk of a backfill run finds: items, jobs, counters and the place, all in one transaction.

The run's row is locked meanwhile, whichever process does it, so its caps are exact and no address counts twice. A dry
run counts the same way and writes nothing but its row.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy import insert, select

from postroom import kill_switch
from postroom.audit import SYSTEM
from postroom.db import Tx
from postroom.db.tables.web import backfill_run_urls
from postroom.domain.errors import Retryable
from postroom.queue import JobQueue
from postroom.settings import BackfillSettings, WebSettings
from postroom.telemetry import logs
from postroom.websources import discovery, runs
from postroom.websources.config import Endpoint, Source
from postroom.websources.discovery import Discovered, Finder
from postroom.websources.items import Method
from postroom.websources.routes import Found, Place
from postroom.websources.run_model import Counters, Run, Status, walk_key, with_counters, with_error
from postroom.websources.urls import url_hash
from postroom.websources.walking import Noted

log = logs.get(__name__)

_LOOK_AGAIN_S = 1.0


class QueueFull(Retryable):
    """The queue of fetch jobs is full. Start a worker, wait until it has caught up, then resume the run."""


class Seen:
    """The addresses that a dry run has counted; a real run has them in the database."""

    def __init__(self) -> None:
        self.hashes: set[str] = set()
        self.turn = asyncio.Lock()


@dataclass(frozen=True, slots=True)
class _Recorded:
    run: Run
    taken: list[Found]
    left: list[Found]
    """What found no room in the queue yet."""
    capped: str | None


@dataclass(frozen=True)
class RunLog:
    """Implements `walking.Log` for one walk of a run. `on_progress` is told of each change."""

    queue: JobQueue
    web: WebSettings
    backfill: BackfillSettings
    run: Run
    source: Source
    endpoint: Endpoint
    seen: Seen
    on_progress: Callable[[Run], None]

    @property
    def key(self) -> str:
        return walk_key(self.source, self.endpoint)

    async def found(self, place: Place, items: list[Found]) -> Noted:
        """Waits for room in the queue where there is none, but not for ever."""
        clock = self.queue.clock
        fresh, since = 0, clock.monotonic()
        while True:
            recorded = await self._found(place, items)
            fresh += len(recorded.taken)
            if not recorded.left:
                return Noted(fresh, recorded.capped)
            items = recorded.left
            if recorded.taken:
                since = clock.monotonic()
            if clock.monotonic() - since >= self.web.queue_patience_s:
                raise QueueFull(f"{self.web.queue_depth:,} fetch jobs wait, the most that may. {QueueFull.__doc__}")
            await clock.sleep(_LOOK_AGAIN_S)

    async def reached(self, place: Place) -> Noted:
        await self._write(lambda tx, run, now: with_counters(run, self.key, Counters(), place))
        return Noted(0)

    async def trouble(self, place: Place, url: str, problem: str, times: int = 1) -> None:
        log.warning("web.trouble", run=self.run.id, source=self.source.slug, url=url, problem=problem)
        await self._write(lambda tx, run, now: with_error(run, self.key, url, problem, now, times))

    async def ended(self, place: Place) -> None:
        """Nothing more to do; a resumed run passes this walk over, but for pages that could not be had."""
        await self._write(lambda tx, run, now: with_counters(run, self.key, Counters(), place, done=True))

    async def _found(self, place: Place, items: list[Found]) -> _Recorded:
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
        """Change the run while it is ours and backfill is on. That it is off is written down instead."""

        def transaction(tx: Tx) -> Run:
            now = self.queue.clock.now()
            run = runs.held(tx, self.run)
            switch = kill_switch.state(tx, self.backfill)
            if not switch.in_force:
                return runs.fail(tx, run, f"backfill is off: {switch.reason}", SYSTEM, now)
            return runs.save(tx, change(tx, run, now), now)

        run = await self.queue.database.write(transaction)
        if run.status is not Status.RUNNING:
            raise runs.RunLost(f"The run {run.id} is {run.status} now: {run.status_reason}.")
        self.on_progress(run)

    def _record(self, tx: Tx, run: Run, place: Place, items: list[Found], now: datetime) -> _Recorded:
        counted_before = self._counted(tx, run, items)
        fresh = [item for item in items if url_hash(item.url) not in counted_before]
        cap = self._cap(run)
        allowed = fresh[: cap.room]
        known = discovery.known_urls(tx, self.source.slug, self.endpoint.name, [item.url for item in allowed])
        taken = allowed if run.dry_run else self._fitting(tx, allowed, known)
        counted = self._add(tx, run, taken, known, now)
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
            capped=cap.name if len(taken) == cap.room else None,
        )

    def _counted(self, tx: Tx, run: Run, items: list[Found]) -> set[str]:
        if run.dry_run:
            return self.seen.hashes
        query = select(backfill_run_urls.c.url_hash).where(
            backfill_run_urls.c.run_id == run.id, backfill_run_urls.c.url_hash.in_([url_hash(i.url) for i in items])
        )
        return set(tx.execute(query).scalars())

    def _cap(self, run: Run) -> _Cap:
        """The nearer of the two caps, and how far away it is."""
        most = min(run.max_urls_per_source, self.source.max_urls or run.max_urls_per_source)
        of_source = _Cap(
            most - run.of_source(self.source.slug).discovered,
            f"reached the cap of {most:,} urls for {self.source.slug}",
        )
        of_run = _Cap(run.max_urls - run.discovered_count, f"reached the run's cap of {run.max_urls:,} urls")
        nearer = min(of_run, of_source, key=lambda cap: cap.room)
        return replace(nearer, room=max(nearer.room, 0))

    def _fitting(self, tx: Tx, items: list[Found], known: set[str]) -> list[Found]:
        """As many as the queue has room for; those that are known need none."""
        room = discovery.room_in_queue(tx, self.web.queue_depth)
        for place, item in enumerate(items):
            if item.url not in known:
                if room <= 0:
                    return items[:place]
                room -= 1
        return items

    def _add(self, tx: Tx, run: Run, items: list[Found], known: set[str], now: datetime) -> Discovered:
        if not items:
            return Discovered(0, 0)
        if run.dry_run:
            queued = discovery.would_queue(tx, self.source.slug, [item for item in items if item.url not in known])
            return Discovered(queued, len(items) - queued)
        counted = [{"run_id": run.id, "url_hash": url_hash(item.url)} for item in items]
        tx.execute(insert(backfill_run_urls), counted)
        endpoint_id = discovery.endpoint_row(tx, self.source, self.endpoint, now)
        return discovery.add(tx, self.queue, Finder(self.source.slug, endpoint_id, Method.BACKFILL, run.id), items, now)


@dataclass(frozen=True, slots=True)
class _Cap:
    room: int
    name: str


def _last_url(run: Run, key: str) -> str | None:
    place = run.walks[key].place
    return None if place is None else place.url

"""Turns slices into jobs, oldest first, as fast as the queue takes them; what is too deep is split on the way.

A slice that cannot be listed waits behind all others, so that it holds up none of them; nor can it keep a run at work
for ever.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from postroom.accounts.history import Reader, renew_reader
from postroom.db import Database, Tx
from postroom.domain.clock import Clock
from postroom.domain.errors import Retryable
from postroom.settings import SyncSettings
from postroom.sync.bringing import Bringer
from postroom.sync.dispatcher import Dispatcher
from postroom.sync.isolation import Job
from postroom.sync.ledger import Ledger
from postroom.sync.listing import TooDeep, ids_of
from postroom.sync.slices import Slice
from postroom.sync.state import replace_slice
from postroom.sync.tally import SliceTallies, SliceTally
from postroom.sync.tasks import first_error
from postroom.sync.weather import Weather

_LISTINGS_AT_ONCE = 4
"""Many slices hold little or nothing, and each costs a round trip; the workers should not wait for them one by one."""
_FEWEST_FAILURES = 10
"""However long ago the first one was: between two of them, many other slices may have been listed."""


@dataclass(slots=True)
class _Trouble:
    since: float
    failures: int = 0


class Lister:
    def __init__(
        self,
        database: Database,
        bringer: Bringer,
        reader: Reader,
        settings: SyncSettings,
        ledger: Ledger,
        tallies: SliceTallies,
        dispatcher: Dispatcher,
        weather: Weather,
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
        self._troubles: dict[Slice, _Trouble] = {}

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
        trouble = self._troubles.setdefault(part, _Trouble(now))
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
            async for ids in ids_of(self._bringer.client, part, self._settings):
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
            await self._dispatcher.put(Job(tally.listing, tuple(wanted[start : start + size])))

"""Turns slices into jobs, oldest first, as fast as the queue takes them; what is too deep is split on the way."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from postroom.db import Database
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
from postroom.sync.weather import Weather

_LISTINGS_AT_ONCE = 4
"""Many slices hold little or nothing, and each costs a round trip; the workers should not wait for them one by one."""


class Lister:
    def __init__(
        self,
        database: Database,
        bringer: Bringer,
        account_id: str,
        settings: SyncSettings,
        ledger: Ledger,
        tallies: SliceTallies,
        dispatcher: Dispatcher,
        weather: Weather,
    ) -> None:
        self._database = database
        self._bringer = bringer
        self._account_id = account_id
        self._settings = settings
        self._ledger = ledger
        self._tallies = tallies
        self._dispatcher = dispatcher
        self._weather = weather

    async def run(self, parts: Sequence[Slice]) -> None:
        """List them all, a few at a time, then let the queue close when it is idle."""
        left = deque(parts)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(_LISTINGS_AT_ONCE):
                tasks.create_task(self._list_all(left), name="sync listing")
        await self._dispatcher.close_when_idle()

    async def _list_all(self, left: deque[Slice]) -> None:
        while left:
            left.extendleft(reversed(await self._list(left.popleft())))

    async def _list(self, part: Slice) -> Sequence[Slice]:
        """What is left to list of this slice: nothing, its halves, or all of it once more."""
        await self._weather.wait()
        tally = self._tallies.begin(part)
        try:
            async for ids in ids_of(self._bringer.client, part, self._settings):
                await self._queue(tally, ids)
        except TooDeep as deep:
            halves = deep.halves
            await self._database.write(lambda tx: replace_slice(tx, self._account_id, part, halves))
            self._ledger.slice_split(tally, halves[1].start)
            return halves
        except Retryable as error:
            self._ledger.listing_failed(tally)
            self._weather.storm(error)
            return [part]
        self._weather.fair()
        self._ledger.listed(tally)
        return ()

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

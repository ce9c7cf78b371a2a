"""The end of a slice: its shards are checkpointed, and only then is it called done and the watermark moved."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

from postroom.accounts.history import Reader, renew_reader
from postroom.archive.account_store import AccountStore
from postroom.db import Database, Tx
from postroom.domain.clock import Clock
from postroom.domain.errors import Fatal, Retryable
from postroom.sync import instruments
from postroom.sync.progress import ProgressCounters
from postroom.sync.state import SyncState, count, finish_slice
from postroom.sync.tally import SliceTallies, SliceTally
from postroom.sync.weather import Weather
from postroom.telemetry import logs

T = TypeVar("T")
_log = logs.get(__name__)


class SliceCloser:
    """Closes slices as they become complete, as many at once as have gathered."""

    def __init__(
        self,
        database: Database,
        store: AccountStore,
        reader: Reader,
        state: SyncState,
        tallies: SliceTallies,
        counters: ProgressCounters,
        weather: Weather,
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
                _log.info("slice.stored", **self._fields(tally))
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
        count(tx, state.account_id, {**outcomes, "processed": outcomes.total()}, now)
        return state

    def _tell(self, before: SyncState, slices: int) -> None:
        self._counters.slices_done += slices
        self._counters.watermark = self.state.watermark
        instruments.record_watermark(self.state.account_id, self.state.watermark)
        if self.state.watermark > before.watermark:
            _log.info("watermark.moved", walk=before.walk, since=before.watermark, to=self.state.watermark)

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

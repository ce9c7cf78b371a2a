"""One walk over the mailbox: slices are listed oldest first, what the archive lacks is fetched, and slices close.

A walk that is begun again goes on where the state says: nothing below the frontier is listed twice, and in a slice that
was under way, mail that is in the archive already is not fetched again.
"""

from __future__ import annotations

import asyncio
from collections import deque

from postroom.accounts.history import Reader
from postroom.db import Database
from postroom.domain.clock import Clock
from postroom.domain.errors import Fatal
from postroom.settings import SyncSettings
from postroom.sync.bringing import Bringer
from postroom.sync.closing import SliceCloser
from postroom.sync.crew import Crew
from postroom.sync.dispatcher import Dispatcher
from postroom.sync.ledger import Ledger
from postroom.sync.lister import Lister
from postroom.sync.progress import ProgressCounters
from postroom.sync.slices import Slice
from postroom.sync.state import SyncState, bad_of, slices_of
from postroom.sync.supervisor import Supervisor
from postroom.sync.tally import SliceTallies
from postroom.sync.tasks import first_error
from postroom.sync.weather import Weather

_JOBS_WAITING_A_WORKER = 2


class Walk:
    def __init__(
        self,
        database: Database,
        bringer: Bringer,
        reader: Reader,
        settings: SyncSettings,
        counters: ProgressCounters,
        weather: Weather,
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
        ledger = Ledger(self._database, state, already_bad, tallies, closer, self._counters, self._clock)
        supervisor = Supervisor(self._clock, self._settings.stall_timeout_s)
        dispatcher = Dispatcher(_JOBS_WAITING_A_WORKER * self._settings.workers_max)
        crew = Crew(self._bringer, dispatcher, ledger, supervisor, self._weather, self._settings, self._clock)
        lister = Lister(
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

"""The workers: as many as the tuner finds healthy, each with one job at a time, watched by the supervisor."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import assert_never

from postroom.domain.clock import Clock
from postroom.domain.errors import PostroomError, Retryable
from postroom.gmail.tuner import Tuner
from postroom.settings import SyncSettings
from postroom.sync.bringing import Bringer, Brought
from postroom.sync.dispatcher import Dispatcher
from postroom.sync.isolation import Again, Bad, Done, Job, Split, judge
from postroom.sync.ledger import Ledger
from postroom.sync.supervisor import Attempt, Supervisor
from postroom.sync.weather import Weather

_LOOK_AGAIN_S = 1.0
_PROBE_S = 60.0


class Stalled(Retryable):
    """It gave no sign of life and was cancelled."""


class Crew:
    def __init__(
        self,
        bringer: Bringer,
        dispatcher: Dispatcher,
        ledger: Ledger,
        supervisor: Supervisor,
        weather: Weather,
        settings: SyncSettings,
        clock: Clock,
    ) -> None:
        self._bringer = bringer
        self._dispatcher = dispatcher
        self._ledger = ledger
        self._supervisor = supervisor
        self._weather = weather
        self._settings = settings
        self._clock = clock
        self._busy = 0
        self._freed = asyncio.Event()

    async def run(self) -> None:
        """Until the dispatcher closes. A job that is waiting for its next attempt keeps no worker busy."""
        async with asyncio.TaskGroup() as jobs:
            while (job := await self._dispatcher.take()) is not None:
                await self._wait_for_a_hand(self._bringer.client.limiter.gate.tuner)
                self._busy += 1
                jobs.create_task(self._work(job, jobs), name="sync job")

    async def _wait_for_a_hand(self, tuner: Tuner) -> None:
        while self._busy >= tuner.workers:
            self._freed.clear()
            try:
                await asyncio.wait_for(self._freed.wait(), _LOOK_AGAIN_S)
            except TimeoutError:
                continue  # the tuner may have found room for more meanwhile

    async def _work(self, job: Job, later: asyncio.TaskGroup) -> None:
        try:
            await self._weather.wait()
            after = await self._attempt(job)
        finally:
            self._busy -= 1
            self._freed.set()
        if after is not None:
            pause_s, again = after
            later.create_task(self._put_back(again, pause_s), name="sync job, waiting")

    async def _put_back(self, job: Job, pause_s: float) -> None:
        await self._clock.sleep(pause_s)
        await self._dispatcher.put_back(job)

    async def _attempt(self, job: Job) -> tuple[float, Job] | None:
        """One attempt; returns the pause and the job where another one follows."""
        progress = _Progress()
        try:
            if await self._brings(job, progress):
                failed = progress.brought.failed
            else:
                failed = await self._after_stall(job, progress)
        except Retryable as error:
            return self._postpone(job, progress.brought, error)
        finally:
            self._ledger.attempted(job, progress.brought)
        await self._ledger.unread(job, progress.brought)
        self._weather.fair()
        return await self._decide(job, failed)

    async def _brings(self, job: Job, progress: _Progress) -> bool:
        """Whether it came to its end; False if the supervisor cancelled it."""
        with self._supervisor.watching() as attempt:
            try:
                await self._bringer.bring(job.ids, lambda chunk: self._beat(attempt, job, progress, chunk))
            except asyncio.CancelledError:
                if not attempt.is_stalled or attempt.task.uncancel() > 0:
                    raise
                self._ledger.stalled(job)
        return not attempt.is_stalled

    def _beat(self, attempt: Attempt, job: Job, progress: _Progress, chunk: Brought) -> None:
        self._supervisor.beat(attempt)
        self._add(job, progress, chunk)

    def _add(self, job: Job, progress: _Progress, brought: Brought) -> None:
        progress.brought |= brought
        self._ledger.brought(job, brought)

    def _postpone(self, job: Job, brought: Brought, error: Retryable) -> tuple[float, Job]:
        """No message is to blame: what is left of the job comes again, as if it had never been tried."""
        self._weather.storm(error)
        left = tuple(each for each in job.ids if each not in brought.settled)
        return 0.0, replace(job, ids=left)

    async def _after_stall(self, job: Job, progress: _Progress) -> Mapping[str, PostroomError]:
        """What is to be held against its messages: only if the service and the archive do answer."""
        brought = progress.brought
        silent = [each for each in job.ids if each not in brought.settled and each not in brought.failed]
        try:
            async with asyncio.timeout(min(self._supervisor.stall_timeout_s, _PROBE_S)):
                await self._bringer.require_messages()
                known = await self._bringer.store.known(silent)
        except TimeoutError:
            raise Stalled("Neither the job nor a simple question was answered in time.") from None
        self._add(job, progress, Brought(duplicates=frozenset(known)))
        reason = Stalled(f"No sign of life for {self._supervisor.stall_timeout_s:g} s.")
        return {**brought.failed, **{each: reason for each in silent if each not in known}}

    async def _decide(self, job: Job, failed: Mapping[str, PostroomError]) -> tuple[float, Job] | None:
        match judge(job, failed, self._settings.retry_budget):
            case Done():
                self._ledger.done(job)
                await self._dispatcher.replace()
            case Again(ids, tries, pause_s):
                self._ledger.again(job, ids, tries)
                return pause_s, replace(job, ids=ids, tries=tries)
            case Split(halves, tries):
                self._ledger.split(job, halves, tries)
                await self._dispatcher.replace(*(replace(job, ids=half, tries=tries) for half in halves))
            case Bad(gmail_id, error):
                await self._ledger.bad(job, gmail_id, error)
                await self._dispatcher.replace()
            case other:
                assert_never(other)
        return None


class _Progress:
    """What an attempt has brought so far, also if it is cancelled."""

    def __init__(self) -> None:
        self.brought = Brought()

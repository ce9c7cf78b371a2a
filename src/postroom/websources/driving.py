"""Drives a backfill run in this process: several walks at once, a sign of life meanwhile, and an end that is told.

However it ends, the run's row says so: COMPLETED, or FAILED with the reason and a place to resume from.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from postroom import kill_switch
from postroom.audit import SYSTEM
from postroom.db import Tx
from postroom.domain.errors import PostroomError, Retryable
from postroom.queue import JobQueue
from postroom.queue.outcome import describe
from postroom.settings import BackfillSettings, WebSettings
from postroom.telemetry import logs
from postroom.websources import runs
from postroom.websources.config import Endpoint, Source, Sources
from postroom.websources.fetching.ports import Fetching
from postroom.websources.recording import RunLog, Seen
from postroom.websources.routes import route_of
from postroom.websources.run_model import Run, Status, walk_key
from postroom.websources.runs import RunLost
from postroom.websources.walking import Walker

log = logs.get(__name__)

LOOK_EVERY_S = 1.0
"""How soon the kill switch, or a cancel, is noticed while a page is waited for."""
_BEATS_APART = 15

Progress = Callable[[Run], None]


@dataclass
class _Outcome:
    """What the walks of a run came to."""

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
    sources: Sources
    fetching: Fetching
    web: WebSettings
    backfill: BackfillSettings
    on_progress: Progress = lambda run: None

    async def drive(self, run: Run, stop: asyncio.Event | None = None) -> Run:
        """Take a RUNNING run to its end; `stop` ends it early, resumable. Returns it as it stands then."""
        work = asyncio.create_task(self._walk_all(run), name="web.walks")
        pulse = asyncio.create_task(self._pulse(run, stop or asyncio.Event()), name="web.pulse")
        try:
            await asyncio.wait({work, pulse}, return_when=asyncio.FIRST_COMPLETED)
            return await self._conclude(run, work, pulse)
        except RunLost as error:
            log.warning("backfill.lost", run=run.id, reason=error.message)
            return await self._current(run)
        except asyncio.CancelledError:
            await self._give_up(run, "interrupted: its process was told to stop")
            raise
        except Exception as error:
            await self._give_up(run, describe(error))
            raise
        finally:
            for task in (work, pulse):
                task.cancel()
            await asyncio.gather(work, pulse, return_exceptions=True)

    async def _conclude(self, run: Run, work: asyncio.Task[_Outcome], pulse: asyncio.Task[str]) -> Run:
        if not work.done():
            why = pulse.result()
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
        outcome, seen = _Outcome(), Seen()
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(run.concurrency, len(waiting))):
                    group.create_task(self._walk_some(run, waiting, outcome, seen))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return outcome

    async def _walk_some(
        self, run: Run, waiting: deque[tuple[Source, Endpoint]], outcome: _Outcome, seen: Seen
    ) -> None:
        while waiting:
            source, endpoint = waiting.popleft()
            try:
                await self._walk(run, source, endpoint, outcome, seen)
            except RunLost:
                raise
            except PostroomError as error:
                outcome.problems.append(error.message)

    async def _walk(self, run: Run, source: Source, endpoint: Endpoint, outcome: _Outcome, seen: Seen) -> None:
        route = route_of(source, endpoint, run.window, run.created_at.date(), self.web.max_page_bytes)
        place = run.walks[walk_key(source, endpoint)].place or route.start()
        log_ = RunLog(self.queue, self.web, self.backfill, run, source, endpoint, seen, self._told)
        ended = await Walker(self.fetching, self.queue.clock, self.web.max_pages).walk(route, place, log_)
        if ended.reason is not None:
            outcome.caps.append(ended.reason)
        outcome.pages_left += len(ended.place.again)
        await log_.ended(ended.place)

    def _walks(self, run: Run) -> list[tuple[Source, Endpoint]]:
        """What is still to be walked, in the order of the sources."""
        walks = []
        for slug in run.sources:
            source = self.sources[slug]
            for endpoint in source.endpoints(run.mode):
                state = run.walks.get(walk_key(source, endpoint))
                if state is not None and not state.done:
                    walks.append((source, endpoint))
        return walks

    def _told(self, run: Run) -> None:
        counts = {"queued": run.queued_count, "skipped": run.skipped_count, "errors": run.error_count}
        log.info("backfill.progress", run=run.id, discovered=run.discovered_count, of=run.max_urls, **counts)
        self.on_progress(run)

    async def _pulse(self, run: Run, stop: asyncio.Event) -> str:
        """Signs of life, and a look at the switch every second; returns why the run must end."""
        turn = 0
        while not stop.is_set():
            turn += 1
            try:
                if turn % _BEATS_APART == 0 or await self._is_doubtful(run):
                    await self._beat(run)
            except RunLost:
                raise
            except Retryable as error:  # the walks will find out as well; a short trouble passes
                log.warning("backfill.pulse_failed", run=run.id, error=error.message)
            await self.queue.clock.sleep(LOOK_EVERY_S)
        return "interrupted: somebody stopped it"

    async def _beat(self, run: Run) -> None:
        beaten = await self.queue.database.write(lambda tx: runs.beat(tx, run, self.backfill, self.queue.clock.now()))
        if beaten.status is not Status.RUNNING:
            raise RunLost(f"The run is {beaten.status} now: {beaten.status_reason}.")

    async def _is_doubtful(self, run: Run) -> bool:
        """A look that writes nothing."""

        def look(tx: Tx) -> bool:
            current = runs.find(tx, run.id)
            is_ours = current.status is Status.RUNNING and current.fence == run.fence
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

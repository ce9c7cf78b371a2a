"""Tells open pages which topics changed. One task looks for all of them: when it is woken, and now and then anyway."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

from postroom.dashboard.live.looks import LOOKS
from postroom.db import Database
from postroom.db.wake import Wakeups
from postroom.domain.errors import NotAllowed, Retryable
from postroom.telemetry import logs

log = logs.get(__name__)

MOST_LISTENERS = 64
_LOOK_EVERY_S = 3.0
_NEVER_SOONER_S = 0.3
"""Changes that come thick and fast are told together."""


class TooManyListeners(NotAllowed):
    """Too many pages are open; this one does not renew itself. Close some, or reload it by hand."""


class Listener:
    """One open page: the topics that it shows, and those that changed since it was last told."""

    def __init__(self, topics: frozenset[str]) -> None:
        self.topics = topics
        self._changed: set[str] = set()
        self._arrived = asyncio.Event()
        self._ready = asyncio.Event()
        self.is_closed = False

    async def ready(self) -> None:
        """Once it is known how its topics stand: whatever changes from here on is told."""
        await self._ready.wait()

    def tell(self, topics: set[str]) -> None:
        self._ready.set()
        if topics & self.topics:
            self._changed |= topics & self.topics
            self._arrived.set()

    def close(self) -> None:
        self.is_closed = True
        self._ready.set()
        self._arrived.set()

    async def changes(self, patience_s: float) -> list[str]:
        """What changed; empty after a while without a change, or when it is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await self._arrived.wait()
        self._arrived.clear()
        changed, self._changed = sorted(self._changed), set()
        return changed


class Hub:
    def __init__(self, database: Database, look_every_s: float = _LOOK_EVERY_S) -> None:
        self._database = database
        self._look_every_s = look_every_s
        self._listeners: set[Listener] = set()
        self._joined = asyncio.Event()
        self._look_soon = asyncio.Event()
        self._seen: dict[str, object] = {}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Look until the block ends; then every open page is let go."""
        task = asyncio.create_task(self._run(), name="dashboard-live")
        task.add_done_callback(_report)
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])
            for listener in self._listeners:
                listener.close()

    def require_room(self) -> None:
        if len(self._listeners) >= MOST_LISTENERS:
            raise TooManyListeners()

    @contextmanager
    def listening(self, topics: frozenset[str]) -> Iterator[Listener]:
        listener = Listener(topics & LOOKS.keys())
        self._listeners.add(listener)
        self._joined.set()
        self._look_soon.set()
        try:
            yield listener
        finally:
            self._listeners.discard(listener)

    async def _run(self) -> None:
        async with self._database.wake.listen() as wakeups, asyncio.TaskGroup() as group:
            group.create_task(self._relay(wakeups))
            while True:
                await self._joined.wait()
                self._look_soon.clear()
                await self._look()
                if not self._listeners:
                    self._joined.clear()
                    self._seen.clear()
                await asyncio.sleep(_NEVER_SOONER_S)
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._look_every_s):
                        await self._look_soon.wait()

    async def _relay(self, wakeups: Wakeups) -> None:
        while True:
            await wakeups.wait()
            wakeups.take()
            self._look_soon.set()

    async def _look(self) -> None:
        """What nobody shows is not looked at; what was not looked at before has not changed."""
        listeners = list(self._listeners)
        topics = sorted({topic for listener in listeners for topic in listener.topics})
        try:
            found = await self._database.read(lambda tx: {topic: LOOKS[topic](tx) for topic in topics})
        except Retryable as error:
            log.warning("dashboard.not_looked", error=error.message)
            return
        changed = {topic for topic in topics if topic in self._seen and self._seen[topic] != found[topic]}
        self._seen = found
        for listener in listeners:
            listener.tell(changed)


def _report(task: asyncio.Task[None]) -> None:
    """Pages go on without it; they only renew themselves no more."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("dashboard.live_failed", exc_info=error)

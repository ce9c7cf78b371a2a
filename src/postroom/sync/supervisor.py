"""Watches the heartbeats of jobs. One that is silent for too long is cancelled, so that it can be queued again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from postroom.domain.clock import Clock

_LOOKS_A_TIMEOUT = 4
_SHORTEST_PAUSE_S = 0.02


class Attempt:
    """One attempt of a job, as the supervisor sees it."""

    def __init__(self, task: asyncio.Task[object], now: float) -> None:
        self.task = task
        self.last_beat = now
        self.is_stalled = False


class Supervisor:
    def __init__(self, clock: Clock, stall_timeout_s: float) -> None:
        self.stall_timeout_s = stall_timeout_s
        self._clock = clock
        self._attempts: set[Attempt] = set()

    @contextmanager
    def watching(self) -> Iterator[Attempt]:
        """The current task is an attempt, until the block ends."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine always runs in a task
        attempt = Attempt(task, self._clock.monotonic())
        self._attempts.add(attempt)
        try:
            yield attempt
        finally:
            self._attempts.discard(attempt)

    def beat(self, attempt: Attempt) -> None:
        attempt.last_beat = self._clock.monotonic()

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await self._clock.sleep(max(self.stall_timeout_s / _LOOKS_A_TIMEOUT, _SHORTEST_PAUSE_S))
            self.look()

    def look(self) -> None:
        silent_since = self._clock.monotonic() - self.stall_timeout_s
        for attempt in self._attempts:
            if attempt.last_beat <= silent_since and not attempt.is_stalled:
                attempt.is_stalled = True
                attempt.task.cancel()

"""The in-process queue of jobs. New jobs wait while it is full; retried and split ones never do, or nobody could go on.

It closes when it is idle: everything that was put in has been settled, splits included, and nothing more will come.
"""

from __future__ import annotations

import asyncio
from collections import deque

from postroom.sync.isolation import Job


class Dispatcher:
    def __init__(self, most_waiting: int) -> None:
        self._most_waiting = most_waiting
        self._waiting: deque[Job] = deque()
        self._unsettled = 0
        self._is_closing = False
        self._changed = asyncio.Condition()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def unsettled(self) -> int:
        """Jobs that are waiting, being worked on, or in a pause before the next attempt."""
        return self._unsettled

    async def put(self, job: Job) -> None:
        """A new job; waits for room."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self._waiting) < self._most_waiting)
            self._unsettled += 1
            self._waiting.append(job)
            self._changed.notify_all()

    async def put_back(self, job: Job) -> None:
        """The same work once more; it was never settled."""
        async with self._changed:
            self._waiting.append(job)
            self._changed.notify_all()

    async def replace(self, *jobs: Job) -> None:
        """Settle one job by what becomes of it: these, or nothing."""
        async with self._changed:
            self._unsettled += len(jobs) - 1
            self._waiting.extend(jobs)
            self._changed.notify_all()

    async def take(self) -> Job | None:
        """The next job; None when there will never be another."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._waiting or self._is_over)
            if not self._waiting:
                return None
            job = self._waiting.popleft()
            self._changed.notify_all()
            return job

    async def close_when_idle(self) -> None:
        """No new jobs will come."""
        async with self._changed:
            self._is_closing = True
            self._changed.notify_all()

    @property
    def _is_over(self) -> bool:
        return self._is_closing and self._unsettled == 0

"""A crash at any point, simulated in the test's own process: a database and a network that raise `Killed` before or
after a call, as the code under test would die there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import httpx2

from postroom.db import Database, Tx

T = TypeVar("T")


class Killed(BaseException):
    """No handler of errors sees this, as none sees SIGKILL."""


class CrashPoint:
    """Counts the points at which a process could die, and strikes at the one that was chosen."""

    def __init__(self, strike_at: int | None = None) -> None:
        self.strike_at = strike_at
        self.passed = 0

    def point(self) -> None:
        self.passed += 1
        if self.passed == self.strike_at:
            raise Killed


class CrashingDatabase(Database):
    """May die before a write is begun, and after it was committed."""

    def __init__(self, inner: Database, reaper: CrashPoint) -> None:
        self._inner, self._reaper = inner, reaper
        self.dialect, self.wake = inner.dialect, inner.wake

    async def write(self, transaction: Callable[[Tx], T], *, together: str | None = None) -> T:
        self._reaper.point()
        value = await self._inner.write(transaction, together=together)
        self._reaper.point()
        return value

    async def read(self, transaction: Callable[[Tx], T]) -> T:
        return await self._inner.read(transaction)

    async def _transact(
        self, transaction: Callable[[Tx], T], *, write: bool, together: str | None = None
    ) -> tuple[T, list[Any]]:
        raise AssertionError("both ways in are above")

    async def close(self) -> None:
        await self._inner.close()


class CrashingNetwork(httpx2.AsyncBaseTransport):
    """May die before a call is made, and after it was carried out, with its answer unread."""

    def __init__(self, reaper: CrashPoint) -> None:
        self._inner, self._reaper = httpx2.AsyncHTTPTransport(verify=False), reaper

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self._reaper.point()
        response = await self._inner.handle_async_request(request)
        await response.aread()
        self._reaper.point()
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()

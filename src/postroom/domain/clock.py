"""Where time comes from. Nothing else in Postroom asks the operating system what time it is."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

from postroom.domain.errors import BadInput


class Clock(Protocol):
    def now(self) -> datetime:
        """The time of day, aware, in UTC. May jump when the system clock is set."""

    def monotonic(self) -> float:
        """Seconds since some start; never goes back."""

    async def sleep(self, seconds: float) -> None:
        """Let others run for this long."""


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class ManualClock:
    """A clock that stands still until it is moved: for tests and for simulated time."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._now = start
        self._elapsed = 0.0

    def now(self) -> datetime:
        return self._now

    def monotonic(self) -> float:
        return self._elapsed

    async def sleep(self, seconds: float) -> None:
        self.advance(seconds)
        await asyncio.sleep(0)

    def advance(self, seconds: float) -> None:
        self._now += timedelta(seconds=seconds)
        self._elapsed += seconds


def require_utc(value: datetime, field: str) -> datetime:
    """The same instant in UTC; a time without a zone is refused, because it names no instant."""
    if value.tzinfo is None:
        raise BadInput(field, f"{value.isoformat()} has no time zone; write for example {value.isoformat()}+00:00")
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise BadInput(field, f"{value.isoformat()} lies outside of all calendars") from None

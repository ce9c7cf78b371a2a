"""Where time comes from, and lengths of time as people write them: `30m`, `12h`, `3d`, `2w`, `6mo`, `1y`.

Nothing else in Postroom asks the operating system what time it is. A length has one meaning everywhere but in the
search language, where `newer_than:2m` is two months, as in Gmail.
"""

from __future__ import annotations

import asyncio
import re
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


def utc_text(value: datetime) -> str:
    """ISO 8601 in UTC with a fixed width, so that texts sort as the instants do."""
    return require_utc(value, "time").isoformat(timespec="microseconds")[:-6] + "Z"


DURATION_UNITS = {
    "m": ("minute", timedelta(minutes=1)),
    "h": ("hour", timedelta(hours=1)),
    "d": ("day", timedelta(days=1)),
    "w": ("week", timedelta(days=7)),
    "mo": ("month", timedelta(days=30)),
    "y": ("year", timedelta(days=365)),
}
"""By their short form: the name and the length."""
DURATION_EXAMPLES = "30m (minutes), 12h, 3d, 2w, 6mo (months) or 1y"
_WRITTEN = re.compile(r"([0-9]{1,7})\s?(mo|[mhdwy])", re.IGNORECASE | re.ASCII)


def parse_duration(text: str) -> timedelta | None:
    """None where the text is no length of time."""
    parts = split_duration(text)
    return None if parts is None else parts[0] * DURATION_UNITS[parts[1]][1]


def as_amount(text: str) -> tuple[int, str] | None:
    """As an amount of minutes, hours or days."""
    amount, unit = split_duration(text) or (0, "")
    if not unit:
        return None
    if unit in ("m", "h"):
        return amount, f"{DURATION_UNITS[unit][0]}s"
    return amount * DURATION_UNITS[unit][1].days, "days"


def split_duration(text: str) -> tuple[int, str] | None:
    """The number and the short form of its unit."""
    found = _WRITTEN.fullmatch(text.strip())
    return None if found is None else (int(found[1]), found[2].lower())

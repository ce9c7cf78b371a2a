"""Where time comes from, lengths of time as people write them (`30m`, `12h`, `3d`, `2w`, `6mo`, `1y`), and how long to
wait before another attempt.

Nothing else in Postroom asks the operating system what time it is. A length has one meaning everywhere but in the
search language, where `newer_than:2m` is two months, as in Gmail.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import inf, log, pow
from random import Random
from typing import Protocol, TypeVar

from postroom.domain.errors import BadInput, Retryable


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
    moment = value if value.tzinfo is UTC else require_utc(value, "time")
    return moment.isoformat(timespec="microseconds")[:-6] + "Z"


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


T = TypeVar("T")
_RANDOM = Random()  # noqa: S311 - jitter, not a secret
EQUAL_JITTER = (0.5, 1.0)
"""Between half the delay and all of it, so that callers that failed together do not return together."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays grow from `first_s` by `factor` up to `longest_s`; each is multiplied by a random number in `jitter`.

    A delay that the other side asked for (Retry-After) wins where it is longer, up to `longest_asked_s`. With
    `asked_may_shorten` it also wins where it is shorter: only for callers whose attempts are limited some other way,
    since a service may ask for 0 s again and again.
    """

    first_s: float
    longest_s: float
    factor: float = 2.0
    jitter: tuple[float, float] = (1.0, 1.0)
    longest_asked_s: float = inf
    asked_may_shorten: bool = False

    def __post_init__(self) -> None:
        if not (0 < self.first_s <= self.longest_s and self.factor >= 1 and 0 <= self.jitter[0] <= self.jitter[1]):
            raise ValueError(f"{self} does not grow from its first delay to its longest")

    def delay_s(self, attempt: float, asked: timedelta | None = None, *, random: Random = _RANDOM) -> float:
        """Seconds to wait after this failed attempt, counted from 1; a fraction lies between two attempts."""
        asked_s = None if asked is None else min(max(asked.total_seconds(), 0.0), self.longest_asked_s)
        if asked_s is not None and self.asked_may_shorten:
            return asked_s
        return max(self._grown_s(attempt) * random.uniform(*self.jitter), asked_s or 0.0)

    def _grown_s(self, attempt: float) -> float:
        steps = max(attempt - 1, 0)
        if steps * log(self.factor) >= log(self.longest_s / self.first_s):  # before the power can overflow
            return self.longest_s
        return min(self.first_s * pow(self.factor, steps), self.longest_s)


async def retry(
    work: Callable[[], Awaitable[T]],
    backoff: Backoff,
    clock: Clock,
    *,
    attempts: float = inf,
    patience_s: float = inf,
    on_wait: Callable[[Retryable, float], None] = lambda error, delay_s: None,
) -> T:
    """Call `work` until it does not raise Retryable; after so many attempts, or so long, raise what it raised.

    `work` must be safe to repeat: an answer that was lost is asked for again. `on_wait` is called before each pause.
    """
    started, attempt = clock.monotonic(), 1
    while True:
        try:
            return await work()
        except Retryable as error:
            if attempt >= attempts or clock.monotonic() - started >= patience_s:
                raise
            delay_s = backoff.delay_s(attempt, error.retry_after)
            on_wait(error, delay_s)
        await clock.sleep(delay_s)
        attempt += 1

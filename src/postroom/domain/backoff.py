"""Exponential backoff: how long to wait before the next attempt, and a loop that retries."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from math import inf, log, pow
from random import Random
from typing import TypeVar

from postroom.domain.clock import Clock
from postroom.domain.errors import Retryable

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

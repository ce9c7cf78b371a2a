"""What was spent, and at what pace: a sliding window of units and a token bucket. Pure, on a time that is given."""

from __future__ import annotations

import math
from collections import deque

from postroom.gmail.quota import MINUTE_S

_TICK_S = 0.001
"""A unit spent exactly a minute ago still counts, so that no minute, wherever it begins, holds too much."""


class UnitWindow:
    """Units spent within the last minute.

    The service charges a call at some instant between its start and its end. So a unit counts from the start, and
    until a minute after the end: whenever it was charged, it has left the service's window when it leaves this one.
    """

    def __init__(self, window_s: float = MINUTE_S) -> None:
        self._window_s = window_s
        self._ended: deque[tuple[float, int]] = deque()
        self._ended_units = 0
        self._begun = 0

    def used(self, now: float) -> int:
        while self._ended and self._ended[0][0] + self._window_s < now:
            self._ended_units -= self._ended.popleft()[1]
        return self._ended_units + self._begun

    def begin(self, units: int) -> None:
        self._begun += units

    def end(self, units: int, now: float) -> None:
        self._begun -= units
        self._ended_units += units
        self._ended.append((now, units))

    def spend(self, units: int, now: float) -> None:
        self.begin(units)
        self.end(units, now)

    def wait_until_at_most(self, units: int, now: float) -> float:
        """Seconds until no more than this is used; infinite where a call has to end first."""
        surplus = self.used(now) - units
        if surplus <= 0:
            return 0.0
        for ended_at, spent in self._ended:
            surplus -= spent
            if surplus <= 0:
                return max(ended_at + self._window_s - now, 0.0) + _TICK_S
        return math.inf


class Pace:
    """A token bucket that may go into debt, so that something dearer than the bucket is only paid for afterwards."""

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._rate = rate
        self._burst = burst
        self._tokens = burst
        self._at = now

    def change(self, rate: float, burst: float, now: float) -> None:
        if (rate, burst) != (self._rate, self._burst):
            self._refill(now)
            self._rate, self._burst = rate, burst
            self._tokens = min(self._tokens, burst)

    def wait_for(self, tokens: float, now: float) -> float:
        self._refill(now)
        missing = min(tokens, self._burst) - self._tokens
        # Less than a rounding error missing is nothing missing: the wait for it could be too short to pass.
        return missing / self._rate if missing > 1e-9 else 0.0

    def take(self, tokens: float, now: float) -> None:
        self._refill(now)
        self._tokens -= tokens

    def _refill(self, now: float) -> None:
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
        self._at = now

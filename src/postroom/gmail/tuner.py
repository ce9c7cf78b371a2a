"""Finds the rate that a service bears without being told: additive increase, multiplicative decrease (SY-4). Pure.

Every healthy window adds a worker and half a request a second; a refusal for rate, or answers that take too long,
halve both. After a cut the tuner remembers two rates: what went through in the minute before it (good) and what was
being asked for (bad). It climbs back to the good one in ordinary steps, feels its way towards the bad one in ever
smaller ones, and looks beyond only now and then, less often each time the limit turns out to be where it was.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass
from math import ceil

_WINDOW_S = 5.0
_GOOD_OVER_S = 60.0
_FEWEST_FOR_P95 = 5
_CLOSE_ENOUGH = 0.02
"""Good and bad rates this near to each other need no more searching."""
_APPROACH = 0.06
_ROOM_AFTER_A_CUT = 1.15
_PROBE_STEP = 0.01
_PROBE_PAST = 1.1
_FIRST_PROBE_S = 150.0
_LONGEST_PROBE_S = 3_600.0
_FIRST_BACK_OFF_S = 2.0
_LONGEST_BACK_OFF_S = 64.0
_USED_ENOUGH = 0.7
"""A window that used less of its rate than this says nothing about a higher one."""


@dataclass(frozen=True, slots=True)
class TunerLimits:
    start_workers: int = 8
    max_workers: int = 32
    start_rps: float = 4.0
    min_rps: float = 0.1
    max_rps: float = 16.0
    worker_step: int = 1
    rps_step: float = 0.5
    p95_limit_s: float = 2.0


class Tuner:
    def __init__(self, limits: TunerLimits, dice: random.Random, now: float) -> None:
        self.limits = limits
        self.workers = min(limits.start_workers, limits.max_workers)
        self.rps = min(limits.start_rps, limits.max_rps)
        self.hold_until = now
        """Nothing may be sent before this."""
        self.cuts = 0
        self._dice = dice
        self._good: float | None = None
        self._bad: float | None = None
        self._probe_at = now
        self._probe_interval_s = _FIRST_PROBE_S
        self._cut_at = now
        self._cuts_in_a_row = 0
        self._succeeded: deque[float] = deque()
        self._window = _Window(now)

    def succeeded(self, sent_at: float, now: float) -> None:
        self._succeeded.append(now)
        self._forget_before(now - _GOOD_OVER_S)
        self._window.latencies.append(now - sent_at)
        self._roll(now)

    def failed(self, sent_at: float, now: float) -> None:
        """It went wrong, but not because of the rate: no reason to slow down, and none to speed up."""
        self._window.is_healthy = False
        self._window.latencies.append(now - sent_at)
        self._roll(now)

    def throttled(self, sent_at: float, now: float, retry_after_s: float | None = None) -> None:
        """Refused for rate. Calls that were under way when the rate was cut say nothing new, except when to retry."""
        if sent_at >= self._cut_at:
            self._cut(now)
        back_off = min(_FIRST_BACK_OFF_S * 2 ** (self._cuts_in_a_row - 1), _LONGEST_BACK_OFF_S)
        wait = self._dice.uniform(0.5, 1.0) * back_off if retry_after_s is None else retry_after_s
        self.hold_until = max(self.hold_until, now + wait)

    def _roll(self, now: float) -> None:
        if now - self._window.start < _WINDOW_S:
            return
        closed, self._window = self._window, _Window(now)
        if closed.p95 > self.limits.p95_limit_s:
            self._cut(now)
        elif closed.is_healthy:
            self._cuts_in_a_row = 0
            if len(closed.latencies) >= _USED_ENOUGH * self.rps * (now - closed.start):
                self._grow(now)

    def _cut(self, now: float) -> None:
        self._remember(now)
        self.rps = max(self.rps / 2, self.limits.min_rps)
        self.workers = max(self.workers // 2, 1)
        self.cuts += 1
        self._cuts_in_a_row += 1
        self._cut_at = now
        self._window = _Window(now)

    def _remember(self, now: float) -> None:
        again = self._bad is not None and self._good is not None and self._good <= self.rps <= self._bad * _PROBE_PAST
        if again and now >= self._probe_at:
            self._probe_interval_s = min(self._probe_interval_s * 2, _LONGEST_PROBE_S)
        # What went through is proof, even when the rate of now is lower: the service may still be busy with what was
        # too much before. Too little is known in the first minute; half the rate is then the better guess.
        self._good = max(self._goodput(now), self.rps / 2)
        # In the minute after a cut, less went through than could have: leave room to search above it.
        is_aftermath = self.cuts > 0 and now - self._cut_at < _GOOD_OVER_S
        self._bad = max(self.rps, self._good * (_ROOM_AFTER_A_CUT if is_aftermath else 1.0))
        self._probe_at = now + self._probe_interval_s

    def _goodput(self, now: float) -> float:
        """What went through each second of the last minute. Over less, a service that counts by the minute would seem
        to bear whatever it had not yet added up."""
        self._forget_before(now - _GOOD_OVER_S)
        return len(self._succeeded) / _GOOD_OVER_S

    def _forget_before(self, start: float) -> None:
        while self._succeeded and self._succeeded[0] < start:
            self._succeeded.popleft()

    def _grow(self, now: float) -> None:
        self.workers = min(self.workers + self.limits.worker_step, self.limits.max_workers)
        self.rps = min(self._next_rps(now), self.limits.max_rps)

    def _next_rps(self, now: float) -> float:
        step = self.rps + self.limits.rps_step
        if self._good is None or self._bad is None:
            return step
        target = self._good * (1 - _CLOSE_ENOUGH)
        if self.rps < target:
            return min(step, target)
        if now >= self._probe_at:
            return self._probe()
        gap = self._bad - self.rps
        is_settled = self._bad - self._good <= 2 * _CLOSE_ENOUGH * self._bad or gap <= _CLOSE_ENOUGH * self._bad
        return self.rps if is_settled else self.rps + gap * _APPROACH

    def _probe(self) -> float:
        """A careful look beyond; well past the bad rate, the memory of it is worth nothing any more."""
        if self._bad is not None and self.rps > self._bad * _PROBE_PAST:
            self._good = self._bad = None
            self._probe_interval_s = _FIRST_PROBE_S
        return self.rps * (1 + _PROBE_STEP)


class _Window:
    def __init__(self, start: float) -> None:
        self.start = start
        self.latencies: list[float] = []
        self.is_healthy = True

    @property
    def p95(self) -> float:
        """Of too few calls, nothing can be said."""
        if len(self.latencies) < _FEWEST_FOR_P95:
            return 0.0
        return sorted(self.latencies)[ceil(0.95 * len(self.latencies)) - 1]

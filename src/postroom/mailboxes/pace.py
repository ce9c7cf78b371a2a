"""When the next call of an account may start. Pure; time is passed in.

A sliding window counts quota units, a token bucket spreads requests, the tuner finds the rate that the service
accepts (additive increase, multiplicative decrease; SY-4), and the gate combines them with the reserve for urgent
lanes and the limit on calls in flight.
"""

from __future__ import annotations

import math
import random
from collections import deque
from dataclasses import dataclass, field
from datetime import timedelta
from math import ceil

from postroom.domain.clock import EQUAL_JITTER, Backoff
from postroom.mailboxes.gmail.methods import MINUTE_S, GmailMethod, QuotaProfile
from postroom.mailboxes.ports import PriorityLane

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


class TokenBucket:
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


_WINDOW_S = 5.0
_GOOD_OVER_S = 60.0
_FEWEST_FOR_P95 = 5
_CLOSE_ENOUGH = 0.02
"""The search ends when the good and the bad rate are this close."""
_APPROACH = 0.06
_ROOM_AFTER_A_CUT = 1.15
_PROBE_STEP = 0.01
_PROBE_PAST = 1.1
_FIRST_PROBE_S = 150.0
_LONGEST_PROBE_S = 3_600.0
_BACKOFF = Backoff(2.0, 64.0, jitter=EQUAL_JITTER, asked_may_shorten=True)
_USED_ENOUGH = 0.7
"""A window that used less than this share of its rate says nothing about a higher rate."""


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
        self._window = _TunerWindow(now)

    def succeeded(self, sent_at: float, now: float) -> None:
        self._succeeded.append(now)
        self._forget_before(now - _GOOD_OVER_S)
        self._window.latencies.append(now - sent_at)
        self._roll(now)

    def failed(self, sent_at: float, now: float) -> None:
        """A call failed for another reason than the rate, which stays as it is."""
        self._window.is_healthy = False
        self._window.latencies.append(now - sent_at)
        self._roll(now)

    def throttled(self, sent_at: float, now: float, retry_after_s: float | None = None) -> None:
        """A call was throttled. Calls that were in flight when the rate was cut only say when to retry."""
        if sent_at >= self._cut_at:
            self._cut(now)
        asked = None if retry_after_s is None else timedelta(seconds=retry_after_s)
        wait = _BACKOFF.delay_s(self._cuts_in_a_row, asked, random=self._dice)
        self.hold_until = max(self.hold_until, now + wait)

    def _roll(self, now: float) -> None:
        if now - self._window.start < _WINDOW_S:
            return
        closed, self._window = self._window, _TunerWindow(now)
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
        self._window = _TunerWindow(now)

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
        """The calls per second of the last minute. A shorter time would be misleading with a service that counts by the
        minute."""
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
        """Try a slightly higher rate. Well above the last bad rate, that rate is forgotten."""
        if self._bad is not None and self.rps > self._bad * _PROBE_PAST:
            self._good = self._bad = None
            self._probe_interval_s = _FIRST_PROBE_S
        return self.rps * (1 + _PROBE_STEP)


class _TunerWindow:
    def __init__(self, start: float) -> None:
        self.start = start
        self.latencies: list[float] = []
        self.is_healthy = True

    @property
    def p95(self) -> float:
        """Too few calls say nothing."""
        if len(self.latencies) < _FEWEST_FOR_P95:
            return 0.0
        return sorted(self.latencies)[ceil(0.95 * len(self.latencies)) - 1]


MAX_IN_FLIGHT = 8
_BURST = 1.5
"""How many seconds' worth of requests may follow a pause at once."""


_URGENT_RPS, _URGENT_BURST = 1.0, 8.0
"""At least: an action takes a few calls, and a person waits for them."""


@dataclass(frozen=True, slots=True)
class Reserve:
    """The part of the allowance that only urgent lanes may use.

    Kept back is twice what they used in the last minute, but at least `floor` and at most `share` of the allowance.
    So a quiet evening leaves nearly everything to the sync, and a busy morning finds a fifth free. Both equal: fixed.
    """

    share: float = 0.20
    floor: float = 0.02

    def kept(self, allowance: int, urgent_used: int) -> int:
        return math.ceil(min(max(2 * urgent_used, self.floor * allowance), self.share * allowance))


@dataclass(frozen=True, slots=True)
class GateLimits:
    """`units_per_minute` None: units are not metered here (a shared budget does it, or nothing does)."""

    units_per_minute: int | None = None
    max_in_flight: int = MAX_IN_FLIGHT
    reserve: Reserve = field(default=Reserve())


def tuner_limits_for(profile: QuotaProfile | None, base: TunerLimits = TunerLimits()) -> TunerLimits:  # noqa: B008
    """With a known allowance, the highest rate is that which uses it up with one message per request."""
    if profile is None:
        return base
    most = profile.units_per_minute / MINUTE_S / profile.cost(GmailMethod.MESSAGES_GET)
    return TunerLimits(
        base.start_workers,
        base.max_workers,
        min(base.start_rps, most),
        base.min_rps,
        most,
        base.worker_step,
        base.rps_step,
        base.p95_limit_s,
    )


class CallGate:
    def __init__(self, limits: GateLimits, tuner: Tuner, now: float) -> None:
        self.limits = limits
        self.tuner = tuner
        self.in_flight = 0
        self._bulk_in_flight = 0
        self._used = UnitWindow()
        self._urgent_used = UnitWindow()
        self._requests = TokenBucket(tuner.rps, _burst(tuner.rps), now)
        self._urgent_requests = TokenBucket(*_urgent_pace(tuner.rps), now)
        per_second = (limits.units_per_minute or 0) / MINUTE_S
        self._units = TokenBucket(per_second, per_second, now) if per_second else None

    def wait(self, lane: PriorityLane, units: int, now: float) -> float:
        """Zero: it may begin. Else the seconds until it is worth asking again; infinite: when another call ends."""
        if self._slots_left(lane) <= 0:
            return math.inf
        rps = self.tuner.rps
        self._requests.change(rps, _burst(rps), now)
        self._urgent_requests.change(*_urgent_pace(rps), now)
        # Urgent calls do not wait for what a walk has slowed down to, only for a pause that was asked for.
        requests = self._urgent_requests if lane.may_use_reserve else self._requests
        return max(
            self.tuner.hold_until - now,
            requests.wait_for(1, now),
            self._wait_for_units(lane, units, now),
            0.0,
        )

    def begin(self, lane: PriorityLane, units: int, now: float) -> None:
        self.in_flight += 1
        self._bulk_in_flight += not lane.may_use_reserve
        self._requests.take(1, now)
        self._used.begin(units)
        if lane.may_use_reserve:
            self._urgent_requests.take(1, now)
            self._urgent_used.begin(units)
        if self._units is not None:
            self._units.take(units, now)

    def end(self, lane: PriorityLane, units: int, now: float) -> None:
        self.in_flight -= 1
        self._bulk_in_flight -= not lane.may_use_reserve
        self._used.end(units, now)
        if lane.may_use_reserve:
            self._urgent_used.end(units, now)

    def used(self, now: float) -> int:
        return self._used.used(now)

    def _slots_left(self, lane: PriorityLane) -> int:
        most = min(self.limits.max_in_flight, self.tuner.workers)
        # One slot is left to the urgent, or a few slow downloads would keep a person waiting.
        bulk_left = max(most - 1, 1) - self._bulk_in_flight
        return most - self.in_flight if lane.may_use_reserve else min(most - self.in_flight, bulk_left)

    def _wait_for_units(self, lane: PriorityLane, units: int, now: float) -> float:
        allowance = self.limits.units_per_minute
        if allowance is None or self._units is None:
            return 0.0
        if lane.may_use_reserve:
            # Urgent calls do not wait for a debt that bulk calls made; only for room in the minute.
            return self._used.wait_until_at_most(max(allowance - units, 0), now)
        urgent = self._urgent_used.used(now)
        open_to_all = allowance - max(self.limits.reserve.kept(allowance, urgent) - urgent, 0)
        room = self._used.wait_until_at_most(max(open_to_all - units, 0), now)
        return max(room, self._units.wait_for(units, now))


def _burst(rps: float) -> float:
    return max(_BURST * rps, 1.0)


def _urgent_pace(rps: float) -> tuple[float, float]:
    """The rate and the burst of urgent calls, which are few."""
    return max(rps, _URGENT_RPS), max(_burst(rps), _URGENT_BURST)

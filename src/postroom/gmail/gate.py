"""May this call begin now, and if not, when? All rules of an account in one pure place, on a time that is given.

Units stay within the allowance of any minute and are spread evenly; requests keep the tuner's pace; at most so many
are in flight; nothing begins while the service has asked for a pause. Urgent lanes find room that others leave.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from postroom.gmail.ports import Lane
from postroom.gmail.quota import MINUTE_S, Method, QuotaProfile
from postroom.gmail.tuner import Tuner, TunerLimits
from postroom.gmail.windows import Pace, UnitWindow

MAX_IN_FLIGHT = 8
_BURST = 1.5
"""How many seconds' worth of requests may follow a pause at once."""


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
    """`units_per_minute` None: units are not metered here (a shared budget does it, or nobody)."""

    units_per_minute: int | None = None
    max_in_flight: int = MAX_IN_FLIGHT
    reserve: Reserve = field(default=Reserve())


def tuner_limits_for(profile: QuotaProfile | None, base: TunerLimits = TunerLimits()) -> TunerLimits:  # noqa: B008
    """Where the allowance is known, the most requests a second are those that would use it up, one message each."""
    if profile is None:
        return base
    most = profile.units_per_minute / MINUTE_S / profile.cost(Method.MESSAGES_GET)
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


class Gate:
    def __init__(self, limits: GateLimits, tuner: Tuner, now: float) -> None:
        self.limits = limits
        self.tuner = tuner
        self.in_flight = 0
        self._bulk_in_flight = 0
        self._used = UnitWindow()
        self._urgent_used = UnitWindow()
        self._requests = Pace(tuner.rps, _burst(tuner.rps), now)
        per_second = (limits.units_per_minute or 0) / MINUTE_S
        self._units = Pace(per_second, per_second, now) if per_second else None

    def wait(self, lane: Lane, units: int, now: float) -> float:
        """Zero: it may begin. Else the seconds until it is worth asking again; infinite: when another call ends."""
        if self._slots_left(lane) <= 0:
            return math.inf
        rps = self.tuner.rps
        self._requests.change(rps, _burst(rps), now)
        return max(
            self.tuner.hold_until - now,
            self._requests.wait_for(1, now),
            self._wait_for_units(lane, units, now),
            0.0,
        )

    def begin(self, lane: Lane, units: int, now: float) -> None:
        self.in_flight += 1
        self._bulk_in_flight += not lane.may_use_reserve
        self._requests.take(1, now)
        self._used.begin(units)
        if lane.may_use_reserve:
            self._urgent_used.begin(units)
        if self._units is not None:
            self._units.take(units, now)

    def end(self, lane: Lane, units: int, now: float) -> None:
        self.in_flight -= 1
        self._bulk_in_flight -= not lane.may_use_reserve
        self._used.end(units, now)
        if lane.may_use_reserve:
            self._urgent_used.end(units, now)

    def used(self, now: float) -> int:
        return self._used.used(now)

    def _slots_left(self, lane: Lane) -> int:
        most = min(self.limits.max_in_flight, self.tuner.workers)
        # One slot is left to the urgent, or a few slow downloads would keep a person waiting.
        bulk_left = max(most - 1, 1) - self._bulk_in_flight
        return most - self.in_flight if lane.may_use_reserve else min(most - self.in_flight, bulk_left)

    def _wait_for_units(self, lane: Lane, units: int, now: float) -> float:
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

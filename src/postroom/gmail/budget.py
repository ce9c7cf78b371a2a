"""One allowance for many processes: the shared window that hands out units, and the leases that a process holds."""

from __future__ import annotations

from postroom.domain.clock import Clock
from postroom.gmail.gate import Reserve
from postroom.gmail.ports import Grant, Lane, UnitBudget
from postroom.gmail.quota import MINUTE_S
from postroom.gmail.windows import Pace, UnitWindow

LEASE_LIFE_S = 2.0
"""Leased units that were not used by then are given up."""
SLACK_S = LEASE_LIFE_S + 1.0
"""A unit may be charged by the service this much later than it was leased; so long it counts beyond the minute."""
_CHUNK_S = 0.5
"""Bulk lanes lease about so many seconds' worth at a time: few calls, and little to give up."""
_ASK_AGAIN_S = 0.25


class SharedWindow:
    """The budget itself (a `UnitBudget`), where it lives: in the process that all others ask."""

    def __init__(self, units_per_minute: int, clock: Clock, reserve: Reserve = Reserve()) -> None:  # noqa: B008
        self._allowance = units_per_minute
        self._clock = clock
        self._reserve = reserve
        self._used = UnitWindow(MINUTE_S + SLACK_S)
        self._urgent_used = UnitWindow(MINUTE_S + SLACK_S)
        per_second = units_per_minute / MINUTE_S
        self._pace = Pace(per_second, per_second, clock.monotonic())

    async def lease(self, units: int, lane: Lane) -> Grant:
        now = self._clock.monotonic()
        urgent = self._urgent_used.used(now)
        kept = 0 if lane.may_use_reserve else max(self._reserve.kept(self._allowance, urgent) - urgent, 0)
        wait = self._used.wait_until_at_most(max(self._allowance - kept - units, 0), now)
        if not lane.may_use_reserve:
            wait = max(wait, self._pace.wait_for(units, now))
        if wait > 0:
            return Grant(0, wait)
        self._used.spend(units, now)
        self._pace.take(units, now)
        if lane.may_use_reserve:
            self._urgent_used.spend(units, now)
        return Grant(units)


class Leases:
    """Units that this process has leased and not yet used."""

    def __init__(self, budget: UnitBudget, units_per_minute: int) -> None:
        self._budget = budget
        self._chunk = max(int(units_per_minute / MINUTE_S * _CHUNK_S), 1)
        self._units = 0
        self._until = 0.0

    async def take(self, units: int, lane: Lane, clock: Clock) -> float:
        """Zero if the units are there, and taken; else the seconds until it is worth asking again."""
        if clock.monotonic() >= self._until:
            self._units = 0
        missing = units - self._units
        if missing > 0:
            # Urgent lanes lease what they need and no more, so that nothing of the reserve is left to others.
            asked_at = clock.monotonic()
            wanted = missing if lane.may_use_reserve else max(missing, self._chunk)
            grant = await self._budget.lease(wanted, lane)
            if clock.monotonic() - asked_at >= LEASE_LIFE_S:
                return _ASK_AGAIN_S
            self._until = asked_at + LEASE_LIFE_S if self._units <= 0 else self._until
            self._units += grant.units
            if self._units < units:
                return max(grant.retry_after_s, 0.0) or _ASK_AGAIN_S
        self._units -= units
        return 0.0

    def give_back(self, units: int) -> None:
        """Not used after all; good until the lease runs out."""
        self._units += units

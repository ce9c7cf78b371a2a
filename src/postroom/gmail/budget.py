"""One allowance for many processes: the shared window that hands out units, and the leases that a process holds."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from postroom.domain.clock import Clock
from postroom.domain.errors import Retryable
from postroom.gmail.gate import Reserve
from postroom.gmail.ports import Grant, Lane, UnitBudget
from postroom.gmail.quota import MINUTE_S
from postroom.gmail.windows import Pace, UnitWindow

LEASE_LIFE_S = 0.75
"""Leased units that were not used by then are given up."""
SLACK_S = LEASE_LIFE_S + 0.75
"""A unit may be charged by the service this much later than it was leased; so long it counts beyond the minute."""
_CHUNK_S = 0.5
"""Bulk lanes lease about so many seconds' worth at a time: few calls, and little to give up."""
_ASK_AGAIN_S = 0.25
_ANSWER_S = 10.0


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
    """Units that this process has leased and not yet used, oldest first."""

    def __init__(self, budget: UnitBudget, units_per_minute: int) -> None:
        self._budget = budget
        self._chunk = int(units_per_minute / MINUTE_S * _CHUNK_S)
        self._lots: deque[_Lot] = deque()

    async def take(self, units: int, lane: Lane, clock: Clock) -> float:
        """Zero if the units are there, and taken; else the seconds until it is worth asking again."""
        missing = units - self._at_hand(clock.monotonic())
        if missing > 0:
            asked_at = clock.monotonic()
            grant = await self._lease(self._wanted(missing, units, lane), lane)
            self._lots.append(_Lot(asked_at + LEASE_LIFE_S, grant.units))
            if self._at_hand(clock.monotonic()) < units:
                return max(grant.retry_after_s, 0.0) or _ASK_AGAIN_S
        self._use(units)
        return 0.0

    async def _lease(self, units: int, lane: Lane) -> Grant:
        try:
            async with asyncio.timeout(_ANSWER_S):
                return await self._budget.lease(units, lane)
        except TimeoutError:
            raise Retryable(f"The account's quota budget did not answer within {_ANSWER_S:g} s") from None

    def give_back(self, units: int, clock: Clock) -> None:
        """Taken a moment ago and not used after all."""
        self._lots.appendleft(_Lot(clock.monotonic() + _ASK_AGAIN_S, units))

    def _wanted(self, missing: int, units: int, lane: Lane) -> int:
        """Urgent lanes lease what they need, so that nothing of the reserve is left to others. The others lease for a
        few calls like this one, so that nothing is left over that fits no call."""
        spare_calls = 0 if lane.may_use_reserve or not units else max(self._chunk // units - 1, 0)
        return missing + spare_calls * units

    def _at_hand(self, now: float) -> int:
        while self._lots and (self._lots[0].until <= now or not self._lots[0].units):
            self._lots.popleft()
        return sum(lot.units for lot in self._lots)

    def _use(self, units: int) -> None:
        for lot in self._lots:
            used = min(lot.units, units)
            lot.units -= used
            units -= used


@dataclass(slots=True)
class _Lot:
    until: float
    units: int

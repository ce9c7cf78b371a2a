"""Admits the calls of one account: most urgent lane first, in it listings first, then first come, first served.

Where several processes share an account, units are leased from a shared budget. A caller that is cancelled while
waiting uses nothing up; one that was admitted always gives its slot back.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import math
import random
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from itertools import count

from postroom.domain.clock import Clock
from postroom.domain.errors import BadInput, Retryable
from postroom.mailboxes.gmail.methods import MINUTE_S, QuotaProfile
from postroom.mailboxes.pace import CallGate, GateLimits, Reserve, Tuner, TunerLimits, tuner_limits_for
from postroom.mailboxes.ports import PriorityLane, UnitBudget, UnitGrant

LEASE_LIFE_S = 0.75
"""Leased units that were not used by then are given up."""
_CHUNK_S = 0.5
"""Bulk lanes lease about so many seconds' worth at a time: few calls, and little to give up."""
_ASK_AGAIN_S = 0.25
_ANSWER_S = 10.0


class Leases:
    """Units that this process has leased and not yet used, oldest first."""

    def __init__(self, budget: UnitBudget, units_per_minute: int) -> None:
        self._budget = budget
        self._chunk = int(units_per_minute / MINUTE_S * _CHUNK_S)
        self._lots: deque[_Lot] = deque()

    async def take(self, units: int, lane: PriorityLane, clock: Clock) -> float:
        """Zero once the units are taken; else the seconds until it is worth asking again."""
        missing = units - self._at_hand(clock.monotonic())
        if missing > 0:
            asked_at = clock.monotonic()
            grant = await self._lease(self._wanted(missing, units, lane), lane)
            self._lots.append(_Lot(asked_at + LEASE_LIFE_S, grant.units))
            if self._at_hand(clock.monotonic()) < units:
                return max(grant.retry_after_s, 0.0) or _ASK_AGAIN_S
        self._use(units)
        return 0.0

    async def _lease(self, units: int, lane: PriorityLane) -> UnitGrant:
        try:
            async with asyncio.timeout(_ANSWER_S):
                return await self._budget.lease(units, lane)
        except TimeoutError:
            raise Retryable(f"The account's quota budget did not answer within {_ANSWER_S:g} s") from None

    def give_back(self, units: int, clock: Clock) -> None:
        """Return units that were taken a moment ago and not used."""
        self._lots.appendleft(_Lot(clock.monotonic() + _ASK_AGAIN_S, units))

    def _wanted(self, missing: int, units: int, lane: PriorityLane) -> int:
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


_AT_ONCE_S = 0.001
_LONGEST_WAIT_S = 60.0
"""The gate is asked again at least this often."""


@dataclass(order=True, slots=True)
class _Waiter:
    lane: PriorityLane
    is_fetching: bool
    """Else others wait for what it finds: a walk would run out of messages to fetch behind its own fetching."""
    number: int
    units: int = field(compare=False)
    turn: asyncio.Future[None] = field(compare=False)


class Limiter:
    def __init__(self, gate: CallGate, clock: Clock, leases: Leases | None = None) -> None:
        self.gate = gate
        self._clock = clock
        self._leases = leases
        self._waiting: list[_Waiter] = []
        self._numbers = count()
        self._changed = asyncio.Event()
        self._door: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        return sum(not waiter.turn.done() for waiter in self._waiting)

    @contextlib.asynccontextmanager
    async def admit(self, lane: PriorityLane, units: int, *, is_listing: bool = False) -> AsyncIterator[None]:
        """Waits for its turn; inside, the call is in flight and its units are spent."""
        self._refuse_impossible(units)
        if self._waiting or self._leases is not None or self.gate.wait(lane, units, self._clock.monotonic()) > 0:
            await self._wait_for_turn(lane, units, is_listing)
        else:
            self.gate.begin(lane, units, self._clock.monotonic())
        try:
            yield
        finally:
            self._end(lane, units)

    async def _wait_for_turn(self, lane: PriorityLane, units: int, is_listing: bool) -> None:
        waiter = _Waiter(lane, not is_listing, next(self._numbers), units, asyncio.get_running_loop().create_future())
        heapq.heappush(self._waiting, waiter)
        self._changed.set()
        if self._door is None or self._door.done():
            self._door = asyncio.create_task(self._keep_door(), name="gmail limiter")
        try:
            await waiter.turn
        except asyncio.CancelledError:
            if waiter.turn.done() and not waiter.turn.cancelled() and waiter.turn.exception() is None:
                self._end(lane, units)  # its turn came in the same instant in which it gave up
            self._changed.set()
            raise

    def _end(self, lane: PriorityLane, units: int) -> None:
        self.gate.end(lane, units, self._clock.monotonic())
        self._changed.set()

    async def _keep_door(self) -> None:
        """Admit waiters one after the other, as long as there are any."""
        try:
            while waiter := self._first():
                self._changed.clear()
                wait = await self._wait_for(waiter)
                if wait > 0:
                    await self._until_changed(wait)
                elif not waiter.turn.done():
                    self.gate.begin(waiter.lane, waiter.units, self._clock.monotonic())
                    waiter.turn.set_result(None)
        except asyncio.CancelledError:
            self._send_away(None)
            raise
        except Exception as error:
            self._send_away(error)

    def _first(self) -> _Waiter | None:
        while self._waiting and self._waiting[0].turn.done():
            heapq.heappop(self._waiting)
        return self._waiting[0] if self._waiting else None

    async def _wait_for(self, waiter: _Waiter) -> float:
        wait = self.gate.wait(waiter.lane, waiter.units, self._clock.monotonic())
        if wait > 0 or self._leases is None or waiter.turn.done():
            return wait
        wait = await self._leases.take(waiter.units, waiter.lane, self._clock)
        # Others may have come or gone during the lease; what was leased is kept for the first in line.
        if wait <= 0 and (waiter.turn.done() or self._first() is not waiter):
            self._leases.give_back(waiter.units, self._clock)
            return _AT_ONCE_S
        return wait

    async def _until_changed(self, seconds: float) -> None:
        if math.isinf(seconds):
            await self._changed.wait()
            return
        changed = asyncio.ensure_future(self._changed.wait())
        passed = asyncio.ensure_future(self._clock.sleep(min(seconds, _LONGEST_WAIT_S)))
        try:
            await asyncio.wait([changed, passed], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in (changed, passed):
                each.cancel()
            await asyncio.gather(changed, passed, return_exceptions=True)

    def _send_away(self, error: Exception | None) -> None:
        """Fail all waiters, because the budget cannot be asked or the program ends; none may wait forever."""
        for waiter in self._waiting:
            if waiter.turn.done():
                continue
            if error is None:
                waiter.turn.cancel()
            else:
                waiter.turn.set_exception(error)
        self._waiting.clear()

    def _refuse_impossible(self, units: int) -> None:
        allowance = self.gate.limits.units_per_minute
        if allowance is not None and units > allowance:
            raise BadInput("units", f"one call of {units} units can never fit into {allowance} a minute")


def limiter_for(
    profile: QuotaProfile | None,
    clock: Clock,
    *,
    budget: UnitBudget | None = None,
    tuning: TunerLimits | None = None,
    reserve: Reserve | None = None,
    dice: random.Random | None = None,
) -> Limiter:
    """The limiter of one account. With a budget, the units come from there; without a profile, they are not counted."""
    now = clock.monotonic()
    tuner = Tuner(tuning or tuner_limits_for(profile), dice or random.Random(), now)  # noqa: S311 - jitter, no secret
    metered_here = profile.units_per_minute if profile and budget is None else None
    gate = CallGate(GateLimits(metered_here, reserve=reserve or Reserve()), tuner, now)
    leases = Leases(budget, profile.units_per_minute) if profile and budget else None
    return Limiter(gate, clock, leases)

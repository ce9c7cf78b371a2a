"""The limiter in virtual time: never too much, never forgotten, in the right order."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.domain.errors import BadInput, Retryable
from postroom.mailboxes.gmail.methods import PROFILES, ProfileName, QuotaProfile
from postroom.mailboxes.limiter import Limiter, limiter_for
from postroom.mailboxes.pace import MAX_IN_FLIGHT, Reserve, TunerLimits, tuner_limits_for
from postroom.mailboxes.ports import PriorityLane, UnitBudget, UnitGrant
from tests.support import virtual_time
from tests.support.gmail_sim import UNHURRIED
from tests.support.virtual_time import VirtualClock

SMALL = QuotaProfile(ProfileName.LEGACY, 600, PROFILES[ProfileName.LEGACY].costs)
FIXED_RESERVE = Reserve(share=0.2, floor=0.2)


@dataclass
class Calls:
    """What was let through, and when."""

    limiter: Limiter
    charged: list[tuple[float, int, PriorityLane]] = field(default_factory=list)
    in_flight: int = 0
    most_in_flight: int = 0

    async def make(self, lane: PriorityLane, units: int, latency: float, charged_after: float = 0.5) -> None:
        async with self.limiter.admit(lane, units):
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
            try:
                await asyncio.sleep(latency * charged_after)
                self.charged.append((asyncio.get_running_loop().time(), units, lane))
                await asyncio.sleep(latency * (1 - charged_after))
            finally:
                self.in_flight -= 1

    @property
    def busiest_minute(self) -> int:
        return max(
            (
                sum(units for at, units, _ in self.charged if start <= at <= start + 60.0)
                for start, _, _ in self.charged
            ),
            default=0,
        )


def small_limiter(tuning: TunerLimits = UNHURRIED, reserve: Reserve | None = None) -> Limiter:
    return limiter_for(SMALL, VirtualClock(), tuning=tuning, reserve=reserve, dice=random.Random(1))


CALL = st.tuples(
    st.sampled_from(list(PriorityLane)),
    st.integers(1, 120),
    st.floats(0, 3),
    st.floats(0, 1),
    st.floats(0, 20),
    st.booleans(),
)


@pytest.mark.req("SY-3")
@given(st.lists(CALL, max_size=60))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_no_minute_holds_more_than_the_allowance_and_nobody_is_forgotten(
    wanted: list[tuple[PriorityLane, int, float, float, float, bool]],
) -> None:
    async def main() -> None:
        calls = Calls(small_limiter())

        async def one(
            lane: PriorityLane, units: int, latency: float, charged_after: float, start: float, quits: bool
        ) -> None:
            await asyncio.sleep(start)
            call = calls.make(lane, units, latency, charged_after)
            if not quits:
                await call
                return
            try:
                await asyncio.wait_for(call, start / 4 + 0.01)
            except TimeoutError:
                return

        await asyncio.gather(*(one(*each) for each in wanted))
        assert calls.busiest_minute <= SMALL.units_per_minute
        assert calls.most_in_flight <= MAX_IN_FLIGHT
        assert calls.limiter.gate.in_flight == 0
        assert calls.limiter.waiting == 0
        stayed = sum(not quits for *_, quits in wanted)
        assert len(calls.charged) >= stayed
        await asyncio.sleep(61)
        assert calls.limiter.gate.used(asyncio.get_running_loop().time()) == 0

    virtual_time.run(main())


@pytest.mark.req("SY-3")
@given(st.lists(st.sampled_from(list(PriorityLane)), min_size=2, max_size=30))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_waiters_are_served_by_lane_and_then_in_the_order_they_came(lanes: list[PriorityLane]) -> None:
    async def main() -> list[tuple[PriorityLane, int]]:
        limiter = small_limiter(TunerLimits(start_workers=1, max_workers=1, start_rps=1e6, max_rps=1e6))
        served: list[tuple[PriorityLane, int]] = []

        async def one(lane: PriorityLane, number: int) -> None:
            async with limiter.admit(lane, 1):
                served.append((lane, number))
                await asyncio.sleep(0.1)

        async with limiter.admit(PriorityLane.USER_ACTION, 1):
            tasks = [asyncio.create_task(one(lane, number)) for number, lane in enumerate(lanes)]
            await asyncio.sleep(0.05)
        await asyncio.gather(*tasks)
        return served

    served = virtual_time.run(main())
    assert served == sorted(served)
    assert len(served) == len(lanes)


async def use_up(calls: Calls, lane: PriorityLane, seconds: float, units: int = 5) -> None:
    async def reader() -> None:
        while True:
            await calls.make(lane, units, 0.05)

    readers = [asyncio.create_task(reader()) for _ in range(4)]
    await asyncio.sleep(seconds)
    for each in readers:
        each.cancel()
    await asyncio.gather(*readers, return_exceptions=True)


@pytest.mark.req("SY-3")
def test_only_urgent_lanes_may_use_the_reserve() -> None:
    async def main() -> tuple[int, float]:
        calls = Calls(small_limiter(reserve=FIXED_RESERVE))
        await use_up(calls, PriorityLane.SYNC, 90)
        bulk = calls.busiest_minute
        began = asyncio.get_running_loop().time()
        await calls.make(PriorityLane.USER_ACTION, 100, 0.0)
        return bulk, asyncio.get_running_loop().time() - began

    bulk, waited = virtual_time.run(main())
    assert 0.75 * SMALL.units_per_minute <= bulk <= 0.8 * SMALL.units_per_minute
    assert waited == 0.0


@pytest.mark.req("SY-3")
def test_the_reserve_grows_with_what_the_urgent_lanes_use() -> None:
    reserve = Reserve()
    assert [reserve.kept(6_000, used) for used in (0, 100, 400, 5_000)] == [120, 200, 800, 1_200]


def test_requests_keep_the_pace_after_the_first_burst() -> None:
    async def main() -> list[float]:
        limiter = limiter_for(None, VirtualClock(), tuning=TunerLimits(start_rps=2.0, max_rps=2.0))
        calls = Calls(limiter)
        await asyncio.gather(*(calls.make(PriorityLane.SYNC, 0, 0.0) for _ in range(23)))
        return [at for at, _, _ in calls.charged]

    at = virtual_time.run(main())
    assert sum(each == 0 for each in at) == 3
    assert at[-1] == pytest.approx(10.0, abs=0.1)


def test_one_slot_is_left_to_the_urgent() -> None:
    async def main() -> float:
        calls = Calls(small_limiter())
        hanging = [asyncio.create_task(calls.make(PriorityLane.SYNC, 1, 1_000)) for _ in range(20)]
        await asyncio.sleep(30)
        began = asyncio.get_running_loop().time()
        await calls.make(PriorityLane.LIVE, 1, 0)
        for each in hanging:
            each.cancel()
        await asyncio.gather(*hanging, return_exceptions=True)
        return asyncio.get_running_loop().time() - began

    assert virtual_time.run(main()) == 0.0


@pytest.mark.req("SY-3")
def test_a_person_does_not_wait_for_the_rate_that_a_walk_has_slowed_down_to() -> None:
    async def main() -> tuple[float, float]:
        limiter = limiter_for(None, VirtualClock(), tuning=TunerLimits(start_rps=0.1, min_rps=0.1))
        calls, now = Calls(limiter), asyncio.get_running_loop().time
        await calls.make(PriorityLane.SYNC, 0, 0.0)
        began = now()
        for _ in range(6):
            await calls.make(PriorityLane.USER_ACTION, 0, 0.0)
        person = now() - began
        await calls.make(PriorityLane.SYNC, 0, 0.0)
        return person, now() - began

    person, walk = virtual_time.run(main())
    assert person == 0.0
    assert walk >= 60.0, "the walk pays for it"


def test_a_pause_that_gmail_asked_for_holds_everyone() -> None:
    async def main() -> float:
        limiter = small_limiter()
        limiter.gate.tuner.throttled(0.0, 0.0, retry_after_s=42.0)
        async with limiter.admit(PriorityLane.USER_ACTION, 1):
            return asyncio.get_running_loop().time()

    assert virtual_time.run(main()) >= 42.0


def test_who_gives_up_in_the_instant_of_its_turn_gives_the_slot_back() -> None:
    async def main() -> Limiter:
        limiter = small_limiter(TunerLimits(start_workers=1, max_workers=1, start_rps=1e6, max_rps=1e6))
        admitted = limiter.admit(PriorityLane.USER_ACTION, 1)
        await admitted.__aenter__()
        waiter = asyncio.create_task(Calls(limiter).make(PriorityLane.USER_ACTION, 1, 1.0))
        await asyncio.sleep(0.1)
        await admitted.__aexit__(None, None, None)
        while limiter.gate.in_flight == 0:
            await asyncio.sleep(0)
        waiter.cancel()
        await asyncio.gather(waiter, return_exceptions=True)
        return limiter

    assert virtual_time.run(main()).gate.in_flight == 0


def test_a_call_that_can_never_fit_is_refused_at_once() -> None:
    async def main() -> None:
        async with small_limiter().admit(PriorityLane.SYNC, SMALL.units_per_minute + 1):
            pass

    with pytest.raises(BadInput, match="never fit"):
        virtual_time.run(main())


class BrokenBudget:
    async def lease(self, units: int, lane: PriorityLane) -> UnitGrant:
        raise Retryable("the switchboard cannot be reached")


class SilentBudget:
    async def lease(self, units: int, lane: PriorityLane) -> UnitGrant:
        await asyncio.sleep(3_600)
        return UnitGrant(units)


class StingyBudget:
    """Grants a little at a time, as a budget may."""

    async def lease(self, units: int, lane: PriorityLane) -> UnitGrant:
        return UnitGrant(min(units, 3), 0.01)


def run_on(budget: UnitBudget) -> Calls:
    async def main() -> Calls:
        calls = Calls(limiter_for(SMALL, VirtualClock(), budget=budget, tuning=UNHURRIED))
        await asyncio.gather(*(calls.make(PriorityLane.SYNC, 10, 0.1) for _ in range(5)))
        return calls

    return virtual_time.run(main())


def test_a_budget_that_cannot_be_asked_stops_the_calls_with_its_reason() -> None:
    with pytest.raises(Retryable, match="switchboard"):
        run_on(BrokenBudget())


def test_a_budget_that_does_not_answer_keeps_nobody_waiting_for_ever() -> None:
    with pytest.raises(Retryable, match="did not answer within 10 s"):
        run_on(SilentBudget())


def test_small_grants_add_up() -> None:
    assert len(run_on(StingyBudget()).charged) == 5


@pytest.mark.req("SY-3")
def test_with_a_known_profile_the_most_requests_are_those_that_use_up_the_quota() -> None:
    limits = {name: tuner_limits_for(profile).max_rps for name, profile in PROFILES.items()}
    assert limits == {ProfileName.LEGACY: 50.0, ProfileName.MAY_2026: 5.0}
    assert tuner_limits_for(None).max_rps == 16.0


@pytest.mark.req("SY-3")
def test_a_listing_is_not_kept_waiting_by_the_fetching_of_its_own_lane() -> None:
    """Else a walk would run out of messages to fetch; and a person's calls still come before both."""

    async def story() -> None:
        limiter = limiter_for(None, VirtualClock(), tuning=UNHURRIED)
        order: list[str] = []

        async def call(name: str, lane: PriorityLane, *, is_listing: bool = False) -> None:
            async with limiter.admit(lane, 0, is_listing=is_listing):
                order.append(name)
                await asyncio.sleep(1)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(3 * MAX_IN_FLIGHT):
                tasks.create_task(call("fetch", PriorityLane.SYNC))
            await asyncio.sleep(0.5)
            tasks.create_task(call("list", PriorityLane.SYNC, is_listing=True))
            for _ in range(2):
                tasks.create_task(call("person", PriorityLane.USER_ACTION))
        assert order[MAX_IN_FLIGHT - 1] == "person", "there is always a slot for one"
        assert [each for each in order[: MAX_IN_FLIGHT + 2] if each != "fetch"] == ["person", "person", "list"]

    virtual_time.run(story())

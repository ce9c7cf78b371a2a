"""Turns at a domain: delays, jitter and concurrency, whoever asks."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from random import Random

import pytest
from sqlalchemy import insert, select, update

from postroom.db import Database
from postroom.db.tables.web import domain_leases, domain_pace
from postroom.domain.clock import ManualClock
from postroom.domain.ids import new_id
from postroom.web.fetching.interface import DomainLimits, NotYet
from postroom.web.fetching.politeness import DatabasePace, place_in_line

LIMITS = DomainLimits("gazette.test", 5.0, 10.0, 1)
REQUEST = timedelta(seconds=60)
pytestmark = pytest.mark.req("WB-3")


def _pace(database: Database, clock: ManualClock, seed: int = 0) -> DatabasePace:
    return DatabasePace(database, clock, REQUEST, Random(seed))


async def test_delays_lie_between_the_bounds_and_differ(database: Database, clock: ManualClock) -> None:
    pace, ended, gaps = _pace(database, clock), 0.0, []
    for number in range(20):
        async with pace.turn(LIMITS):
            if number:
                gaps.append(clock.monotonic() - ended)
            clock.advance(1.5)  # a slow answer: the delay is counted from its end
        ended = clock.monotonic()
    assert all(5.0 <= gap <= 10.0 + 0.01 for gap in gaps)
    assert len({round(gap, 3) for gap in gaps}) > 15


async def test_two_processes_share_one_pace(database: Database, clock: ManualClock) -> None:
    first, second = _pace(database, clock, 1), _pace(database, clock, 2)
    begun = []
    for pace in (first, second, first, second, second):
        async with pace.turn(LIMITS):
            begun.append(clock.monotonic())
    assert all(later - earlier >= 5.0 for earlier, later in pairwise(begun))


async def test_domains_do_not_wait_for_each_other(database: Database, clock: ManualClock) -> None:
    pace = _pace(database, clock)
    for name in ("a.test", "b.test", "c.test"):
        async with pace.turn(DomainLimits(name, 5.0, 5.0, 1)):
            assert clock.monotonic() == 0.0


async def test_no_more_than_allowed_are_under_way(database: Database, clock: ManualClock) -> None:
    pace = DatabasePace(database, clock, timedelta(days=365))  # those who wait move the clock; no lease may run out
    limits, under_way, most = DomainLimits("gazette.test", 0.0, 0.0, 2), 0, 0
    two = asyncio.Event()

    async def visit() -> None:
        nonlocal under_way, most
        async with pace.turn(limits):
            under_way += 1
            most = max(most, under_way)
            if under_way == 2:
                two.set()
            await two.wait()
            await asyncio.sleep(0.01)  # time for a third, which must not come
            under_way -= 1

    await asyncio.gather(*(visit() for _ in range(8)))
    assert most == 2


async def test_crawl_delay_wins_over_a_shorter_delay(database: Database, clock: ManualClock) -> None:
    pace = _pace(database, clock)
    async with pace.turn(LIMITS, crawl_delay_s=30.0):
        pass
    async with pace.turn(LIMITS, crawl_delay_s=30.0):
        assert clock.monotonic() >= 30.0


async def test_jitter_stays_where_the_site_asks_for_more_than_the_longest_delay(
    database: Database, clock: ManualClock
) -> None:
    pace, begun = _pace(database, clock), []
    for _ in range(12):
        async with pace.turn(LIMITS, crawl_delay_s=30.0):
            begun.append(clock.monotonic())
    gaps = [later - earlier for earlier, later in pairwise(begun)]
    assert all(30.0 <= gap <= 35.01 for gap in gaps)
    assert len({round(gap, 2) for gap in gaps}) > 8


async def test_a_hold_is_for_everybody(database: Database, clock: ManualClock) -> None:
    await _pace(database, clock, 1).hold(LIMITS.domain, timedelta(minutes=2))
    async with _pace(database, clock, 2).turn(LIMITS):
        assert clock.monotonic() >= 120.0


async def test_a_turn_that_fails_is_given_back(database: Database, clock: ManualClock) -> None:
    pace = _pace(database, clock)
    with pytest.raises(RuntimeError):
        async with pace.turn(LIMITS):
            raise RuntimeError("the page was bad")
    async with pace.turn(LIMITS):
        assert clock.monotonic() <= 10.01


async def test_a_process_that_died_with_a_turn_holds_it_no_longer_than_a_request(
    database: Database, clock: ManualClock
) -> None:
    pace = _pace(database, clock)
    async with pace.turn(LIMITS):
        clock.advance(1)
    dead = {"id": new_id(), "domain": LIMITS.domain, "expires_at": clock.now() + REQUEST}
    await database.write(lambda tx: tx.execute(insert(domain_leases).values(**dead)) and None)
    async with pace.turn(LIMITS):
        assert 60.0 <= clock.monotonic() <= 62.0
    assert not await database.read(lambda tx: tx.execute(select(domain_leases.c.id)).all())


async def test_an_impatient_caller_is_told_how_long_it_takes(database: Database, clock: ManualClock) -> None:
    pace = _pace(database, clock)
    async with pace.turn(LIMITS):
        pass
    with pytest.raises(NotYet) as raised:
        async with pace.turn(LIMITS, patience=timedelta(seconds=2)):
            raise AssertionError("it was not our turn")
    assert raised.value.retry_after is not None
    assert timedelta(seconds=5) <= raised.value.retry_after <= timedelta(seconds=10)
    assert await pace.wait_of(LIMITS) == raised.value.retry_after


async def test_a_clock_that_was_set_back_stops_nobody_for_ever(database: Database, clock: ManualClock) -> None:
    pace = _pace(database, clock)
    async with pace.turn(LIMITS):
        pass
    far = datetime(2090, 1, 1, tzinfo=UTC)
    await database.write(lambda tx: tx.execute(update(domain_pace).values(next_allowed_at=far)) and None)
    async with pace.turn(LIMITS, patience=timedelta()):
        pass


async def _place(database: Database, clock: ManualClock, longest: int = 1_000) -> float:
    wait, interval = timedelta(seconds=10), timedelta(seconds=30)
    now = clock.now()
    place = partial(place_in_line, line="x", wait=wait, interval=interval, now=now, longest=longest)
    return (await database.write(place)).total_seconds()


async def test_those_who_must_come_back_come_one_after_the_other(database: Database, clock: ManualClock) -> None:
    assert [await _place(database, clock) for _ in range(4)] == [10, 40, 70, 100]
    clock.advance(1_000)
    assert await _place(database, clock) == 10


async def test_a_line_whose_people_went_home_is_not_stood_in(database: Database, clock: ManualClock) -> None:
    for _ in range(50):
        await _place(database, clock)
    assert await _place(database, clock, longest=2) == 70

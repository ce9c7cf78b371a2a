"""The shared allowance: in no minute more than the account has, whoever asks, on both databases."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from random import Random

import pytest
from sqlalchemy import func, select

from postroom.accounts.budget import DatabaseBudget, units_in_use
from postroom.accounts.store import NewAccount, add_account
from postroom.db import Database, connect
from postroom.db.tables.accounts import quota_grants
from postroom.domain.clock import ManualClock, SystemClock
from postroom.domain.errors import BadInput, NotFound
from postroom.gmail.ports import Grant, Lane, UnitBudget
from postroom.gmail.quota import MINUTE_S, PROFILES, ProfileName
from tests.support.budget_spender import ALLOWANCE, SMALL

HUNDRED = replace(PROFILES[ProfileName.LEGACY], units_per_minute=100)
MISSING = "01990000-0000-7000-8000-000000000000"


@pytest.fixture
async def account_id(database: Database, clock: ManualClock) -> str:
    new = NewAccount("me@example.com", "https://gmail.googleapis.com")
    return (await database.write(lambda tx: add_account(tx, new, clock.now()))).id


async def test_units_are_granted_until_none_are_left_and_come_back_a_minute_later(
    database: Database, account_id: str, clock: ManualClock
) -> None:
    budget: UnitBudget = DatabaseBudget(database, account_id, HUNDRED, clock)
    assert (await budget.lease(60, Lane.SYNC)).units == 60
    clock.advance(10)
    some = await budget.lease(60, Lane.SYNC)
    assert (some.units, some.retry_after_s) == (40, 50.0)
    none = await budget.lease(60, Lane.SYNC)
    assert (none.units, none.retry_after_s) == (0, 50.0)
    clock.advance(49.999)
    assert (await budget.lease(1, Lane.SYNC)).units == 0
    clock.advance(0.001)
    assert (await budget.lease(60, Lane.SYNC)).units == 60
    assert (await budget.lease(1, Lane.SYNC)).retry_after_s == 10.0


async def test_waiting_as_told_is_enough_and_never_longer_than_a_minute(
    database: Database, account_id: str, clock: ManualClock
) -> None:
    random = Random(7)
    budget = DatabaseBudget(database, account_id, HUNDRED, clock, reserve=20)
    for _ in range(60):
        wanted, lane = random.randint(1, 80), random.choice(list(Lane))
        granted = await budget.lease(wanted, lane)
        if granted.units < wanted:
            assert 0 < granted.retry_after_s <= MINUTE_S
            clock.advance(granted.retry_after_s)
            assert (await budget.lease(wanted - granted.units, lane)).units == wanted - granted.units
        clock.advance(random.random() * 5)


@pytest.mark.req("SY-3")
async def test_the_reserve_is_only_for_user_actions_and_live_mail(
    database: Database, account_id: str, clock: ManualClock
) -> None:
    budget = DatabaseBudget(database, account_id, HUNDRED, clock, reserve=30)
    assert (await budget.lease(100, Lane.SYNC)).units == 70
    assert (await budget.lease(1, Lane.BACKFILL)).units == 0
    assert (await budget.lease(10, Lane.LIVE)).units == 10
    assert (await budget.lease(50, Lane.USER_ACTION)).units == 20
    blocked = await budget.lease(5, Lane.SYNC)
    assert (blocked.units, blocked.retry_after_s) == (0, MINUTE_S)


@pytest.mark.req("SY-3")
@pytest.mark.parametrize("seed", range(3))
async def test_in_no_window_is_more_granted_than_the_allowance(
    database: Database, account_id: str, clock: ManualClock, seed: int
) -> None:
    """Several budgets on one account, each with its own reserve, ask at random; every window is then looked at."""
    random = Random(seed)
    budgets = [DatabaseBudget(database, account_id, HUNDRED, clock, reserve=reserve) for reserve in (0, 10, 40)]
    granted: list[tuple[float, int]] = []
    for _ in range(250):
        grant = await random.choice(budgets).lease(random.randint(1, 60), random.choice(list(Lane)))
        granted.append((clock.monotonic(), grant.units))
        clock.advance(random.choice([0, 0, 0.1, 1, 7, 20, MINUTE_S]) * random.random())
    for start, _ in granted:
        assert sum(units for when, units in granted if start <= when < start + MINUTE_S) <= 100
    assert sum(units for _, units in granted) > 100


@pytest.mark.req("SY-3")
async def test_connections_that_ask_at_once_share_one_allowance(
    database: Database, database_url: str, account_id: str, clock: ManualClock
) -> None:
    others = await asyncio.gather(*(connect(database_url) for _ in range(3)))
    budgets = [DatabaseBudget(each, account_id, HUNDRED, clock) for each in (database, *others)]
    grants = await asyncio.gather(*(budget.lease(9, Lane.SYNC) for budget in budgets for _ in range(5)))
    assert sum(grant.units for grant in grants) == 100
    for each in others:
        await each.close()


@pytest.mark.req("SY-3")
async def test_processes_share_one_allowance(database: Database, database_url: str, account_id: str) -> None:
    command = [sys.executable, "-m", "tests.support.budget_spender", database_url, account_id]
    pipe = asyncio.subprocess.PIPE
    spenders = [await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe) for _ in range(3)]
    for spender in spenders:
        assert spender.stdout is not None
        assert await spender.stdout.readline() == b"ready\n"
    outputs = await asyncio.gather(*(spender.communicate(b"go\n") for spender in spenders))
    assert sum(int(out) for out, _ in outputs) == ALLOWANCE
    now = SystemClock().now()
    assert await database.read(lambda tx: units_in_use(tx, account_id, now)) == ALLOWANCE
    budget = DatabaseBudget(database, account_id, SMALL, SystemClock())
    assert (await budget.lease(1, Lane.USER_ACTION)).units == 0


async def test_a_clock_that_is_set_back_stops_nobody_for_longer_than_a_minute(
    database: Database, account_id: str, clock: ManualClock
) -> None:
    budget = DatabaseBudget(database, account_id, HUNDRED, clock)
    clock.advance(3_600)
    await budget.lease(100, Lane.SYNC)
    clock.advance(-3_600)
    assert await budget.lease(10, Lane.SYNC) == Grant(0, MINUTE_S)
    clock.advance(MINUTE_S)
    assert (await budget.lease(10, Lane.SYNC)).units == 10


async def test_old_grants_are_forgotten_in_passing(database: Database, account_id: str, clock: ManualClock) -> None:
    budget = DatabaseBudget(database, account_id, HUNDRED, clock)
    for _ in range(30):
        await budget.lease(10, Lane.SYNC)
        clock.advance(20)
    rows = await database.read(lambda tx: tx.execute(select(func.count()).select_from(quota_grants)).scalar_one())
    assert rows == 3


async def test_accounts_do_not_share_and_a_missing_one_has_nothing(
    database: Database, account_id: str, clock: ManualClock
) -> None:
    new = NewAccount("other@example.com", "https://gmail.googleapis.com")
    other = await database.write(lambda tx: add_account(tx, new, clock.now()))
    await DatabaseBudget(database, account_id, HUNDRED, clock).lease(100, Lane.SYNC)
    assert (await DatabaseBudget(database, other.id, HUNDRED, clock).lease(100, Lane.SYNC)).units == 100
    with pytest.raises(NotFound):
        await DatabaseBudget(database, MISSING, HUNDRED, clock).lease(1, Lane.SYNC)


async def test_a_wish_beyond_the_allowance_is_cut_to_it_and_nonsense_is_refused(
    database: Database, account_id: str, clock: ManualClock
) -> None:
    budget = DatabaseBudget(database, account_id, HUNDRED, clock)
    assert (await budget.lease(1_000, Lane.SYNC)).units == 100
    with pytest.raises(BadInput):
        await budget.lease(0, Lane.SYNC)
    with pytest.raises(BadInput):
        DatabaseBudget(database, account_id, HUNDRED, clock, reserve=100)

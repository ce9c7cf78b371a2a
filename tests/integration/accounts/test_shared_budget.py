"""The shared allowance: in no minute more than the account has, whoever asks, on both databases."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from random import Random

import pytest
from sqlalchemy import func, select

from postroom.accounts.access import WINDOW, DatabaseBudget
from postroom.accounts.account import NewAccount, add_account
from postroom.db import Database, connect
from postroom.db.tables.accounts import quota_grants
from postroom.domain.clock import ManualClock, SystemClock
from postroom.domain.errors import BadInput, NotFound
from postroom.mailboxes.gmail.methods import MINUTE_S, PROFILES, ProfileName
from postroom.mailboxes.pace import Reserve
from postroom.mailboxes.ports import PriorityLane, UnitBudget, UnitGrant
from tests.support.gmail_sim import units_in_use

ALLOWANCE = 500
SMALL = replace(PROFILES[ProfileName.LEGACY], units_per_minute=ALLOWANCE)
HUNDRED = replace(PROFILES[ProfileName.LEGACY], units_per_minute=100)
WINDOW_S = WINDOW.total_seconds()
MISSING = "01990000-0000-7000-8000-000000000000"


@pytest.fixture
async def account_id(database: Database, clock: ManualClock) -> str:
    new = NewAccount("me@example.com", "https://gmail.googleapis.com")
    return (await database.write(lambda tx: add_account(tx, new, clock.now()))).id


async def test_units_are_granted_whole_until_none_are_left_and_come_back_in_time(
    database: Database, account_id: str, clock: ManualClock
) -> None:
    budget: UnitBudget = DatabaseBudget(database, account_id, HUNDRED, clock)
    assert await budget.lease(60, PriorityLane.LIVE) == UnitGrant(60)
    clock.advance(10)
    assert await budget.lease(41, PriorityLane.LIVE) == UnitGrant(0, WINDOW_S - 10)
    assert await budget.lease(40, PriorityLane.LIVE) == UnitGrant(40)
    clock.advance(WINDOW_S - 10.001)
    assert (await budget.lease(1, PriorityLane.LIVE)).units == 0
    clock.advance(0.001)
    assert await budget.lease(60, PriorityLane.LIVE) == UnitGrant(60)
    assert await budget.lease(1, PriorityLane.LIVE) == UnitGrant(0, 10.0)


async def test_waiting_as_told_leads_to_a_grant_and_takes_an_urgent_call_only_one_wait(
    database: Database, account_id: str, clock: ManualClock
) -> None:
    """A bulk call may have to ask again: what urgent calls used leaves the window, and the reserve fills up anew."""
    random = Random(7)
    budget = DatabaseBudget(database, account_id, HUNDRED, clock, Reserve(0.2, 0.2))
    for _ in range(60):
        wanted, lane, waits = random.randint(1, 80), random.choice(list(PriorityLane)), 0
        while not (grant := await budget.lease(wanted, lane)).units:
            assert 0 < grant.retry_after_s <= WINDOW_S
            clock.advance(grant.retry_after_s)
            waits += 1
        assert grant == UnitGrant(wanted)
        assert waits <= (1 if lane.may_use_reserve else 4)
        clock.advance(random.random() * 5)


@pytest.mark.req("SY-3")
async def test_the_reserve_is_only_for_user_actions_and_live_mail(
    database: Database, account_id: str, clock: ManualClock
) -> None:
    budget = DatabaseBudget(database, account_id, HUNDRED, clock, Reserve(0.3, 0.3))
    assert (await budget.lease(71, PriorityLane.SYNC)).units == 71
    clock.advance(1)
    assert (await budget.lease(1, PriorityLane.BACKFILL)).units == 0
    assert (await budget.lease(10, PriorityLane.LIVE)).units == 10
    assert (await budget.lease(19, PriorityLane.USER_ACTION)).units == 19
    assert await budget.lease(1, PriorityLane.SYNC) == UnitGrant(0, WINDOW_S - 1)


async def test_what_the_urgent_did_not_need_is_left_to_the_rest(
    database: Database, account_id: str, clock: ManualClock
) -> None:
    budget = DatabaseBudget(database, account_id, HUNDRED, clock, Reserve(share=0.4, floor=0.02))
    assert (await budget.lease(10, PriorityLane.LIVE)).units == 10
    clock.advance(4)
    assert (await budget.lease(81, PriorityLane.SYNC)).units == 0, "ten more are kept, as ten were used"
    assert (await budget.lease(80, PriorityLane.SYNC)).units == 80


async def test_bulk_is_spread_over_the_minute_and_the_urgent_do_not_wait_for_it(
    database: Database, account_id: str, clock: ManualClock
) -> None:
    budget = DatabaseBudget(database, account_id, PROFILES[ProfileName.MAY_2026], clock)
    assert (await budget.lease(300, PriorityLane.SYNC)).units == 300
    clock.advance(0.25)
    assert (await budget.lease(200, PriorityLane.BACKFILL)).units == 200
    assert await budget.lease(50, PriorityLane.SYNC) == UnitGrant(0, 3.75)
    assert (await budget.lease(500, PriorityLane.USER_ACTION)).units == 500


@pytest.mark.req("SY-3")
@pytest.mark.parametrize("seed", range(2))
async def test_in_no_window_is_more_granted_than_the_allowance(
    database: Database, account_id: str, clock: ManualClock, seed: int
) -> None:
    """Several budgets on one account, each with its own reserve, ask at random; every window is then looked at."""
    random = Random(seed)
    reserves = (Reserve(0, 0), Reserve(), Reserve(0.4, 0.4))
    budgets = [DatabaseBudget(database, account_id, HUNDRED, clock, reserve) for reserve in reserves]
    granted: list[tuple[float, int]] = []
    for _ in range(120):
        grant = await random.choice(budgets).lease(random.randint(1, 60), random.choice(list(PriorityLane)))
        granted.append((clock.monotonic(), grant.units))
        clock.advance(random.choice([0, 0, 0.1, 1, 7, 20, MINUTE_S]) * random.random())
    for start, _ in granted:
        assert sum(units for when, units in granted if start <= when < start + WINDOW_S) <= 100
    assert sum(units for _, units in granted) > 200


@pytest.mark.req("SY-3")
async def test_connections_that_ask_at_once_share_one_allowance(
    database: Database, database_url: str, account_id: str, clock: ManualClock
) -> None:
    others = await asyncio.gather(*(connect(database_url) for _ in range(3)))
    budgets = [DatabaseBudget(each, account_id, HUNDRED, clock) for each in (database, *others)]
    grants = await asyncio.gather(*(budget.lease(10, PriorityLane.LIVE) for budget in budgets for _ in range(4)))
    assert sum(grant.units for grant in grants) == 100
    for each in others:
        await each.close()


async def spend(url: str, account_id: str) -> int:
    """In a process of its own: lease units until none are left; returns how many it got."""
    database = await connect(url)
    budget = DatabaseBudget(database, account_id, SMALL, SystemClock())
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    spent = 0
    while granted := (await budget.lease(5, PriorityLane.USER_ACTION)).units:
        spent += granted
    await database.close()
    return spent


@pytest.mark.req("SY-3")
async def test_processes_share_one_allowance(database: Database, database_url: str, account_id: str) -> None:
    command = [sys.executable, "-m", __name__, database_url, account_id]
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
    assert (await budget.lease(1, PriorityLane.USER_ACTION)).units == 0


async def test_a_clock_that_is_set_back_stops_nobody_for_longer_than_the_window(
    database: Database, account_id: str, clock: ManualClock
) -> None:
    budget = DatabaseBudget(database, account_id, HUNDRED, clock)
    clock.advance(3_600)
    await budget.lease(100, PriorityLane.LIVE)
    clock.advance(-3_600)
    assert await budget.lease(10, PriorityLane.LIVE) == UnitGrant(0, WINDOW_S)
    clock.advance(WINDOW_S)
    assert (await budget.lease(10, PriorityLane.LIVE)).units == 10


async def test_old_grants_are_forgotten_in_passing(database: Database, account_id: str, clock: ManualClock) -> None:
    budget = DatabaseBudget(database, account_id, HUNDRED, clock)
    for _ in range(20):
        await budget.lease(10, PriorityLane.SYNC)
        clock.advance(20.5)
    rows = await database.read(lambda tx: tx.execute(select(func.count()).select_from(quota_grants)).scalar_one())
    assert rows == 3


async def test_accounts_do_not_share_and_a_missing_one_has_nothing(
    database: Database, account_id: str, clock: ManualClock
) -> None:
    new = NewAccount("other@example.com", "https://gmail.googleapis.com")
    other = await database.write(lambda tx: add_account(tx, new, clock.now()))
    await DatabaseBudget(database, account_id, HUNDRED, clock).lease(100, PriorityLane.LIVE)
    assert (await DatabaseBudget(database, other.id, HUNDRED, clock).lease(100, PriorityLane.LIVE)).units == 100
    with pytest.raises(NotFound):
        await DatabaseBudget(database, MISSING, HUNDRED, clock).lease(1, PriorityLane.SYNC)


@pytest.mark.parametrize("units", [-1, 0, 101])
async def test_what_can_never_be_granted_is_refused(
    database: Database, account_id: str, clock: ManualClock, units: int
) -> None:
    with pytest.raises(BadInput, match="within 1 to 100"):
        await DatabaseBudget(database, account_id, HUNDRED, clock).lease(units, PriorityLane.LIVE)


if __name__ == "__main__":
    print(asyncio.run(spend(*sys.argv[1:])), flush=True)

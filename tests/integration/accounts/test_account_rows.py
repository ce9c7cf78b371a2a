"""Accounts in the database: one row an address, kept when the login goes."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from postroom.accounts.account import (
    AccountStatus,
    NewAccount,
    add_account,
    find_account,
    get_account,
    list_accounts,
    record_check,
    remove_account,
)
from postroom.db import Database
from postroom.domain.clock import ManualClock
from postroom.domain.errors import BadInput, NotFound
from postroom.mailboxes.gmail.methods import CHANGE, ProfileName

BASE = "https://gmail.googleapis.com"


async def test_an_address_is_one_account_however_it_is_written(database: Database, clock: ManualClock) -> None:
    first = NewAccount(" Me@Example.com ", BASE, ProfileName.LEGACY, frozenset({CHANGE}))
    added = await database.write(lambda tx: add_account(tx, first, clock.now()))
    clock.advance(60)
    again = await database.write(lambda tx: add_account(tx, NewAccount("me@example.com", BASE), clock.now()))
    assert (again.id, again.email, again.quota) == (added.id, "me@example.com", ProfileName.LEGACY)
    assert (added.scopes, again.scopes) == (frozenset({CHANGE}), frozenset[str]())
    assert again.created_at < again.updated_at
    assert await database.read(list_accounts) == [again]


async def test_an_address_added_twice_at_once_is_one_account(database: Database, clock: ManualClock) -> None:
    for number in range(10):
        new = NewAccount(f"me{number}@example.com", BASE)
        add = partial(add_account, new=new, now=clock.now())
        one, other = await asyncio.gather(database.write(add), database.write(add))
        assert one.id == other.id


async def test_the_same_address_at_another_server_is_refused(database: Database, clock: ManualClock) -> None:
    await database.write(lambda tx: add_account(tx, NewAccount("me@example.com", BASE), clock.now()))
    elsewhere = NewAccount("me@example.com", "http://127.0.0.1:9")
    with pytest.raises(BadInput, match="mail of two servers"):
        await database.write(lambda tx: add_account(tx, elsewhere, clock.now()))


async def test_a_check_is_noted_and_a_good_one_clears_the_error(database: Database, clock: ManualClock) -> None:
    account = await database.write(lambda tx: add_account(tx, NewAccount("me@example.com", BASE), clock.now()))
    clock.advance(5)
    await database.write(lambda tx: record_check(tx, account.id, clock.now(), "x" * 5_000))
    failing = await database.read(lambda tx: get_account(tx, account.email))
    assert (failing.status, len(failing.last_error or ""), failing.last_checked_at) == (
        AccountStatus.FAILING,
        1_000,
        clock.now(),
    )
    await database.write(lambda tx: record_check(tx, account.id, clock.now(), None))
    well = await database.read(lambda tx: get_account(tx, account.email))
    assert (well.status, well.last_error) == (AccountStatus.ACTIVE, None)


async def test_a_removed_account_is_out_of_sight_and_comes_back_with_its_id(
    database: Database, clock: ManualClock
) -> None:
    account = await database.write(lambda tx: add_account(tx, NewAccount("me@example.com", BASE), clock.now()))
    await database.write(lambda tx: remove_account(tx, account.id, clock.now()))
    assert await database.read(list_accounts) == []
    with pytest.raises(NotFound, match="there is no account me@"):
        await database.read(lambda tx: get_account(tx, "me@example.com"))
    await database.write(lambda tx: record_check(tx, account.id, clock.now(), "late"))
    gone = await database.read(lambda tx: find_account(tx, "me@example.com"))
    assert gone is not None
    assert gone.status is AccountStatus.REMOVED
    back = await database.write(lambda tx: add_account(tx, NewAccount("me@example.com", BASE), clock.now()))
    assert (back.id, back.status) == (account.id, AccountStatus.ACTIVE)


@pytest.mark.parametrize("email", ["", "me", "@example.com", "me@", "a b@example.com", "a\n@example.com", "x" * 260])
async def test_what_is_no_address_is_refused_by_name(database: Database, clock: ManualClock, email: str) -> None:
    with pytest.raises(BadInput) as refusal:
        await database.write(lambda tx: add_account(tx, NewAccount(email, BASE), clock.now()))
    assert refusal.value.field == "email"

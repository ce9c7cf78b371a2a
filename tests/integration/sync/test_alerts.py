"""Alerts on both databases: told at most once an hour each, over when they are over, remembered over restarts."""

from __future__ import annotations

import io
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from postroom.accounts.account import Account
from postroom.db import Database, Tx
from postroom.domain.clock import ManualClock
from postroom.settings import SyncSettings
from postroom.sim.gmail.faults import FaultRule, GmailFault
from postroom.sync.alerts import (
    Alert,
    AlertCondition,
    AlertLevel,
    AlertRecord,
    MetadataFull,
    SyncMonitor,
    account_document,
    alerts_of,
    serialised,
    settle,
    size_of,
)
from postroom.sync.fetch import record_bad
from postroom.sync.slices import Granularity, Slice
from postroom.sync.state import add_counters, begin_walk
from postroom.telemetry import logs
from tests.support.databases import on_sqlite
from tests.support.mail import mailbox
from tests.support.sync import new_account, synced_account

pytestmark = pytest.mark.req("SY-12")

HOUR_S = 3_600


@pytest.fixture
async def account(database: Database, clock: ManualClock) -> Account:
    return await new_account(database, clock)


class Told:
    """What was told, as the log shows it."""

    def __init__(self) -> None:
        self._written = io.StringIO()
        logs.configure(stream=self._written)

    def take(self) -> list[str]:
        """The conditions that were told since the last look."""
        events = [json.loads(line) for line in self._written.getvalue().splitlines()]
        self._written.seek(0)
        self._written.truncate()
        return [str(each["condition"]) for each in events if each["event"] == "sync.alert"]


@pytest.fixture
def told() -> Told:
    return Told()


def alarm_of(database: Database, account: Account, clock: ManualClock, **settings: Any) -> SyncMonitor:
    return SyncMonitor(database, account, SyncSettings(**settings), clock)


async def records(database: Database, account: Account) -> dict[AlertCondition, AlertRecord]:
    return {each.condition: each for each in await database.read(lambda tx: alerts_of(tx, account.id))}


async def test_a_condition_is_told_at_most_once_an_hour_however_often_it_is_seen(
    database: Database, account: Account, clock: ManualClock, told: Told
) -> None:
    alarm = alarm_of(database, account, clock)
    alarm.note(1_000, 5)
    times = []
    for minute in range(0, 181, 10):
        await alarm.check()
        times += [minute for _ in told.take()]
        clock.advance(600)
    assert times == [0, 60, 120, 180]


async def test_a_restart_does_not_tell_again(
    database: Database, account: Account, clock: ManualClock, told: Told
) -> None:
    first = alarm_of(database, account, clock)
    first.note(1_000, 5)
    await first.check()
    assert told.take() == ["bad_rate_high"]
    clock.advance(HOUR_S - 1)
    again = alarm_of(database, account, clock)
    await again.check()
    assert told.take() == []
    clock.advance(1)
    await again.check()
    assert told.take() == ["bad_rate_high"], "and the window of the last messages is remembered too"


async def test_a_matter_that_gets_worse_is_told_at_once(
    database: Database, account: Account, clock: ManualClock, told: Told
) -> None:
    alarm = alarm_of(database, account, clock)
    alarm.note(1_000, 5)
    await alarm.check()
    alarm.note(0, 0)
    alarm.note(100, 50)
    await alarm.check()
    assert told.take() == ["bad_rate_high", "bad_rate_critical"]
    found = await records(database, account)
    assert not found[AlertCondition.BAD_RATE_HIGH].is_in_force, "the graver one stands for both"
    assert found[AlertCondition.BAD_RATE_CRITICAL].level is AlertLevel.CRITICAL


async def test_an_alert_is_over_when_the_bad_ones_have_left_the_window(
    database: Database, account: Account, clock: ManualClock, told: Told
) -> None:
    alarm = alarm_of(database, account, clock)
    alarm.note(1_000, 5)
    await alarm.check()
    clock.advance(60)
    for _ in range(11):
        alarm.note(1_000)
        await alarm.check()
    found = (await records(database, account))[AlertCondition.BAD_RATE_HIGH]
    assert found.cleared_at == clock.now()
    assert found.raised_at == found.last_told_at == clock.now() - timedelta(seconds=60)


async def test_a_condition_that_flickers_is_told_once_an_hour(
    database: Database, account: Account, clock: ManualClock
) -> None:
    alert = Alert(AlertCondition.THROTTLED, AlertLevel.WARNING, "slow")
    told = 0
    for number in range(120):
        in_force, now = [alert] if number % 2 == 0 else [], clock.now()
        settled = await database.write(lambda tx, now=now, these=in_force: settle(tx, account.id, these, now))  # type: ignore[misc]
        told += len(settled.to_send)
        clock.advance(60)
    assert told == 2


@on_sqlite
async def test_a_clock_that_is_set_back_silences_nothing(
    database: Database, account: Account, clock: ManualClock
) -> None:
    alert = Alert(AlertCondition.THROTTLED, AlertLevel.WARNING, "slow")
    now = clock.now()
    for moment in (now, now - timedelta(days=3)):
        settled = await database.write(lambda tx, at=moment: settle(tx, account.id, [alert], at))  # type: ignore[misc]
        assert settled.to_send == (alert,)


async def test_more_than_two_hundred_bad_messages_in_an_hour_are_critical_and_then_past(
    database: Database, account: Account, clock: ManualClock, told: Told
) -> None:
    now = clock.now()

    def a_bad_hour(tx: Tx) -> None:
        for number in range(201):
            record_bad(tx, account.id, f"{number:x}", "unreadable", 1, now)

    await database.write(a_bad_hour)
    alarm = alarm_of(database, account, clock)
    await alarm.check()
    assert told.take() == ["bad_spike"]
    clock.advance(HOUR_S)
    await alarm.check()
    assert not (await records(database, account))[AlertCondition.BAD_SPIKE].is_in_force


@on_sqlite
async def test_sustained_throttling_is_told(
    database: Database, account: Account, clock: ManualClock, told: Told
) -> None:
    cuts = iter([3, 8, 13, 13])
    alarm = SyncMonitor(database, account, SyncSettings(), clock, cuts=lambda: next(cuts))
    await alarm.check()
    assert told.take() == []
    clock.advance(300)
    await alarm.check()
    assert told.take() == ["throttled"]
    clock.advance(601)
    await alarm.check()
    assert not (await records(database, account))[AlertCondition.THROTTLED].is_in_force


@pytest.mark.req("SY-11")
async def test_the_document_holds_what_is_remembered_and_no_more(
    database: Database, account: Account, clock: ManualClock
) -> None:
    now, slices = clock.now(), [Slice(0, 100), Slice(100, 200), Slice(200, None)]
    await database.write(lambda tx: begin_walk(tx, account.id, slices, 200, Granularity.DAY, now))
    await database.write(lambda tx: add_counters(tx, account.id, {"stored": 7}, now))
    await database.write(lambda tx: record_bad(tx, account.id, "18c", "x" * 900, 1, now))
    document = await database.read(lambda tx: account_document(tx, account.id, SyncSettings()))
    assert document["watermark"] == 0
    assert document["slices"] == [[0, 100], [100, 200], [200, None]]
    assert document["counters"] == {"stored": 7}
    assert document["limits"]["metadata_budget_bytes"] == 1 << 20
    assert len(document["bad_messages"]["18c"]["reason"]) == 300
    assert size_of(document) == len(serialised(document).encode())


@pytest.mark.req("SY-11")
@on_sqlite
async def test_twenty_five_years_of_daily_slices_are_no_alarm(
    database: Database, account: Account, clock: ManualClock
) -> None:
    slices = [Slice(day * 86_400, (day + 1) * 86_400) for day in range(11_000, 20_200)]
    await database.write(lambda tx: begin_walk(tx, account.id, slices, 0, Granularity.DAY, clock.now()))
    await alarm_of(database, account, clock).check()
    assert await records(database, account) == {}


@pytest.mark.req("SY-11")
async def test_metadata_warns_then_alarms_then_stops_the_sync(
    database: Database, account: Account, clock: ManualClock, told: Told
) -> None:
    document = await database.read(lambda tx: account_document(tx, account.id, SyncSettings()))
    budget = 10 * size_of(document)
    alarm = alarm_of(database, account, clock, metadata_budget_bytes=budget, bad_per_hour_critical=10_000)
    seen: list[str] = []

    async def gather_bad_messages() -> None:
        for number in range(1_000):
            key, now = f"{number:016x}", clock.now()
            await database.write(lambda tx, key=key, now=now: record_bad(tx, account.id, key, "y" * 60, 1, now))  # type: ignore[misc]
            await alarm.check()
            seen.extend(told.take())

    with pytest.raises(MetadataFull, match=r"postroom sync bad list.*metadata_budget_bytes"):
        await gather_bad_messages()
    assert seen == ["metadata_high", "metadata_critical"]


@on_sqlite
async def test_alerts_come_into_the_mailbox_only_if_asked_and_once_an_hour(
    database: Database, clock: ManualClock, tmp_path: Path
) -> None:
    async with synced_account(database, mailbox(1), tmp_path / "archive", clock) as scene:
        for self_email, later_s, letters in ((False, 0, 0), (True, HOUR_S, 1), (True, 60, 1), (True, HOUR_S, 2)):
            clock.advance(later_s)
            alarm = SyncMonitor(
                database, scene.account, SyncSettings(self_email=self_email), clock, mailbox=scene.mailbox
            )
            alarm.note(1_000, 5)
            await alarm.check()
            pages = [page async for page in scene.client.list_messages("subject:postroom")]
            assert sum(len(page.messages) for page in pages) == letters


@on_sqlite
async def test_a_letter_that_cannot_be_put_into_the_mailbox_stops_nothing(
    database: Database, clock: ManualClock, tmp_path: Path, told: Told
) -> None:
    async with synced_account(database, mailbox(1), tmp_path / "archive", clock) as scene:
        scene.control.add_fault(FaultRule(fault=GmailFault(kind="error", code=403, reason="insufficientPermissions")))
        alarm = SyncMonitor(database, scene.account, SyncSettings(self_email=True), clock, mailbox=scene.mailbox)
        alarm.note(1_000, 5)
        await alarm.check()
    assert told.take() == ["bad_rate_high"]

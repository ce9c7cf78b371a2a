"""Bad messages are tried again: in time, after a change of the code, and by hand. On both databases."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from postroom import __version__
from postroom.accounts.troubled import TroubledMessage, troubled_of
from postroom.db import Database
from postroom.domain.clock import ManualClock
from postroom.domain.errors import NotFound
from postroom.mailboxes.errors import MailboxUnavailable
from postroom.reading.mail import READER_VERSION, reader_version
from postroom.settings import SyncSettings
from postroom.sim.gmail.faults import FaultRule, GmailFault
from postroom.sync.alerts import AlertCondition, SyncMonitor, alerts_of, recheck_bad
from postroom.sync.fetch import BadMessageRetry, RetriedMessages, is_due, record_bad
from tests.support.databases import on_sqlite
from tests.support.mail import mailbox
from tests.support.sync import SyncedAccount, SyncRig, in_virtual_time, letters, synced_account

pytestmark = pytest.mark.req("SY-5")

DAY = timedelta(hours=24)
POISON = GmailFault(kind="malformed")


@pytest.fixture
async def scene(database: Database, tmp_path: Path, clock: ManualClock) -> AsyncIterator[SyncedAccount]:
    """Three letters at the source, all of them listed as bad."""
    async with synced_account(database, mailbox(3), tmp_path / "archive", clock) as made:
        for gmail_id in ids_of(made):
            await database.write(
                lambda tx, key=gmail_id: record_bad(tx, made.account.id, key, "no", READER_VERSION, clock.now())  # type: ignore[misc]
            )
        yield made


def ids_of(scene: SyncedAccount) -> list[str]:
    return sorted(str(each["id"]) for each in scene.control.truth(hashes=False))


def retry_of(scene: SyncedAccount) -> BadMessageRetry:
    return BadMessageRetry(scene.database, scene.account.id, scene.store, scene.fetcher(), SyncSettings(), scene.clock)


async def bad(scene: SyncedAccount) -> dict[str, TroubledMessage]:
    return {each.key: each for each in await scene.database.read(lambda tx: troubled_of(tx, scene.account.id))}


async def test_stored_and_gone_ones_are_forgotten_and_the_others_counted_once_more(
    scene: SyncedAccount, clock: ManualClock
) -> None:
    poison, gone, good = ids_of(scene)
    scene.control.add_fault(FaultRule(fault=POISON, method="messages.get", ids=frozenset({poison})))
    await scene.client.delete_message(gone)
    clock.advance(DAY.total_seconds())
    retried = await retry_of(scene).retry_due()
    assert retried == RetriedMessages(frozenset({good}), frozenset({gone}), frozenset({poison}))
    assert set(scene.present()) == {good}
    left = await bad(scene)
    assert {key: each.tries for key, each in left.items()} == {poison: 2}
    assert left[poison].last_tried == clock.now()
    assert left[poison].first_seen < clock.now()


@on_sqlite
async def test_nothing_is_asked_for_before_its_time(scene: SyncedAccount, clock: ManualClock) -> None:
    clock.advance(DAY.total_seconds() - 1)
    scene.control.reset_counters()
    assert await retry_of(scene).retry_due() == RetriedMessages()
    assert scene.control.state().requests == 0


@pytest.mark.req("HW-1")
def test_every_upgrade_is_another_version_of_the_reader() -> None:
    assert reader_version(__version__) == READER_VERSION != reader_version(f"{__version__}.1")
    assert 0 < READER_VERSION < 2**31


async def test_a_change_of_the_code_that_reads_mail_makes_all_due() -> None:
    now = ManualClock().now()
    message = TroubledMessage("18c", "unreadable", now, now, 1, READER_VERSION)
    settings = SyncSettings(bad_retry_hours=24)
    assert not is_due(message, settings, now)
    assert is_due(replace(message, reader_version=READER_VERSION - 1), settings, now)
    assert is_due(message, settings, now + DAY)


@on_sqlite
async def test_by_hand_they_are_tried_at_once_some_or_all(scene: SyncedAccount) -> None:
    first, *others = ids_of(scene)
    assert (await retry_of(scene).retry([first])).stored == {first}
    assert (await retry_of(scene).retry()).stored == set(others)
    assert await bad(scene) == {}
    with pytest.raises(NotFound, match="not among the bad messages"):
        await retry_of(scene).retry([first])


@on_sqlite
async def test_a_service_that_is_down_is_held_against_no_message(scene: SyncedAccount, clock: ManualClock) -> None:
    scene.control.add_fault(FaultRule(fault=GmailFault(kind="error", code=503)))
    clock.advance(DAY.total_seconds())
    with pytest.raises(MailboxUnavailable):
        await retry_of(scene).retry_due()
    assert {each.tries for each in (await bad(scene)).values()} == {1}


@pytest.mark.req("SY-12")
async def test_the_alert_is_over_at_once_after_a_retry_that_succeeded(scene: SyncedAccount, clock: ManualClock) -> None:
    database, account_id, settings = scene.database, scene.account.id, SyncSettings()
    monitor = SyncMonitor(database, scene.account, settings, clock)
    monitor.note(100, 3)
    await monitor.check()
    [alert] = await database.read(lambda tx: alerts_of(tx, account_id))
    assert (alert.condition, alert.is_in_force) == (AlertCondition.BAD_RATE_CRITICAL, True)
    await retry_of(scene).retry()
    await database.write(lambda tx: recheck_bad(tx, account_id, settings, clock.now()))
    [alert] = await database.read(lambda tx: alerts_of(tx, account_id))
    assert not alert.is_in_force
    await monitor.check()
    [alert] = await database.read(lambda tx: alerts_of(tx, account_id))
    assert not alert.is_in_force, "nor does the next sync raise it again"


@pytest.mark.req("SY-12")
def test_the_alert_is_over_when_the_sync_itself_has_retried_them(tmp_path: Path) -> None:
    async def story(rig: SyncRig) -> None:
        bad = frozenset(sorted(rig.truth())[:3])
        rig.control.add_fault(FaultRule(fault=POISON, method="messages.get", ids=bad))
        await rig.whole().run(once=True)
        [alert] = await rig.database.read(lambda tx: alerts_of(tx, rig.account.id))
        assert (alert.condition, alert.is_in_force) == (AlertCondition.BAD_RATE_CRITICAL, True)
        rig.control.clear_faults()
        await rig.clock.sleep(DAY.total_seconds())
        await rig.whole().run(once=True)
        assert await rig.bad() == set()
        [alert] = await rig.database.read(lambda tx: alerts_of(tx, rig.account.id))
        assert not alert.is_in_force

    in_virtual_time(letters(30), tmp_path, story)

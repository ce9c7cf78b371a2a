"""Where a connector takes in new mail, a sync fetches the old and leaves the cursor to the connector."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from postroom.accounts.history import (
    LEASE,
    HistoryLease,
    ReaderElsewhere,
    claim_reader,
    cursor_of,
    has_connector,
    move_cursor,
)
from postroom.db import Database, Tx
from postroom.domain.clock import ManualClock
from postroom.switchboard.tools.mail import Heartbeat, record_heartbeat
from postroom.sync.context import sync_context
from postroom.sync.engine import SyncEngine
from tests.support.mail import letter
from tests.support.sync import SyncRig, cancelled, in_virtual_time, letters, settings_with

pytestmark = pytest.mark.req("SY-13")


def test_a_walk_goes_on_beside_the_reader_of_changes_and_leaves_its_cursor_alone(tmp_path: Path) -> None:
    async def story(world: SyncRig) -> None:
        now = world.clock.now()
        reader = await world.database.write(lambda tx: claim_reader(tx, world.account.id, "the connector", now))
        await world.database.write(lambda tx: move_cursor(tx, reader, "4711", now))
        await world.sync(deltas=None)
        assert world.archived() == world.truth()
        assert (await world.state()).walked_at is not None
        assert await world.database.read(lambda tx: cursor_of(tx, world.account.id)) == "4711"
        await world.database.write(lambda tx: move_cursor(tx, reader, "4712", world.clock.now()))

    in_virtual_time(letters(40), tmp_path, story)


def test_changes_are_read_from_before_the_first_listing_whoever_comes_to_read_them(tmp_path: Path) -> None:
    async def story(world: SyncRig) -> None:
        before = (await world.client.get_profile()).history_id
        await world.sync(deltas=None)
        assert await world.database.read(lambda tx: cursor_of(tx, world.account.id)) == before
        reader = await world.database.write(
            lambda tx: claim_reader(tx, world.account.id, "the connector", world.clock.now())
        )
        assert reader.history_id == before

    in_virtual_time(letters(10), tmp_path, story)


def test_a_sync_that_read_the_changes_leaves_them_to_a_connector_that_comes_later(tmp_path: Path) -> None:
    async def story(world: SyncRig) -> None:
        running = asyncio.create_task(world.whole().run())
        await asyncio.sleep(3_600)
        with pytest.raises(ReaderElsewhere):
            await world.database.write(lambda tx: claim(tx, world))
        await world.database.write(lambda tx: beat(tx, world.account.email, world.clock.now()))
        await asyncio.sleep(LEASE.total_seconds())
        reader = await world.database.write(lambda tx: claim(tx, world))
        old = world.control.deliver(letter("Old"))
        await asyncio.sleep(3_600)
        assert old in world.archived(), "the walk goes on"
        assert await world.database.read(lambda tx: cursor_of(tx, world.account.id)) == reader.history_id
        await cancelled(running)

    in_virtual_time(letters(10), tmp_path, story)


def test_no_second_sync_walks_beside_the_first_when_a_connector_appears(tmp_path: Path) -> None:
    async def story(world: SyncRig) -> None:
        running = asyncio.create_task(world.whole().run())
        await asyncio.sleep(1)
        await world.database.write(lambda tx: beat(tx, world.account.email, world.clock.now()))
        context = sync_context(world.database, world.account, world.mailbox, world.store, settings_with(), world.clock)
        with pytest.raises(ReaderElsewhere, match="brings this account into the archive"):
            await SyncEngine(context, "a sync elsewhere", changes=None).run(once=True)
        await asyncio.sleep(3_600)
        assert world.archived() == world.truth()
        await cancelled(running)

    in_virtual_time(letters(40), tmp_path, story)


def claim(tx: Tx, world: SyncRig) -> HistoryLease:
    return claim_reader(tx, world.account.id, "the connector", world.clock.now())


def beat(tx: Tx, email: str, now: datetime) -> None:
    said = Heartbeat("gmail", email, "i", "1", "running", counters={}, checkpoint=None, capabilities=())
    record_heartbeat(tx, said, now)


async def test_a_connector_counts_for_a_day_after_its_last_word(database: Database, clock: ManualClock) -> None:
    me = "me@example.org"
    await database.write(lambda tx: beat(tx, me, clock.now()))
    for hours, expected in ((0, True), (23, True), (25, False)):
        later = clock.now() + timedelta(hours=hours)
        assert await database.read(lambda tx, now=later: has_connector(tx, me, now)) is expected  # type: ignore[misc]
    assert not await database.read(lambda tx: has_connector(tx, "you@example.org", clock.now()))

"""Where a connector takes in new mail, a sync brings the old and leaves the cursor to the connector."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from postroom.accounts.history import claim_reader, cursor_of, has_connector, move_cursor
from postroom.db import Database
from postroom.db.tables.switchboard import connectors
from postroom.domain.clock import ManualClock
from tests.support.sync_world import World, in_virtual_time, letters

pytestmark = pytest.mark.req("SY-13")


def test_a_walk_goes_on_beside_the_reader_of_changes_and_leaves_its_cursor_alone(tmp_path: Path) -> None:
    async def story(world: World) -> None:
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
    async def story(world: World) -> None:
        before = (await world.client.get_profile()).history_id
        await world.sync(deltas=None)
        assert await world.database.read(lambda tx: cursor_of(tx, world.account.id)) == before
        reader = await world.database.write(
            lambda tx: claim_reader(tx, world.account.id, "the connector", world.clock.now())
        )
        assert reader.history_id == before

    in_virtual_time(letters(10), tmp_path, story)


async def test_a_connector_counts_for_a_day_after_its_last_word(database: Database, clock: ManualClock) -> None:
    me = "me@example.org"
    row = {"connector_type": "gmail", "endpoint_identity": me, "instance": "i", "version": "1", "status": "running"}
    seen = {"first_seen_at": clock.now(), "last_heartbeat_at": clock.now()}
    await database.write(lambda tx: tx.execute(connectors.insert().values(**row, **seen)))
    for hours, expected in ((0, True), (23, True), (25, False)):
        later = clock.now() + timedelta(hours=hours)
        assert await database.read(lambda tx, now=later: has_connector(tx, me, now)) is expected  # type: ignore[misc]
    assert not await database.read(lambda tx: has_connector(tx, "you@example.org", clock.now()))

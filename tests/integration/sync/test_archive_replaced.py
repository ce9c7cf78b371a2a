"""A watermark speaks of one archive. Where that is not the one at hand any more, the sync begins anew and says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from postroom.sync.engine import build_engine
from tests.support.archives import opened_store
from tests.support.sync import SyncRig, archived, captured_log, in_virtual_time, letters, settings_with

pytestmark = pytest.mark.req("SY-8", "SY-17")


async def sync_into(root: Path, world: SyncRig) -> None:
    async with opened_store(root, world.account.email, purpose="a test") as store:
        engine = build_engine(world.database, world.account, world.mailbox, store, settings_with(), world.clock)
        await engine.run(once=True)


def test_another_archive_gets_everything_whatever_the_watermark_says_of_the_first(tmp_path: Path) -> None:
    async def story(world: SyncRig) -> None:
        await world.whole().run(once=True)
        claimed = (await world.state()).watermark
        with captured_log() as events:
            await sync_into(tmp_path / "other", world)
        assert archived(tmp_path / "other", world.account.email) == world.truth()
        assert "archive.replaced" in {event["event"] for event in events}
        first_move = next(event for event in events if event["event"] == "watermark.moved")
        assert first_move["since"] == 0
        assert (await world.state()).watermark >= claimed

    in_virtual_time(letters(40), tmp_path, story)


def test_the_first_archive_gets_what_only_the_other_heard_of(tmp_path: Path) -> None:
    async def story(world: SyncRig) -> None:
        await world.whole().run(once=True)
        world.control.deliver(b"Subject: Between\n\nOnly the other one hears of it.\n")
        await sync_into(tmp_path / "other", world)
        assert world.archived() != world.truth()
        await world.whole().run(once=True)
        assert world.archived() == world.truth()

    in_virtual_time(letters(10), tmp_path, story)


def test_the_same_archive_is_not_walked_over_again(tmp_path: Path) -> None:
    async def story(world: SyncRig) -> None:
        await world.whole().run(once=True)
        world.control.expire_history()
        await world.whole().run(once=True)
        before = await world.state()
        await world.whole().run(once=True)
        assert (before.walk, (await world.state()).walk) == (2, 2)
        assert (await world.state()).watermark >= before.watermark > 0

    in_virtual_time(letters(10), tmp_path, story)

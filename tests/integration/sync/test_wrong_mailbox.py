"""A login that opens another mailbox than the account's: nothing is fetched from it and nothing is removed in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from postroom.archive.certificates import Removal, RemovalAction
from postroom.db import Database
from postroom.domain.errors import NotAllowed
from postroom.mailboxes.gmail.client import GmailClient
from postroom.mailboxes.gmail.resources import Profile
from postroom.sim.gmail.server import running_sim
from postroom.sync.state import find_state
from tests.support.archiver import archiver_scene, hour
from tests.support.mail import mailbox
from tests.support.sync import SyncRig, in_virtual_time, letters


@pytest.fixture(autouse=True)
def _other_mailbox(monkeypatch: pytest.MonkeyPatch) -> None:
    get_profile = GmailClient.get_profile

    async def somebody_else(self: GmailClient) -> Profile:
        mine = await get_profile(self)
        return Profile("somebody.else@example.com", mine.messages_total, mine.history_id)

    monkeypatch.setattr(GmailClient, "get_profile", somebody_else)


@pytest.mark.req("SY-13")
def test_nothing_is_brought_from_there(tmp_path: Path) -> None:
    async def story(world: SyncRig) -> None:
        with pytest.raises(NotAllowed, match=r"somebody\.else@example\.com"):
            await world.whole().run(once=True)
        assert await world.database.read(lambda tx: find_state(tx, world.account.id)) is None
        assert world.archived() == {}

    in_virtual_time(letters(5), tmp_path, story)


@pytest.mark.req("SY-10")
async def test_nothing_is_removed_there(database: Database, tmp_path: Path) -> None:
    source = mailbox(5)
    async with running_sim(source) as sim:
        scene = await archiver_scene(sim, source, database, tmp_path, hour(5))
        with pytest.raises(NotAllowed, match=r"somebody\.else@example\.com"):
            await scene.run(Removal(RemovalAction.DELETE))
        assert len(scene.labels()) == 5
        assert scene.certificates() == []

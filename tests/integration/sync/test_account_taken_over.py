"""A process that another one has taken an account from: whatever it still does, the sync's state is not its to change.

It was asleep, perhaps, for longer than its lease; it learns of its loss only when it next asks.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from postroom.accounts.history import LEASE, HistoryLease, HistoryLeaseLost, claim_reader, cursor_of
from postroom.mailboxes.gmail.client import GmailClient
from postroom.settings import SyncSettings
from postroom.sync import walk
from postroom.sync.engine import ChangeReader
from postroom.sync.fetch import MailFetcher
from postroom.sync.slices import Slice, TooDeep, split
from postroom.sync.state import SliceRow, slices_of
from tests.support.sync import SyncRig, in_virtual_time, letters, settings_with

pytestmark = pytest.mark.req("SY-13")


async def take_over(world: SyncRig) -> None:
    after_the_lease = world.clock.now() + 2 * LEASE
    await world.database.write(lambda tx: claim_reader(tx, world.account.id, "another process", after_the_lease))


def test_it_extends_no_walk(tmp_path: Path) -> None:
    async def story(world: SyncRig) -> None:
        class TakenOver(ChangeReader):
            async def read(self) -> None:
                await take_over(world)

        def deltas(reader: HistoryLease, fetcher: MailFetcher) -> ChangeReader:
            return TakenOver()

        await world.sync()
        before = await world.state()
        await world.clock.sleep(7_200)
        with pytest.raises(HistoryLeaseLost):
            await world.sync(deltas=deltas)
        assert await world.state() == before

    in_virtual_time(letters(10), tmp_path, story)


def test_it_begins_no_walk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: SyncRig) -> None:
        get_profile = GmailClient.get_profile

        async def taken_over(self: GmailClient) -> object:
            await take_over(world)
            return await get_profile(self)

        monkeypatch.setattr(GmailClient, "get_profile", taken_over)
        with pytest.raises(HistoryLeaseLost):
            await world.sync()
        assert await world.database.read(lambda tx: cursor_of(tx, world.account.id)) is None
        assert await world.database.read(lambda tx: slices_of(tx, world.account.id)) == []

    in_virtual_time(letters(10), tmp_path, story)


def test_it_splits_no_slice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: SyncRig) -> None:
        planned: list[SliceRow] = []

        async def too_deep(
            client: GmailClient, part: Slice, settings: SyncSettings, *, may_split: bool
        ) -> AsyncIterator[list[str]]:
            planned[:] = planned or await world.database.read(lambda tx: slices_of(tx, world.account.id))
            await take_over(world)
            halves = split(part)
            if halves is not None:
                raise TooDeep(halves)
            yield []

        monkeypatch.setattr(walk, "ids_of", too_deep)
        with pytest.raises(HistoryLeaseLost):
            await world.sync(settings_with(granularity="month"))
        assert await world.database.read(lambda tx: slices_of(tx, world.account.id)) == planned

    in_virtual_time(letters(10), tmp_path, story)

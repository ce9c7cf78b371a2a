"""A sync goes on past a message that breaks the reader; the message is archived as it came, listed, and read later."""

from __future__ import annotations

from pathlib import Path

import pytest

from postroom.accounts.troubled import TroubleKind, troubled_of
from postroom.db import Database
from postroom.mailboxes.labels import LabelNames
from postroom.settings import SyncSettings
from postroom.sync.fetch import BadMessageRetry, MailFetcher
from tests.support.reading_faults import break_reading
from tests.support.sync import letters, settings_with, sync_rig

pytestmark = pytest.mark.req("HW-1", "SY-5")


@pytest.mark.parametrize("error", [ValueError, MemoryError])
async def test_one_message_that_breaks_the_reader_is_no_hole(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    async with sync_rig(letters(30), database, tmp_path) as world:
        hostile: list[bytes] = []

        def is_hostile(raw: bytes) -> bool:
            hostile.extend([raw] if not hostile else [])
            return raw == hostile[0]

        break_reading(monkeypatch, is_hostile, error)
        await world.whole(settings_with(granularity="week")).run(once=True)
        state = await world.state()
        assert world.archived() == world.truth(), "every byte of every message"
        assert not state.is_walking
        assert await world.bad() == set(), "nothing is missing"
        [one] = await database.read(lambda tx: troubled_of(tx, world.account.id))
        assert (one.lane, one.kind, one.archived) == ("sync", TroubleKind.READ, True)
        monkeypatch.undo()
        fetcher = MailFetcher(world.mailbox, world.store, LabelNames(world.mailbox))
        retry = BadMessageRetry(database, world.account.id, world.store, fetcher, SyncSettings(), world.clock)
        assert (await retry.retry_due()).stored == frozenset(), "its time has not come"
        assert (await retry.retry()).stored == {one.key}
        assert await database.read(lambda tx: troubled_of(tx, world.account.id)) == []
        assert world.archived() == world.truth()

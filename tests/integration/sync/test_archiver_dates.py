"""What the archiver decides by dates, it decides by Gmail's own: never by what a sender wrote, however early it is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from postroom.archive.messages import Provenance
from postroom.archive.shards.reader import FileArchiveReader
from postroom.db import Database, connect
from postroom.sim.gmail.server import running_sim
from postroom.sim.gmail.sources import ListedMail, ListSource
from postroom.sync.removal import KeepReason
from tests.support.archiver import CLOCK, ArchiverScene, archiver_scene, incoming, store
from tests.support.databases import SqliteFactory
from tests.support.mail import OWNER, letter

pytestmark = pytest.mark.req("SY-10")


@pytest.fixture
async def database(sqlite_factory: SqliteFactory) -> AsyncIterator[Database]:
    opened = await connect(sqlite_factory.url())
    yield opened
    await opened.close()


def dated(*received: datetime) -> ListSource:
    """Letters that say they are of 2001, whenever they came."""
    headers = {"Date": "Mon, 01 Jan 2001 12:00:00 +0000"}
    mails = [
        ListedMail(letter(f"No. {number}", headers=headers), int(when.timestamp() * 1_000))
        for number, when in enumerate(received)
    ]
    return ListSource(mails, email=OWNER)


def import_first(root: Path, source: ListSource) -> None:
    """As files, with no more than their bytes; the sync adopts them later, by equal bytes."""
    mails = [incoming(source, index, Provenance.IMPORT) for index in range(source.count())]
    store(root, [replace(mail, gmail_id=None, thread_id=None, labels=None, received=None) for mail in mails])


def star(scene: ArchiverScene, message_id: str) -> None:
    box: Any = scene.sim.control._box
    box.store._relabelled[message_id] = box.store.get(message_id).label_ids | {"STARRED"}


async def test_mail_that_a_file_brought_first_is_as_old_as_gmail_says(database: Database, tmp_path: Path) -> None:
    received = CLOCK.now().replace(microsecond=0) - timedelta(days=5)
    source = dated(received)
    import_first(tmp_path, source)
    async with running_sim(source) as sim:
        scene = await archiver_scene(sim, source, database, tmp_path, int(CLOCK.now().timestamp()))
        with FileArchiveReader(tmp_path) as reader:
            assert reader.count() == 1
            found = reader.message(OWNER, source.summary(0).id)
        assert found is not None
        assert (found.date, found.provenance) == (received, Provenance.API)
        report = await scene.run()
    assert (report.removed, report.stays[KeepReason.YOUNG]) == (0, 1)


@pytest.mark.parametrize(
    "received", [datetime(2024, 5, 1, tzinfo=UTC), datetime(1970, 1, 1, tzinfo=UTC), datetime(1970, 2, 1, tzinfo=UTC)]
)
async def test_mail_starred_a_minute_ago_stays_whatever_its_date(
    database: Database, tmp_path: Path, received: datetime
) -> None:
    source = dated(received, received + timedelta(hours=1))
    import_first(tmp_path, source)
    async with running_sim(source) as sim:
        scene = await archiver_scene(sim, source, database, tmp_path, int(CLOCK.now().timestamp()))
        star(scene, source.summary(0).id)
        report = await scene.run()
        assert scene.in_inbox() == {source.summary(0).id}
    assert (report.removed, report.stays[KeepReason.LABEL]) == (1, 1)

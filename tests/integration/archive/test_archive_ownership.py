"""One owner of the archive for all that a process does at once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from postroom.archive.service import SharedArchive
from postroom.archive.shards.file_archive import FileArchive
from postroom.archive.shards.ownership import Ownership
from postroom.archive.shards.reader import FileArchiveReader
from postroom.archive.status import OwnedElsewhere
from tests.support.archiver import incoming
from tests.support.mail import OWNER, mailbox

SOURCE = mailbox(4)
OTHER = "other@example.com"


@pytest.mark.req("SY-7")
async def test_two_accounts_share_the_archive_and_the_last_lets_go(tmp_path: Path) -> None:
    shared = SharedArchive(FileArchive(tmp_path))
    async with shared.store(OWNER, "the first") as mine:
        async with shared.store(OTHER, "the second") as theirs:
            await asyncio.gather(
                mine.store([incoming(SOURCE, 0), incoming(SOURCE, 1)]), theirs.store([incoming(SOURCE, 2)])
            )
        with pytest.raises(OwnedElsewhere, match="the first"):
            Ownership(tmp_path, "somebody else")
        await mine.store([incoming(SOURCE, 3)])
    Ownership(tmp_path, "somebody else").release()
    with FileArchiveReader(tmp_path) as reader:
        assert (reader.count(OWNER), reader.count(OTHER)) == (3, 1)


async def test_after_a_refusal_the_archive_can_be_had_once_it_is_free(tmp_path: Path) -> None:
    shared = SharedArchive(FileArchive(tmp_path))
    rival = Ownership(tmp_path, "a rival")
    with pytest.raises(OwnedElsewhere, match="a rival"):
        async with shared.store(OWNER, "us"):
            pytest.fail("it is not ours")
    rival.release()
    async with shared.store(OWNER, "us") as store:
        await store.store([incoming(SOURCE, 0)])


@pytest.mark.req("SY-7")
async def test_mail_whose_bringer_gave_up_is_on_disk_before_the_archive_is_let_go(tmp_path: Path) -> None:
    shared = SharedArchive(FileArchive(tmp_path))
    async with shared.store(OWNER, "us") as store:
        bringing = asyncio.create_task(store.store([incoming(SOURCE, index) for index in range(4)]))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        bringing.cancel()
    with FileArchiveReader(tmp_path) as reader:
        assert reader.count(OWNER) == 4

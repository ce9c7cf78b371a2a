"""However badly the end or the beginning goes, the archive is not kept from the next one who wants it."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from postroom.archive.messages import IncomingMail, Provenance
from postroom.archive.service import SharedArchive
from postroom.archive.shards.catalogue import ShardCatalogue
from postroom.archive.shards.file_archive import FileArchive
from postroom.archive.shards.writer import FileArchiveWriter, ShardWriter
from postroom.domain.errors import Retryable
from tests.support.mail import OWNER, letter

pytestmark = pytest.mark.req("SY-7")


def full(*_: object) -> None:
    raise Retryable("The disk is full.")


def test_an_archive_whose_last_checkpoint_fails_is_let_go_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = FileArchiveWriter(tmp_path)
    archive.store(OWNER, [IncomingMail(letter("One"), Provenance.API, gmail_id="a1")])
    monkeypatch.setattr(ShardWriter, "checkpoint", full)
    with pytest.raises(Retryable):
        archive.close()
    monkeypatch.undo()
    with FileArchiveWriter(tmp_path) as again:
        assert again.known_gmail_ids(OWNER, ["a1"]) == {"a1"}


def test_an_archive_that_could_not_be_opened_is_owned_by_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ShardCatalogue, "__init__", full)
    with pytest.raises(Retryable):
        FileArchiveWriter(tmp_path)
    monkeypatch.undo()
    FileArchiveWriter(tmp_path).close()


async def test_whoever_gives_up_while_the_archive_opens_does_not_keep_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening = ShardCatalogue.__init__

    def slow(self: ShardCatalogue, root: Path) -> None:
        time.sleep(0.2)
        opening(self, root)

    monkeypatch.setattr(ShardCatalogue, "__init__", slow)
    shared = SharedArchive(FileArchive(tmp_path))

    async def use() -> None:
        async with shared.store(OWNER, "a test"):
            pass

    impatient = asyncio.create_task(use())
    await asyncio.sleep(0.05)
    impatient.cancel()
    await asyncio.gather(impatient, return_exceptions=True)
    assert impatient.cancelled()
    await use()

"""What is true of the archive in SQLite shards alone: where mail is filed, and how it is stored."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from unittest.mock import Mock

import pytest

from postroom.archive.messages import IncomingMail, Provenance, StoreOutcome
from postroom.archive.preparing import prepare
from postroom.archive.shards.reader import FileArchiveReader
from postroom.archive.shards.writer import FileArchiveWriter
from tests.support.archives import ME, plain_letter

pytestmark = pytest.mark.req("SY-7")


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[FileArchiveWriter]:
    with FileArchiveWriter(tmp_path / "archive") as opened:
        yield opened


def test_a_borrowed_message_id_does_not_file_new_mail_among_the_old(archive: FileArchiveWriter) -> None:
    old = IncomingMail(plain_letter("old", date="Tue, 01 Jan 2019"), Provenance.IMPORT)
    new = IncomingMail(plain_letter("new", date="Thu, 01 Jan 2026"), Provenance.IMPORT)
    shards = [archive.store(ME, [mail])[0].shard for mail in (old, new)]
    assert shards == [f"{ME}/2019.db", f"{ME}/2026.db"]


def test_an_import_recognises_mail_of_another_year_whenever_it_was_stored(archive: FileArchiveWriter) -> None:
    def received(number: int, year: int) -> IncomingMail:
        when = datetime(year, 3, 1, tzinfo=UTC)
        return IncomingMail(plain_letter(f"number {number}"), Provenance.TAKEOUT, f"1{number:07}", received=when)

    archive.store(ME, [received(1, 2019)])
    submitted = archive.submit(ME, [prepare(received(2, 2020))])
    imported = archive.submit(ME, [prepare(received(number, 2024)) for number in (1, 2, 3)], bulk=True)
    archive.store(ME, [received(4, 2021)])
    again = archive.submit(ME, [prepare(received(number, 2025)) for number in (2, 3, 4, 5)], bulk=True)
    assert [each.shard[-7:-3] for each in submitted.result() + imported.result()] == ["2020", "2019", "2020", "2024"]
    assert [each.shard[-7:-3] for each in again.result()] == ["2020", "2024", "2021", "2025"]
    is_new = [each.outcome is StoreOutcome.STORED for each in imported.result() + again.result()]
    assert is_new == [False, False, True, False, False, False, True]


def test_the_same_attachment_in_many_messages_is_stored_once(archive: FileArchiveWriter) -> None:
    content = base64.encodebytes(bytes(range(256)) * 2_000)
    head = (
        "Content-Type: application/pdf\r\nContent-Transfer-Encoding: base64\r\n"
        "Content-Disposition: attachment; filename=a.pdf\r\nDate: Thu, 01 Jan 2026 12:00:00 +0000\r\n"
    )
    raws = [f"{head}Message-ID: <{number}@x>\r\n\r\n".encode() + content for number in range(5)]
    stored = archive.store(ME, [IncomingMail(raw, Provenance.IMPORT) for raw in raws])
    with FileArchiveReader(archive.root) as reader:
        [shard] = reader.shards(ME)
        assert shard.query("SELECT count(*) FROM pieces") == [(1,)]
        assert [shard.raw(answer.row_id) for answer in stored] == raws
        [attachment] = shard.attachments(stored[0].row_id)
        assert (attachment.filename, attachment.size) == ("a.pdf", 512_000)


def test_bytes_of_which_nothing_was_cut_out_are_one_query(
    archive: FileArchiveWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = plain_letter("small")
    [answer] = archive.store(ME, [IncomingMail(raw, Provenance.IMPORT)])
    with FileArchiveReader(archive.root) as reader:
        [shard] = reader.shards(ME)
        query = Mock(wraps=shard.query)
        monkeypatch.setattr(shard, "query", query)
        assert shard.raw(answer.row_id) == raw
    assert query.call_count == 1

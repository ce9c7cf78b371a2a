"""Statistics of an archive in files and in PostgreSQL, kept in either control database."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from postroom.app.archive_statistics import count_archive, read_statistics, statistics_accounts
from postroom.archive.backend import ArchiveBackend
from postroom.archive.messages import IncomingMail, Provenance
from postroom.archive.shards.file_archive import FileArchive
from postroom.archive.statistics import StatisticsBy
from postroom.db import Database, connect
from postroom.domain.clock import ManualClock
from tests.support.archives import ME, OTHER

pytestmark = pytest.mark.req("UX-5")
CLOCK = ManualClock()


@pytest.fixture
async def control(tmp_path: Path) -> AsyncIterator[Database]:
    opened = await connect(f"sqlite:///{tmp_path}/control.db")
    yield opened
    await opened.close()


def mail(number: int, sender: str, received: datetime, *labels: str, file: str = "") -> IncomingMail:
    head = f"From: {sender}\r\nTo: {ME}\r\nSubject: {number}\r\nMessage-ID: <{number}@x.example>\r\n"
    text = "Content-Type: text/plain\r\n\r\nHello\r\n"
    if file:
        part = f"Content-Type: application/pdf\r\nContent-Disposition: attachment; filename={file}\r\n\r\nAAAA\r\n"
        text = f"Content-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\n{text}--b\r\n{part}--b--\r\n"
    raw = f"{head}{text}".encode()
    return IncomingMail(raw, Provenance.API, f"18{number:014x}", f"t{number}", frozenset(labels), received)


MAIL = [
    mail(1, "Ann <ann@one.example>", datetime(2023, 5, 1, 9, tzinfo=UTC), "INBOX"),
    mail(2, "ann@one.example", datetime(2024, 6, 1, 9, tzinfo=UTC), "INBOX", "Bills", file="a.pdf"),
    mail(3, "bob@one.example", datetime(2024, 6, 2, 23, tzinfo=UTC), file="b.PDF"),
    mail(4, "eve@two.example", datetime(2024, 7, 1, 9, tzinfo=UTC)),
]


def store(place: ArchiveBackend, mails: Sequence[IncomingMail], email: str = ME) -> None:
    with place.writer("a test") as writer:
        writer.store(email, mails)


async def messages(control: Database, by: StatisticsBy, account: str | None = None) -> dict[str, int]:
    found = await control.read(lambda tx: read_statistics(tx, by, account, 100))
    return {row.value: row.messages for row in found.rows}


async def test_mail_is_counted_by_every_kind(control: Database, archive_place: ArchiveBackend) -> None:
    store(archive_place, MAIL)
    assert await count_archive(control, archive_place, CLOCK) > 0
    assert await messages(control, StatisticsBy.SENDER) == {
        "ann@one.example": 2,
        "bob@one.example": 1,
        "eve@two.example": 1,
    }
    assert await messages(control, StatisticsBy.DOMAIN) == {"one.example": 3, "two.example": 1}
    assert list((await messages(control, StatisticsBy.YEAR)).items()) == [("2024", 3), ("2023", 1)]
    assert list(await messages(control, StatisticsBy.MONTH)) == ["2024-07", "2024-06", "2023-05"]
    assert await messages(control, StatisticsBy.HOUR) == {"09": 3, "23": 1}
    assert await messages(control, StatisticsBy.SIZE) == {"under 10 kB": 4}
    assert await messages(control, StatisticsBy.LABEL) == {"INBOX": 2, "Bills": 1}
    assert await messages(control, StatisticsBy.TYPE) == {"pdf": 2}
    found = await control.read(lambda tx: read_statistics(tx, StatisticsBy.DOMAIN, None, 1))
    (row,) = found.rows
    assert (row.attachments, found.values, row.search) == (2, 2, "in:anywhere from:one.example")
    assert row.bytes == sum(len(each.raw) for each in MAIL[:3])


async def test_only_what_changed_is_counted_again(control: Database, archive_place: ArchiveBackend) -> None:
    store(archive_place, MAIL)
    await count_archive(control, archive_place, CLOCK)
    assert await count_archive(control, archive_place, CLOCK) == 0
    with archive_place.writer("a test") as writer:
        writer.set_labels(ME, {MAIL[3].gmail_id or "": frozenset({"Bills"})})
    store(archive_place, [mail(5, "bob@one.example", datetime(2024, 7, 3, tzinfo=UTC))])
    assert await count_archive(control, archive_place, CLOCK) == 1
    assert await messages(control, StatisticsBy.LABEL) == {"Bills": 2, "INBOX": 2}
    assert (await messages(control, StatisticsBy.SENDER))["bob@one.example"] == 2


async def test_an_account_can_be_looked_at_by_itself(database: Database, tmp_path: Path) -> None:
    place = FileArchive(tmp_path / "archive")
    store(place, MAIL[:2])
    store(place, MAIL[2:], OTHER)
    await count_archive(database, place, CLOCK)
    assert await database.read(statistics_accounts) == sorted([ME, OTHER])
    assert await messages(database, StatisticsBy.DOMAIN, ME) == {"one.example": 2}
    assert await messages(database, StatisticsBy.DOMAIN, OTHER) == {"one.example": 1, "two.example": 1}
    assert await messages(database, StatisticsBy.DOMAIN) == {"one.example": 3, "two.example": 1}
    for file in (tmp_path / "archive" / OTHER).iterdir():
        file.unlink()
    await count_archive(database, place, CLOCK)
    assert await messages(database, StatisticsBy.DOMAIN) == {"one.example": 2}
    assert await database.read(statistics_accounts) == [ME]

"""Archived mail as a source: found by key, walked by day, and brought in from the event loop."""

from __future__ import annotations

import asyncio
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from random import Random

import pytest

from postroom.archive.backend import ArchiveBackend
from postroom.archive.messages import IncomingMail, Provenance
from postroom.archive.service import owned_archive
from postroom.archive.shards.file_archive import FileArchive
from postroom.archive.shards.writer import FileArchiveWriter
from postroom.domain.errors import BadInput, Retryable
from postroom.settings import ArchiveSettings
from tests.support.archives import ME, plain_letter


def at(moment: datetime, number: int) -> IncomingMail:
    raw = plain_letter(f"number {number}", message_id=f"<{number}@example.org>")
    return IncomingMail(raw, Provenance.API, f"m{number}", f"t{number}", frozenset({"INBOX"}), moment)


def pages(place: ArchiveBackend, first: date, last: date, limit: int) -> list[str]:
    with place.reader() as reader:
        found, cursor = reader.walk(ME, first, last, None, limit)
        keys = [message.key for message in found]
        while cursor is not None:
            found, cursor = reader.walk(ME, first, last, cursor, limit)
            assert found
            keys += [message.key for message in found]
    return keys


@pytest.mark.parametrize("limit", [1, 3, 7, 500])
def test_a_walk_meets_every_message_once_newest_first_both_days_included(
    archive_place: ArchiveBackend, limit: int
) -> None:
    random = Random(limit)
    first, last = date(2024, 12, 30), date(2025, 1, 2)
    start = datetime(2024, 12, 29, 12, tzinfo=UTC)
    moments = [start + timedelta(milliseconds=random.randrange(6 * 86_400_000)) for _ in range(60)]
    moments += [datetime(2024, 12, 30, tzinfo=UTC), datetime(2025, 1, 2, 23, 59, 59, 999_000, tzinfo=UTC)]
    moments += [moments[0]] * 3  # the same millisecond
    mails = [at(moment, number) for number, moment in enumerate(moments)]
    with archive_place.writer("a test") as archive:
        archive.store(ME, mails)
    expected = {f"m{n}": moment for n, moment in enumerate(moments) if first <= moment.date() <= last}
    walked = pages(archive_place, first, last, limit)
    assert sorted(walked) == sorted(expected)
    dates = [expected[key] for key in walked]
    assert dates == sorted(dates, reverse=True)


def test_parts_of_a_year_are_walked_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moments = [datetime(2025, 3, 1, tzinfo=UTC) + timedelta(hours=n) for n in range(24)]
    settings = ArchiveSettings.model_construct(shard_bytes=1)  # every file is full at once
    with FileArchiveWriter(tmp_path, settings) as archive:
        for number in Random(3).sample(range(24), 24):
            archive.store(ME, [at(moments[number], number)])
    assert len(list(tmp_path.glob("*/2025-*.db"))) > 5
    assert pages(FileArchive(tmp_path), date(2025, 3, 1), date(2025, 3, 1), 5) == [f"m{n}" for n in reversed(range(24))]


def test_mail_without_a_gmail_id_is_no_stop_on_a_walk(archive_place: ArchiveBackend) -> None:
    with archive_place.writer("a test") as archive:
        archive.store(ME, [IncomingMail(plain_letter(), Provenance.IMPORT)])
    assert pages(archive_place, date(2026, 1, 1), date(2026, 1, 1), 10) == []


@pytest.mark.parametrize("cursor", ["x", "1", "1.", "-1.1", "1.0", "f" * 40 + ".1", "1.1.1"])
def test_a_cursor_of_somebody_elses_making_is_refused(archive_place: ArchiveBackend, cursor: str) -> None:
    with archive_place.reader() as reader, pytest.raises(BadInput, match="cursor"):
        reader.walk(ME, date(2026, 1, 1), date(2026, 1, 2), cursor, 10)


def test_many_are_found_at_once_in_whichever_year(archive_place: ArchiveBackend) -> None:
    mails = [at(datetime(2020 + n % 5, 6, 1, tzinfo=UTC), n) for n in range(20)]
    with archive_place.writer("a test") as archive:
        archive.store(ME, mails)
    with archive_place.reader() as reader:
        found = reader.find_many(ME, [f"m{n}" for n in range(10, 30)])
        assert sorted(found) == sorted(f"m{n}" for n in range(10, 20))
        assert reader.body_of(found["m17"]).strip() == "number 17"
        assert reader.find_many("you@example.org", ["m1"]) == {}


@pytest.mark.req("SY-7")
async def test_the_loop_goes_on_while_the_archive_writes_and_the_owner_is_named(tmp_path: Path) -> None:
    mails = [at(datetime(2025, 1, 1, tzinfo=UTC), n) for n in range(300)]
    async with owned_archive(FileArchive(tmp_path), "the first") as service:
        stores = [asyncio.create_task(service.of(ME).store(mails[n : n + 10])) for n in range(0, 300, 10)]
        with pytest.raises(Retryable, match="being written by `the first`"):
            async with owned_archive(FileArchive(tmp_path), "the second"):
                pass
        stored = [proof for task in stores for proof in await task]
        assert [proof.key for proof in stored] == [mail.gmail_id for mail in mails]
        assert await service.read(lambda archive: archive.count(ME)) == 300
        assert await service.of(ME).mark_deleted(["m1", "zz"], datetime(2026, 1, 1, tzinfo=UTC)) == {"zz"}
    async with owned_archive(FileArchive(tmp_path), "the second"):
        pass


def test_all_mail_of_all_accounts_is_met_newest_first(archive_place: ArchiveBackend) -> None:
    random = Random(5)
    moments = [datetime(2023, 1, 1, tzinfo=UTC) + timedelta(hours=random.randrange(26_000)) for _ in range(700)]
    with archive_place.writer("a test") as archive:
        archive.store(ME, [at(moment, number) for number, moment in enumerate(moments)])
        archive.store("you@example.org", [at(moment, number) for number, moment in enumerate(moments[:50])])
    with archive_place.reader() as reader:
        dates = [message.date for message in reader.newest_first()]
        mine = [message.key for message in reader.newest_first([ME])]
    assert dates == sorted([*moments, *moments[:50]], reverse=True)
    assert sorted(mine) == sorted(f"m{number}" for number in range(700))

"""Statistics of an archive in files and in PostgreSQL, kept in either control database."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import pytest
from sqlalchemy import delete, func, update

from postroom.app.archive_statistics import (
    count_archive,
    read_responses,
    read_statistics,
    statistics_accounts,
    statistics_handler,
)
from postroom.archive.backend import ArchiveBackend
from postroom.archive.messages import IncomingMail, Provenance
from postroom.archive.shards.file_archive import FileArchive
from postroom.archive.statistics import (
    RESPONSES,
    Responder,
    ResponseTimes,
    StatisticsBy,
    Turn,
    merged,
    response_counts,
    response_times,
    responses_by_person,
    shown_value,
)
from postroom.db import Database, connect
from postroom.db.tables.reports import archive_statistics
from postroom.domain.clock import ManualClock
from postroom.domain.jobs import ARCHIVE_STATISTICS, CATALOGUE
from postroom.queue import JobQueue, NewJob
from tests.support.archives import ME, OTHER
from tests.support.queues import run_until_idle

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


def turn(number: int, sender: str, received: datetime, *labels: str) -> IncomingMail:
    """Of one conversation."""
    raw = f"From: {sender}\r\nTo: x@x.example\r\nMessage-ID: <{number}@turn.example>\r\n\r\nHello\r\n".encode()
    return IncomingMail(raw, Provenance.API, f"19{number:014x}", "conversation", frozenset(labels), received)


NEW_YEAR = datetime(2024, 1, 1, tzinfo=UTC)
CONVERSATION = [
    turn(1, "ann@one.example", NEW_YEAR - timedelta(hours=3)),
    turn(2, ME, NEW_YEAR + timedelta(hours=1)),  # in another shard
    turn(3, "bob@two.example", NEW_YEAR + timedelta(hours=2)),
    turn(4, "ann@one.example", NEW_YEAR + timedelta(hours=3)),
    turn(5, "my-other-address@one.example", NEW_YEAR + timedelta(hours=13), "SENT"),
    turn(6, ME, NEW_YEAR + timedelta(hours=14)),
    turn(7, "ann@one.example", NEW_YEAR + timedelta(days=60)),  # too late for a reply
]


async def test_how_long_replies_take_is_known_of_the_owner_and_of_others(
    control: Database, archive_place: ArchiveBackend
) -> None:
    store(archive_place, [*MAIL, *CONVERSATION])
    await count_archive(control, archive_place, CLOCK)
    found = await control.read(lambda tx: read_responses(tx, ME, 10))
    everyone, ann, bob = found.rows
    hour = 3_600
    assert (everyone.person, everyone.owner, everyone.others) == (
        "",
        ResponseTimes(2, 4 * hour, 10 * hour),
        ResponseTimes(1, hour, hour),
    )
    assert (ann.person, ann.owner, ann.others) == ("ann@one.example", everyone.owner, None)
    assert (bob.person, bob.owner, bob.others) == ("bob@two.example", None, ResponseTimes(1, hour, hour))
    assert (found.people, ann.search) == (2, "in:anywhere {from:ann@one.example to:ann@one.example}")
    assert (await control.read(lambda tx: read_responses(tx, None, 1))).rows == [everyone, ann]


async def test_mail_without_a_sender_is_counted_too(control: Database, archive_place: ArchiveBackend) -> None:
    raw = f"To: {ME}\r\nSubject: nobody\r\nMessage-ID: <9@x.example>\r\n\r\nHello\r\n".encode()
    received = datetime(2024, 7, 2, tzinfo=UTC)
    nobody = IncomingMail(raw, Provenance.API, "180000000000000a", "t9", frozenset(), received)
    store(archive_place, [*MAIL, nobody])
    await count_archive(control, archive_place, CLOCK)
    for by in (StatisticsBy.SENDER, StatisticsBy.DOMAIN):
        counts = await messages(control, by)
        assert counts[""] == 1
        assert sum(counts.values()) == 5
        assert shown_value(by, "") == "(no sender)"


async def test_shards_that_an_older_postroom_counted_are_counted_again(
    control: Database, archive_place: ArchiveBackend
) -> None:
    store(archive_place, CONVERSATION)
    counted = await count_archive(control, archive_place, CLOCK)
    responses = delete(archive_statistics).where(archive_statistics.c.kind == RESPONSES)
    unmarked = update(archive_statistics).values(stamp=func.replace(archive_statistics.c.stamp, "all mail ", ""))
    await control.write(lambda tx: tx.execute(responses) and tx.execute(unmarked) and None)
    assert await count_archive(control, archive_place, CLOCK) == counted
    assert (await control.read(lambda tx: read_responses(tx, None, 10))).people == 2


def test_a_percentile_is_at_most_a_tenth_off_however_the_times_are_spread() -> None:
    chance = Random(20)
    times = sorted(round(10 ** chance.uniform(0, 6)) for _ in range(501))
    turns = [
        Turn(str(number), moment, sender, was_sent=False, is_here=True)
        for number, seconds in enumerate(times)
        for moment, sender in ((0, "ann@one.example"), (seconds * 1_000, ME))
    ]
    counts = response_counts(turns, ME)
    halves = [dict(list(counts.items())[:100]), dict(list(counts.items())[100:])]
    found = responses_by_person(response_times(merged(halves)))[""][Responder.OWNER]
    assert found.replies == 501
    assert found.median_s == pytest.approx(times[250], rel=0.1)
    assert found.p90_s == pytest.approx(times[450], rel=0.1)


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


async def test_an_archive_without_mail_is_looked_at_again_soon(
    database: Database, archive_place: ArchiveBackend
) -> None:
    """A new user would else see empty statistics for a quarter of an hour."""
    queue = JobQueue(database, CATALOGUE, CLOCK)
    work = {ARCHIVE_STATISTICS.name: statistics_handler(archive_place)}
    await database.write(lambda tx: queue.add(tx, NewJob(ARCHIVE_STATISTICS.name, {}, key="count")))
    await run_until_idle(queue, work)
    assert await database.read(statistics_accounts) == []
    store(archive_place, MAIL)
    CLOCK.advance(31)
    await run_until_idle(queue, work)
    assert await database.read(statistics_accounts) == [ME]

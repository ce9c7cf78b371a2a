"""The archive of the dashboard's benchmark: one year of generated mail, stored as any mail is, and its copies with
other dates for the years before it, so that a million messages take minutes and not an hour."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from rich.console import Console

from postroom.archive.messages import SLOT_BITS, IncomingMail, Provenance, ShardName, path_of
from postroom.archive.shards.catalogue import ShardCatalogue
from postroom.archive.shards.certificates import certificates_path, open_certificates
from postroom.archive.shards.file_archive import FileArchive
from postroom.archive.shards.shard_file import teach_segmenting
from postroom.sim.gmail.generated import GeneratedMailbox

OWNER = "owner@example.com"
NOW = datetime(2025, 12, 31, 18, tzinfo=UTC)
"""The time at which all pages are looked at, so that a data set stays as good as it was."""
YEARS = 11
_PORTION = 500
_OF_MESSAGES = ("raw", "raw_pieces", "message_labels", "recipients", "attachments", "texts")


@dataclass(frozen=True, slots=True)
class Mail:
    key: str
    thread_id: str
    date: datetime
    sender: str
    subject: str
    size: int


def write_archive(root: Path, messages: int, console: Console) -> None:
    per_year = messages // YEARS
    _write_a_year(root, messages - per_year * (YEARS - 1), console)
    newest = _shard(NOW.year)
    for back in range(1, YEARS):
        console.print(f"archive: {NOW.year - back}")
        _copy_year(root, newest, back, per_year)


def _write_a_year(root: Path, messages: int, console: Console) -> None:
    """Shared out evenly until now."""
    start = datetime(NOW.year, 1, 1, tzinfo=UTC)
    apart = (NOW - start) / messages
    box = GeneratedMailbox(messages, 1, OWNER)
    with FileArchive(root).writer("the dashboard's benchmark") as archive:
        for first in range(0, messages, _PORTION):
            some = range(first, min(first + _PORTION, messages))
            archive.store(OWNER, [_incoming(box, index, start + index * apart) for index in some])
            if first % 20_000 == 0:
                console.print(f"archive: {NOW.year}, {first:,} of {messages:,}")


def _incoming(box: GeneratedMailbox, index: int, received: datetime) -> IncomingMail:
    summary = box.summary(index)
    labels = frozenset(dict(box.user_labels()).get(label, label) for label in summary.label_ids)
    return IncomingMail(box.raw(index), Provenance.API, summary.id, summary.thread_id, labels, received)


def _copy_year(root: Path, newest: ShardName, back: int, messages: int) -> None:
    """Other ids, other dates, the same text. Rows move by whole years, so none meets one that has not moved yet."""
    name = _shard(newest.year - back)
    shutil.copy(path_of(root, newest), path_of(root, name))
    moved = datetime(newest.year, 1, 1, tzinfo=UTC) - datetime(name.year, 1, 1, tzinfo=UTC)
    moved_ms = int(moved / timedelta(milliseconds=1))
    shard = sqlite3.connect(path_of(root, name), isolation_level=None)
    for pragma in ("foreign_keys = OFF", "synchronous = OFF", "cache_size = -200000", "temp_store = MEMORY"):
        shard.execute(f"PRAGMA {pragma}")
    shard.execute("BEGIN")
    excess = shard.execute("SELECT count(*) FROM messages").fetchone()[0] - messages
    for table, column in (*((table, "id") for table in _OF_MESSAGES), ("messages", "id")):
        shard.execute(
            f"DELETE FROM {table} WHERE {column} IN (SELECT id FROM messages ORDER BY id LIMIT ?)",  # noqa: S608
            (excess,),
        )
        shard.execute(f"UPDATE {table} SET {column} = {column} - ?", (moved_ms << SLOT_BITS,))  # noqa: S608
    mark = f"{back + 1:x}"  # ids of the generated mailbox begin with a 1
    shard.execute(
        "UPDATE messages SET date_ms = date_ms - ?, key = ? || substr(key, 2), gmail_id = ? || substr(gmail_id, 2), "
        "thread_id = ? || substr(thread_id, 2), message_id = ? || '.' || message_id",
        (moved_ms, mark, mark, mark, mark),
    )
    shard.execute("UPDATE shard SET value = ? WHERE key = 'period'", (str(name.year),))
    teach_segmenting(shard)
    shard.execute("INSERT INTO search (search) VALUES ('rebuild')")
    shard.execute("COMMIT")
    shard.close()
    catalogue = ShardCatalogue(root)
    catalogue.counted(name, messages)
    catalogue.close()


def archived_mail(root: Path) -> Iterator[Mail]:
    """Oldest first."""
    for year in range(NOW.year - YEARS + 1, NOW.year + 1):
        shard = sqlite3.connect(path_of(root, _shard(year)))
        query = "SELECT key, thread_id, date_ms, sender, subject, size FROM messages ORDER BY id"
        for key, thread, date_ms, *rest in shard.execute(query):
            yield Mail(key, thread, datetime.fromtimestamp(date_ms / 1_000, UTC), *rest)
        shard.close()


def extremes(root: Path) -> list[str]:
    """The keys of messages that have much to show: of the longest thread, and the largest with an attachment."""
    shard = sqlite3.connect(path_of(root, _shard(NOW.year)))
    queries = (
        "SELECT max(key) FROM messages GROUP BY thread_id ORDER BY count(*) DESC LIMIT 1",
        "SELECT key FROM messages WHERE has_attachment ORDER BY size DESC LIMIT 1",
    )
    keys = [str(row[0]) for query in queries for row in shard.execute(query)]
    shard.close()
    return keys


def write_certificates(root: Path, every: int) -> None:
    """Of mail that was removed at the source."""
    ledger = open_certificates(certificates_path(root, OWNER))
    ledger.execute("PRAGMA synchronous = OFF")
    ledger.execute("BEGIN")
    when = NOW.isoformat()
    for number, mail in enumerate(archived_mail(root)):
        if number % every:
            continue
        values = (
            number + 1,
            "b",
            mail.key,
            "trash",
            "",
            mail.key,
            f"{number:064x}",
            mail.size,
            "s",
            number,
            "api",
            1,
            when,
        )
        ledger.execute(f"INSERT INTO certificates VALUES ({', '.join('?' * len(values))})", values)  # noqa: S608
        ledger.execute("INSERT INTO outcomes VALUES (?, ?, 'removed', '', ?)", (number + 1, number + 1, when))
    ledger.execute("COMMIT")
    ledger.close()


def _shard(year: int) -> ShardName:
    return ShardName(OWNER, year)

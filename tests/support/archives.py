"""Archives filled with mail: generated messages, an account's store, and small shards written without threads.

As a program it stores generated mail until it is killed: `python -m tests.support.archives WHERE COUNT [SEED]`, where
WHERE is a folder or a database URL. It prints `ready`, then key and outcome of each message reported as stored.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

from postroom.archive.backend import ArchiveBackend
from postroom.archive.messages import IncomingMail, Provenance, ShardName, path_of, year_of
from postroom.archive.preparing import PreparedMail, prepare
from postroom.archive.service import AccountStore, owned_archive
from postroom.archive.shards.file_archive import FileArchive
from postroom.archive.shards.insertion import ShardInsertion
from postroom.archive.shards.shard_file import open_for_writing
from postroom.sim.gmail.generated import GeneratedMailbox
from postroom.sim.gmail.sources import MailboxSource
from tests.support.mail import letter

ME = "me@example.org"


def incoming(box: GeneratedMailbox, index: int, provenance: Provenance = Provenance.API) -> IncomingMail:
    summary = box.summary(index)
    return IncomingMail(
        raw=box.raw(index),
        provenance=provenance,
        gmail_id=summary.id,
        thread_id=summary.thread_id,
        labels=summary.label_ids,
        received=datetime.fromtimestamp(summary.internal_date / 1_000, UTC),
    )


def generated_mail(count: int, seed: int = 1) -> list[IncomingMail]:
    box = GeneratedMailbox(count, seed, ME)
    return [incoming(box, index) for index in range(count)]


def plain_letter(
    body: str = "Hello", *, message_id: str | None = "<a@example.org>", date: str = "Thu, 01 Jan 2026"
) -> bytes:
    head = f"From: Ann <ann@example.org>\r\nTo: {ME}\r\nSubject: A letter\r\nDate: {date} 12:00:00 +0000\r\n"
    named = f"Message-ID: {message_id}\r\n" if message_id else ""
    return f"{head}{named}\r\n{body}\r\n".encode()


@asynccontextmanager
async def opened_store(root: Path, email: str, purpose: str = "a test") -> AsyncIterator[AccountStore]:
    """An account's part of the archive below `root`, owned until the block ends."""
    async with owned_archive(FileArchive(root), purpose) as service:
        yield service.of(email)


ACCOUNT = "owner@example.com"
OTHER = "second@example.com"
FIRST_DAY = datetime(2024, 12, 30, tzinfo=UTC)


def prepared_mail(number: int, body: str = "Nothing much.", *labels: str, thread: str | None = None) -> PreparedMail:
    """Letters a day apart, over the turn of a year."""
    raw = letter(f"Letter {number}", f"{body}\n", headers={"Message-ID": f"<{number}@x.example>"})
    received = FIRST_DAY + timedelta(days=number)
    return prepare(IncomingMail(raw, Provenance.API, f"{number:016x}", thread, frozenset(labels), received))


def from_source(source: MailboxSource, indexes: Iterable[int]) -> list[PreparedMail]:
    """Messages of a generated mailbox, with the names of its labels."""
    names = source.user_labels()
    prepared = []
    for index in indexes:
        summary = source.summary(index)
        labels = frozenset(names.get(label, label) for label in summary.label_ids)
        received = datetime.fromtimestamp(summary.internal_date / 1_000, UTC)
        mail = IncomingMail(source.raw(index), Provenance.API, summary.id, summary.thread_id, labels, received)
        prepared.append(prepare(mail))
    return prepared


def fill_shards(root: Path, mails: Iterable[PreparedMail], account: str = ACCOUNT, part: int = 1) -> None:
    by_shard: defaultdict[ShardName, list[PreparedMail]] = defaultdict(list)
    for mail in mails:
        by_shard[ShardName(account, year_of(mail.date), part)].append(mail)
    for name, some in by_shard.items():
        connection = open_for_writing(path_of(root, name), name)
        connection.execute("PRAGMA synchronous = OFF")
        insertion = ShardInsertion(connection, str(name))
        connection.execute("BEGIN IMMEDIATE")
        for mail in some:
            insertion.put(mail)
        connection.execute("COMMIT")
        connection.close()


def place_at(where: str) -> ArchiveBackend:
    if not where.startswith("postgresql"):
        return FileArchive(Path(where))
    from postroom.archive.postgres.postgres_archive import (
        PostgresArchive,  # as slow to load as all the rest, and started often
    )

    return PostgresArchive(where)


def write_until_killed(where: str, count: str, seed: str = "") -> None:
    mails = generated_mail(int(count))
    if seed:
        Random(seed).shuffle(mails)
    with place_at(where) as place, place.writer("a test's writer") as archive:
        print("ready", flush=True)
        for start in range(0, len(mails), 20):
            for stored in archive.store(ME, mails[start : start + 20]):
                print(stored.key, stored.outcome, flush=True)
        print("done", flush=True)
        sys.stdin.readline()


if __name__ == "__main__":
    write_until_killed(*sys.argv[1:])

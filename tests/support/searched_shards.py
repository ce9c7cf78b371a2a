"""Small archives for tests, written through the same insertion as the real writer's, without its threads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from postroom.archive.insertion import Insertion
from postroom.archive.layout import ShardName, path_of, year_of
from postroom.archive.model import IncomingMail, Provenance
from postroom.archive.preparing import PreparedMail, prepare
from postroom.archive.shard import open_for_writing
from postroom.gmail.sim.model import MailSource
from tests.support.sim_mail import letter

ACCOUNT = "owner@example.com"
OTHER = "second@example.com"
START = datetime(2024, 12, 30, tzinfo=UTC)


def mail(number: int, body: str = "Nothing much.", *labels: str, thread: str | None = None) -> PreparedMail:
    """Letters a day apart, over the turn of a year."""
    raw = letter(f"Letter {number}", f"{body}\n", headers={"Message-ID": f"<{number}@x.example>"})
    received = START + timedelta(days=number)
    return prepare(IncomingMail(raw, Provenance.API, f"{number:016x}", thread, frozenset(labels), received))


def from_source(source: MailSource, indexes: Iterable[int]) -> list[PreparedMail]:
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


def fill(root: Path, mails: Iterable[PreparedMail], account: str = ACCOUNT, part: int = 1) -> None:
    by_shard: defaultdict[ShardName, list[PreparedMail]] = defaultdict(list)
    for mail in mails:
        by_shard[ShardName(account, year_of(mail.date), part)].append(mail)
    for name, some in by_shard.items():
        connection = open_for_writing(path_of(root, name), name)
        connection.execute("PRAGMA synchronous = OFF")
        insertion = Insertion(connection, str(name))
        connection.execute("BEGIN IMMEDIATE")
        for mail in some:
            insertion.put(mail)
        connection.execute("COMMIT")
        connection.close()

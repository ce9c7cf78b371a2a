"""Stores one message in one shard, within the writer's transaction. Idempotent: a message that is there is recognised,
by the rules of `identity`.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from postroom.archive import messages as layout
from postroom.archive.identity import reconcile
from postroom.archive.messages import IncomingMail, Provenance, StoredMessage, StoreOutcome
from postroom.archive.preparing import Cut, PreparedMail, Texts, pack
from postroom.archive.shards.shard_file import has_attachment_texts, is_segmented
from postroom.mail.parsing import UNREADABLE

_SEARCH_COLUMNS = ", ".join(Texts._fields)
_SEARCH_MARKS = ", ".join("?" * len(Texts._fields))


class _Known(NamedTuple):
    id: int
    key: str
    gmail_id: str | None
    sha256: bytes
    provenance: str
    problems: str | None

    @property
    def is_unread(self) -> bool:
        return (self.problems or "").startswith(UNREADABLE)


class ShardInsertion:
    """Stores messages over one connection; remembers the shard's labels, which are few and asked for all the time."""

    def __init__(self, connection: sqlite3.Connection, shard: str) -> None:
        self._db = connection
        self._shard = shard
        self._labels: dict[str, int] = {}

    def forget(self) -> None:
        """After a rollback, labels that were made in the transaction do not exist."""
        self._labels.clear()

    def put_all(self, mails: Sequence[PreparedMail]) -> list[StoredMessage]:
        """Store these. What nothing here or among them can be the same as is inserted together, table by table."""
        known = self._known_among(mails)
        new = [mail for mail in mails if mail.key not in known and mail.message_id not in known]
        stored = dict(zip(map(id, new), self._insert_all(new), strict=True))
        return [stored.get(id(mail)) or self.put(mail) for mail in mails]

    def _known_among(self, mails: Sequence[PreparedMail]) -> set[str]:
        """Keys and Message-IDs that are here already, or that several of these have."""
        names = Counter(mail.key for mail in mails) + Counter(mail.message_id for mail in mails)
        marks = ", ".join("?" * len(mails))
        found = self._db.execute(
            f"SELECT key FROM messages WHERE key IN ({marks}) "
            f"UNION ALL SELECT message_id FROM messages WHERE message_id IN ({marks})",
            [*(mail.key for mail in mails), *(mail.message_id for mail in mails)],
        )
        return {name for name, count in names.items() if count > 1}.union(name for (name,) in found)

    def _insert_all(self, mails: Sequence[PreparedMail]) -> list[StoredMessage]:
        dates = [mail.date_ms for mail in mails]
        taken = self._largest_taken(map(layout.first_id, dates))  # and what is given here, by the millisecond's first

        def largest_taken(first: int) -> int | None:
            if first not in taken:
                taken.update(self._largest_taken([first]))
            return taken[first]

        given: list[int] = []
        for date_ms in dates:
            row_id = layout.free_id(date_ms, largest_taken)
            taken[row_id - row_id % layout.SLOTS] = row_id
            given.append(row_id)
        # In the order of their ids: an index that gets a smaller id than the last one begins another segment.
        in_order = sorted(zip(given, dates, mails, strict=True))
        self._write_messages(in_order)
        rows = [(row_id, mail) for row_id, _, mail in in_order]
        self._write_rest(rows)
        labels = [(self._label(name), row_id) for row_id, mail in rows for name in sorted(mail.mail.labels or ())]
        self._db.executemany("INSERT INTO message_labels (label, id) VALUES (?, ?)", labels)
        return [self._proof(row_id, mail) for row_id, mail in zip(given, mails, strict=True)]

    def _proof(self, row_id: int, mail: PreparedMail) -> StoredMessage:
        return StoredMessage(mail.key, self._shard, row_id, mail.sha256.hex(), StoreOutcome.STORED, mail.trouble)

    def put(self, mail: PreparedMail) -> StoredMessage:
        known = self._find(mail)
        if known is None:
            return self._insert_all([mail])[0]
        found = reconcile(known, mail)
        if found.learns_labels:
            self._learn_labels(known.id, mail.mail)
        if found.corrects_date:
            self._db.execute("UPDATE messages SET date_ms = ? WHERE id = ?", (mail.date_ms, known.id))
        if found.replaces:
            self._remove_contents(known.id)
            self._write_contents(known.id, mail)
        if found.rereads:
            self._reread(known, mail)
        if found.confirms:
            self._db.execute(
                "UPDATE messages SET provenance = ?, deleted_at_source = NULL WHERE id = ?", (Provenance.API, known.id)
            )
        if found.adopts:
            self._adopt(known, mail)
        return StoredMessage(found.key, self._shard, known.id, found.sha256.hex(), found.outcome, found.trouble)

    def set_labels(self, row_id: int, labels: frozenset[str]) -> None:
        self._db.execute("DELETE FROM message_labels WHERE id = ?", (row_id,))
        self._give_labels(row_id, labels)

    def _give_labels(self, row_id: int, labels: frozenset[str]) -> None:
        """To a message that has none."""
        self._db.executemany(
            "INSERT INTO message_labels (label, id) VALUES (?, ?)",
            [(self._label(name), row_id) for name in sorted(labels)],
        )

    def change_labels(self, row_id: int, add: frozenset[str], remove: frozenset[str]) -> None:
        """Give and take single labels; what a message has already, or lacks already, is no change."""
        self._db.executemany(
            "DELETE FROM message_labels WHERE id = ? AND label = (SELECT label FROM labels WHERE name = ?)",
            [(row_id, name) for name in remove - add],
        )
        self._db.executemany(
            "INSERT OR IGNORE INTO message_labels (label, id) VALUES (?, ?)",
            [(self._label(name), row_id) for name in sorted(add)],
        )

    def rename_label(self, old: str, new: str) -> None:
        """Where both names exist, those who had the old one join those who have the new one."""
        self._db.execute(
            "INSERT OR IGNORE INTO message_labels (label, id) SELECT ?, id FROM message_labels "
            "WHERE label = (SELECT label FROM labels WHERE name = ?)",
            (self._label(new), old),
        )
        self._db.execute("DELETE FROM message_labels WHERE label = (SELECT label FROM labels WHERE name = ?)", (old,))
        self._db.execute("DELETE FROM labels WHERE name = ?", (old,))
        self._labels.pop(old, None)

    def _learn_labels(self, row_id: int, mail: IncomingMail) -> None:
        """The API tells all the labels there are; any other source only some that there once were."""
        labels = mail.labels or frozenset()
        if mail.provenance is not Provenance.API:
            rows = self._db.execute(
                "SELECT name FROM message_labels JOIN labels USING (label) WHERE id = ?", (row_id,)
            ).fetchall()
            labels |= {name for (name,) in rows}
        self.set_labels(row_id, labels)

    def _find(self, mail: PreparedMail) -> _Known | None:
        row = self._db.execute(
            "SELECT id, key, gmail_id, sha256, provenance, problems FROM messages WHERE key = ?", (mail.key,)
        ).fetchone()
        if row is None:
            row = self._db.execute(
                "SELECT id, key, gmail_id, sha256, provenance, problems FROM messages "
                "WHERE message_id = ? AND sha256 = ? AND (gmail_id IS NULL OR ? IS NULL) ORDER BY id LIMIT 1",
                (mail.message_id, mail.sha256, mail.mail.gmail_id),
            ).fetchone()
        return _Known(*row) if row else None

    def _reread(self, known: _Known, mail: PreparedMail) -> None:
        """Where it came from and whether it is gone there stays."""
        self._remove_contents(known.id)
        self._db.execute(
            "UPDATE messages SET sender = ?, subject = ?, has_attachment = ?, problems = ?, message_id = ?, "
            "date_ms = ?, thread_id = CASE WHEN gmail_id IS NULL THEN ? ELSE thread_id END WHERE id = ?",
            (*_facts(mail, _now())[3:7], mail.message_id, mail.date_ms, mail.thread_id, known.id),
        )
        self._write_rest([(known.id, mail)])

    def _adopt(self, known: _Known, mail: PreparedMail) -> None:
        self._db.execute(
            "UPDATE messages SET key = ?, gmail_id = ?, thread_id = ? WHERE id = ?",
            (mail.key, mail.mail.gmail_id, mail.thread_id, known.id),
        )

    def _largest_taken(self, firsts: Iterable[int]) -> dict[int, int | None]:
        """The largest id that is taken in each of these milliseconds, by their first; None where none is."""
        rows = self._db.execute(
            "SELECT value, (SELECT max(id) FROM messages WHERE id >= value AND id < value + ?) FROM json_each(?)",
            (layout.SLOTS, json.dumps(list(firsts))),
        )
        return dict(rows.fetchall())

    def _write_messages(self, rows: Sequence[tuple[int, int, PreparedMail]]) -> None:
        now = _now()
        self._db.executemany(
            "INSERT INTO messages (id, key, gmail_id, thread_id, message_id, date_ms, sha256, size, provenance, "
            "sender, subject, has_attachment, problems, stored_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (
                    row_id,
                    mail.key,
                    mail.mail.gmail_id,
                    mail.thread_id,
                    mail.message_id,
                    date_ms,
                    *_facts(mail, now),
                )
                for row_id, date_ms, mail in rows
            ],
        )

    def _write_contents(self, row_id: int, mail: PreparedMail) -> None:
        self._db.execute(
            "UPDATE messages SET sha256 = ?, size = ?, provenance = ?, sender = ?, subject = ?, has_attachment = ?, "
            "problems = ?, stored_at = ?, message_id = ?, deleted_at_source = NULL WHERE id = ?",
            (*_facts(mail, _now()), mail.message_id, row_id),
        )
        self._write_rest([(row_id, mail)])

    def _write_rest(self, rows: Sequence[tuple[int, PreparedMail]]) -> None:
        """Everything derived from the bytes of messages of which nothing is written yet."""
        db = self._db
        db.executemany("INSERT INTO raw (id, codec, data) VALUES (?, ?, ?)", [(id, *mail.packed) for id, mail in rows])
        db.executemany(
            "INSERT INTO raw_pieces (id, position, number, piece) VALUES (?, ?, ?, ?)",
            [
                (id, piece.position, number, self._piece(piece))
                for id, mail in rows
                for number, piece in enumerate(mail.cuts)
            ],
        )
        texts: list[tuple[object, ...]] = [(id, *mail.texts) for id, mail in rows]
        db.executemany(f"INSERT INTO texts (id, {_SEARCH_COLUMNS}) VALUES (?, {_SEARCH_MARKS})", texts)
        if is_segmented(db):
            texts = [(id, *(mail.indexed or mail.texts)) for id, mail in rows]
        db.executemany(f"INSERT INTO search (rowid, {_SEARCH_COLUMNS}) VALUES (?, {_SEARCH_MARKS})", texts)
        db.executemany(
            "INSERT INTO recipients (id, kind, address, name) VALUES (?, ?, ?, ?)",
            [(id, *recipient) for id, mail in rows for recipient in mail.recipients],
        )
        db.executemany(
            "INSERT INTO attachments (id, number, filename, content_type, size, sha256) VALUES (?, ?, ?, ?, ?, ?)",
            [(id, number, *attachment) for id, mail in rows for number, attachment in enumerate(mail.attachments)],
        )

    def _remove_contents(self, row_id: int) -> None:
        """Delete everything derived from the bytes."""
        tables = ["raw", "raw_pieces", "texts", "recipients", "attachments"]
        if has_attachment_texts(self._db):
            unindex(self._db, row_id, f"{_SEARCH_COLUMNS}, attachments")
            tables.append("readings")
        else:
            unindex(self._db, row_id, _SEARCH_COLUMNS)
        for table in tables:
            self._db.execute(f"DELETE FROM {table} WHERE id = ?", (row_id,))

    def _piece(self, piece: Cut) -> int:
        found = self._db.execute("SELECT piece FROM pieces WHERE sha256 = ?", (piece.sha256,)).fetchone()
        if found:
            return int(found[0])
        made = self._db.execute(
            "INSERT INTO pieces (sha256, codec, data) VALUES (?, ?, ?)", (piece.sha256, *pack(piece.content))
        )
        return int(made.lastrowid or 0)

    def _label(self, name: str) -> int:
        if name not in self._labels:
            self._db.execute("INSERT OR IGNORE INTO labels (name) VALUES (?)", (name,))
            row = self._db.execute("SELECT label FROM labels WHERE name = ?", (name,)).fetchone()
            self._labels[name] = int(row[0])
        return self._labels[name]


def unindex(connection: sqlite3.Connection, row_id: int, columns: str) -> None:
    """Remove a message from the full-text index, which needs the old texts for that."""
    source = "search_texts" if is_segmented(connection) else "texts"
    connection.execute(
        f"INSERT INTO search (search, rowid, {columns}) SELECT 'delete', id, {columns} FROM {source} WHERE id = ?",
        (row_id,),
    )


def index_with_attachments(connection: sqlite3.Connection, row_id: int, text: str) -> None:
    """Index a message anew, with this text of its attachments. The shard is of the current version."""
    columns = f"{_SEARCH_COLUMNS}, attachments"
    unindex(connection, row_id, columns)
    connection.execute("UPDATE texts SET attachments = ? WHERE id = ?", (text or None, row_id))
    connection.execute(
        f"INSERT INTO search (rowid, {columns}) SELECT id, {columns} FROM search_texts WHERE id = ?", (row_id,)
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _facts(mail: PreparedMail, stored_at: str) -> tuple[object, ...]:
    """The columns of `messages` from sha256 to stored_at."""
    return (
        mail.sha256,
        len(mail.mail.raw),
        mail.mail.provenance,
        mail.sender,
        mail.subject,
        bool(mail.attachments),
        "\n".join(mail.problems) or None,
        stored_at,
    )

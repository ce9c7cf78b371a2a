"""Stores messages and their labels, within a transaction that holds the account's lock. Idempotent: a
message that is there is recognised, by the rules of `identity`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from psycopg.types.json import Jsonb

from postroom.archive import messages as layout
from postroom.archive.identity import may_be_twins, reconcile
from postroom.archive.messages import Provenance, StoredMessage, StoreOutcome
from postroom.archive.postgres.connections import ArchiveSession
from postroom.archive.postgres.schema import partition_of
from postroom.archive.postgres.words import Indexed
from postroom.archive.preparing import PreparedMail, pack
from postroom.mail.parsing import UNREADABLE


class AccountLabels:
    def __init__(self, session: ArchiveSession, account: int) -> None:
        self._db = session
        self._account = account
        self._numbers: dict[str, int] = {}

    def replace(self, row_id: int, names: Collection[str]) -> None:
        self._db.query(
            "DELETE FROM archive.message_labels WHERE account = %s AND id = %s AND label <> ALL(%s)",
            (self._account, row_id, self.numbers(names)),
        )
        self.give([(row_id, names)])

    def begin(self, given: Iterable[tuple[int, Collection[str]]]) -> None:
        """The first labels of new messages."""
        given = list(given)
        self.numbers({name for _, names in given for name in names})
        rows = ((self._numbers[name], row_id, self._account) for row_id, names in given for name in names)
        self._db.copy("archive.message_labels", "label, id, account", rows)

    def give(self, given: Iterable[tuple[int, Collection[str]]]) -> None:
        """What a message has already is no change."""
        given = list(given)
        self.numbers({name for _, names in given for name in names})
        rows = [(self._numbers[name], row_id, self._account) for row_id, names in given for name in names]
        sql = "INSERT INTO archive.message_labels (label, id, account) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING"
        self._db.many(sql, rows)

    def take(self, row_id: int, names: Collection[str]) -> None:
        sql = "DELETE FROM archive.message_labels WHERE account = %s AND id = %s AND label = ANY(%s)"
        self._db.query(sql, (self._account, row_id, self.numbers(names)))

    def rename(self, old: str, new: str) -> None:
        """Where both names exist, those who had the old one join those who have the new one."""
        known: dict[str, int] = dict(
            self._db.query("SELECT name, label FROM archive.labels WHERE account = %s", (self._account,))
        )
        if old not in known:
            return
        if new not in known:
            self._db.query("UPDATE archive.labels SET name = %s WHERE label = %s", (new, known[old]))
            return
        self._db.query(
            "INSERT INTO archive.message_labels (label, id, account) "
            "SELECT %s, id, account FROM archive.message_labels WHERE label = %s ON CONFLICT DO NOTHING",
            (known[new], known[old]),
        )
        self._db.query("DELETE FROM archive.message_labels WHERE label = %s", (known[old],))
        self._db.query("DELETE FROM archive.labels WHERE label = %s", (known[old],))

    def numbers(self, names: Collection[str]) -> list[int]:
        """The labels' numbers; those that are new get one."""
        if not self._numbers.keys() >= set(names):
            known = "SELECT name, label FROM archive.labels WHERE account = %s"
            self._numbers |= dict(self._db.query(known, (self._account,)))
        for name in sorted(set(names) - self._numbers.keys()):
            made = "INSERT INTO archive.labels (account, name) VALUES (%s, %s) RETURNING label"
            [(self._numbers[name],)] = self._db.query(made, (self._account, name))
        return [self._numbers[name] for name in names]


_FACTS = "message_id, sha256, size, provenance, sender, subject, has_attachment, problems, stored_at"
_CONTENTS = "recipients, attachments, codec, data, cuts, body"
_MESSAGE = f"account, id, key, gmail_id, thread_id, date_ms, {_FACTS}, {_CONTENTS}"
_ENTRY = "account, id, size, has_attachment, tokens, folded"
_REGISTERED = "account, key, id, gmail_id, thread_id, message_hash, sha256, provenance"
_REPLACE = (
    f"UPDATE archive.messages SET ({_FACTS}, {_CONTENTS}) = ({', '.join(['%s'] * 15)}), "
    "deleted_at_source = NULL WHERE account = %s AND id = %s"
)
_REREAD = (
    "UPDATE archive.messages SET (message_id, sender, subject, has_attachment, problems, date_ms, "
    f"{_CONTENTS}) = ({', '.join(['%s'] * 12)}), thread_id = CASE WHEN gmail_id IS NULL THEN %s ELSE thread_id END "
    "WHERE account = %s AND id = %s"
)
_REINDEX = (
    "UPDATE archive.entries SET size = %s, has_attachment = %s, tokens = %s::tsvector, folded = %s "
    "WHERE account = %s AND id = %s"
)


@dataclass(frozen=True, slots=True)
class IndexedMail:
    """A message on its way in, with what the index will hold of it."""

    mail: PreparedMail
    indexed: Indexed

    @property
    def message_hash(self) -> bytes:
        return message_hash(self.mail.message_id)


@dataclass(slots=True)
class _Known:
    id: int
    key: str
    gmail_id: str | None
    sha256: bytes
    provenance: str
    is_unread: bool = False
    """Little more than its bytes is known."""


def message_hash(message_id: str) -> bytes:
    return hashlib.sha256(message_id.encode("utf-8", "replace")).digest()[:16]


def new_ids(session: ArchiveSession, account: int, entries: Sequence[IndexedMail]) -> list[int]:
    """A free row id for each message; those that turn out to be known do not use theirs."""
    taken = _taken(session, account, sorted({layout.first_id(entry.mail.date_ms) for entry in entries}))

    def largest_taken(first: int) -> int | None:
        if first not in taken:
            taken.update(_taken(session, account, [first]))
        return taken[first]

    ids = []
    for entry in entries:
        row_id = layout.free_id(entry.mail.date_ms, largest_taken)
        taken[row_id - row_id % layout.SLOTS] = row_id
        ids.append(row_id)
    return ids


def _taken(session: ArchiveSession, account: int, firsts: Sequence[int]) -> dict[int, int | None]:
    """The largest id taken in each of these milliseconds."""
    rows = session.query(
        "SELECT first, (SELECT max(id) FROM archive.register WHERE account = %s AND id >= first AND id <= first + %s) "
        "FROM unnest(%s::bigint[]) AS first",
        (account, layout.SLOTS - 1, list(firsts)),
    )
    return dict(rows)


class PostgresInsertion:
    """Stores a batch of one account's messages. `ids` are their row ids, should they be new."""

    def __init__(self, session: ArchiveSession, account: int, email: str, labels: AccountLabels) -> None:
        self._db = session
        self._account = account
        self._email = email
        self._labels = labels
        self._new: list[tuple[int, IndexedMail]] = []
        self._by_key: dict[str, _Known] = {}
        self._by_message: dict[tuple[bytes, bytes], list[_Known]] = {}

    def put(self, entries: Sequence[IndexedMail], ids: Sequence[int]) -> list[StoredMessage]:
        self._look_up(entries)
        answers = [self._put(entry, row_id) for entry, row_id in zip(entries, ids, strict=True)]
        self._flush()
        return answers

    def _look_up(self, entries: Sequence[IndexedMail]) -> None:
        """What is registered, and is there: a message that was lost with its partition is stored anew."""
        keys, hashes = [entry.mail.key for entry in entries], [entry.message_hash for entry in entries]
        rows = self._db.query(
            "SELECT r.id, r.key, r.gmail_id, r.sha256, r.provenance, r.message_hash FROM archive.register r "
            "WHERE r.account = %s AND (r.key = ANY(%s) OR r.message_hash = ANY(%s)) ORDER BY r.id",
            (self._account, keys, hashes),
        )
        there = _readable(self._db, self._account, [row[0] for row in rows])
        for *facts, hashed in rows:
            if facts[0] in there:
                self._remember(_known(facts, not there[facts[0]]), hashed)
        lost = [row[0] for row in rows if row[0] not in there and row[1] in keys]
        for table in ("register", "entries", "message_labels", "readings") if lost else ():
            self._db.query(f"DELETE FROM archive.{table} WHERE account = %s AND id = ANY(%s)", (self._account, lost))

    def _remember(self, known: _Known, hashed: bytes) -> None:
        self._by_key[known.key] = known
        self._by_message.setdefault((hashed, known.sha256), []).append(known)

    def _put(self, entry: IndexedMail, row_id: int) -> StoredMessage:
        mail = entry.mail
        known = self._find(entry)
        if known is None:
            self._new.append((row_id, entry))
            facts = _Known(row_id, mail.key, mail.mail.gmail_id, mail.sha256, mail.mail.provenance)
            self._remember(facts, entry.message_hash)
            return self._stored(row_id, mail.key, mail.sha256, StoreOutcome.STORED, mail.trouble)
        self._flush()  # it may be one of this very batch
        found = reconcile(known, mail)
        if found.learns_labels:
            self._learn_labels(known.id, mail)
        if found.corrects_date:
            self._update(known.id, "date_ms = %s", mail.date_ms)
        if found.replaces:
            self._replace(known, entry)
        if found.rereads:
            self._reread(known, entry)
        if found.confirms:
            known.provenance = Provenance.API
            self._update(known.id, "provenance = %s, deleted_at_source = NULL", Provenance.API)
            self._update_register(known.id, "provenance = %s", Provenance.API)
        if found.adopts:
            self._adopt(known, mail)
        return self._stored(known.id, found.key, found.sha256, found.outcome, found.trouble)

    def _find(self, entry: IndexedMail) -> _Known | None:
        mail = entry.mail
        if mail.key in self._by_key:
            return self._by_key[mail.key]
        twins = self._by_message.get((entry.message_hash, mail.sha256), ())
        return next((twin for twin in twins if may_be_twins(twin.gmail_id, mail.mail.gmail_id)), None)

    def _learn_labels(self, row_id: int, mail: PreparedMail) -> None:
        """The API tells all the labels there are; any other source only some that there once were."""
        labels = mail.mail.labels or frozenset()
        if mail.mail.provenance is Provenance.API:
            self._labels.replace(row_id, labels)
        else:
            self._labels.give([(row_id, labels)])

    def _replace(self, known: _Known, entry: IndexedMail) -> None:
        mail = entry.mail
        self._store_pieces([entry])
        self._db.query(_REPLACE, (*_facts(mail), *_contents(mail), self._account, known.id))
        self._reindex(known.id, entry)
        known.sha256, known.provenance = mail.sha256, Provenance.API
        values = (mail.sha256, entry.message_hash, Provenance.API)
        self._update_register(known.id, "sha256 = %s, message_hash = %s, provenance = %s", *values)

    def _reread(self, known: _Known, entry: IndexedMail) -> None:
        """Where it came from and whether it is gone there stays."""
        mail = entry.mail
        self._store_pieces([entry])
        facts = (mail.message_id, mail.sender, mail.subject, bool(mail.attachments), _problems(mail), mail.date_ms)
        self._db.query(_REREAD, (*facts, *_contents(mail), mail.thread_id, self._account, known.id))
        self._reindex(known.id, entry)
        changes = "message_hash = %s, thread_id = CASE WHEN gmail_id IS NULL THEN %s ELSE thread_id END"
        self._update_register(known.id, changes, entry.message_hash, mail.thread_id)
        known.is_unread = False

    def _reindex(self, row_id: int, entry: IndexedMail) -> None:
        """Its attachments are others now, and wait to be read."""
        self._db.query(_REINDEX, (*_indexed(entry), self._account, row_id))
        self._db.query("DELETE FROM archive.readings WHERE account = %s AND id = %s", (self._account, row_id))

    def _adopt(self, known: _Known, mail: PreparedMail) -> None:
        values = (mail.key, mail.mail.gmail_id, mail.thread_id)
        self._update(known.id, "key = %s, gmail_id = %s, thread_id = %s", *values)
        self._update_register(known.id, "key = %s, gmail_id = %s, thread_id = %s", *values)
        known.key, known.gmail_id = mail.key, mail.mail.gmail_id
        self._by_key[mail.key] = known

    def _flush(self) -> None:
        new, self._new = self._new, []
        if not new:
            return
        self._store_pieces([entry for _, entry in new])
        self._db.copy("archive.messages", _MESSAGE, (self._message(row_id, entry.mail) for row_id, entry in new))
        indexed = ((self._account, row_id, *_indexed(entry)) for row_id, entry in new)
        self._db.copy("archive.entries", _ENTRY, indexed)
        self._db.copy("archive.register", _REGISTERED, (self._registered(row_id, entry) for row_id, entry in new))
        self._labels.begin([(row_id, entry.mail.mail.labels or frozenset()) for row_id, entry in new])

    def _message(self, row_id: int, mail: PreparedMail) -> tuple[Any, ...]:
        identity = (self._account, row_id, mail.key, mail.mail.gmail_id, mail.thread_id, mail.date_ms)
        return (*identity, *_facts(mail), *_contents(mail))

    def _registered(self, row_id: int, entry: IndexedMail) -> tuple[Any, ...]:
        mail = entry.mail
        names = (self._account, mail.key, row_id, mail.mail.gmail_id, mail.thread_id)
        return (*names, entry.message_hash, mail.sha256, mail.mail.provenance)

    def _store_pieces(self, entries: Iterable[IndexedMail]) -> None:
        pieces = {piece.sha256: piece for entry in entries for piece in entry.mail.cuts}
        rows = [(self._account, sha256, *pack(piece.content)) for sha256, piece in pieces.items()]
        sql = "INSERT INTO archive.pieces (account, sha256, codec, data) VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING"
        self._db.many(sql, rows)

    def _update(self, row_id: int, change: str, *values: object) -> None:
        sql = f"UPDATE archive.messages SET {change} WHERE account = %s AND id = %s"
        self._db.query(sql, (*values, self._account, row_id))

    def _update_register(self, row_id: int, change: str, *values: object) -> None:
        sql = f"UPDATE archive.register SET {change} WHERE account = %s AND id = %s"
        self._db.query(sql, (*values, self._account, row_id))

    def _stored(
        self, row_id: int, key: str, sha256: bytes, outcome: StoreOutcome, trouble: str | None = None
    ) -> StoredMessage:
        shard = f"{self._email}/{partition_of(self._account, row_id).shown}"
        return StoredMessage(key, shard, row_id, sha256.hex(), outcome, trouble)


def present(session: ArchiveSession, account: int, ids: Sequence[int]) -> set[int]:
    """Which of these rows are there."""
    if not ids:
        return set()
    sql = "SELECT id FROM archive.messages WHERE account = %s AND id = ANY(%s)"
    return {row_id for (row_id,) in session.query(sql, (account, list(ids)))}


def _known(facts: Sequence[Any], is_unread: bool) -> _Known:
    known = _Known(*facts)
    known.is_unread = is_unread
    return known


def _readable(session: ArchiveSession, account: int, ids: Sequence[int]) -> dict[int, bool]:
    """Of these rows, those that are there, and whether they could be read."""
    if not ids:
        return {}
    sql = (
        "SELECT id, coalesce(NOT starts_with(problems, %s), true) FROM archive.messages "
        "WHERE account = %s AND id = ANY(%s)"
    )
    return dict(session.query(sql, (UNREADABLE, account, list(ids))))


def _facts(mail: PreparedMail) -> tuple[Any, ...]:
    return (
        mail.message_id,
        mail.sha256,
        len(mail.mail.raw),
        mail.mail.provenance,
        mail.sender,
        mail.subject,
        bool(mail.attachments),
        _problems(mail),
        datetime.now(UTC),
    )


def _problems(mail: PreparedMail) -> str | None:
    return "\n".join(mail.problems) or None


def _contents(mail: PreparedMail) -> tuple[Any, ...]:
    return (
        Jsonb(mail.recipients),
        Jsonb(mail.attachments),
        *mail.packed,
        Jsonb([(piece.position, piece.sha256.hex()) for piece in mail.cuts]),
        mail.texts.body,
    )


def _indexed(entry: IndexedMail) -> tuple[Any, ...]:
    mail = entry.mail
    return len(mail.mail.raw), bool(mail.attachments), entry.indexed.tokens, entry.indexed.folded

"""Writes to the archive in PostgreSQL. Any number of processes may write at once.

A transaction takes its account's lock, decides what is new, and stores up to 100 messages or 16 MB, of
an import up to 200. The lock ends with the transaction, so a process that dies leaves neither a lock nor half a batch.
"""

from __future__ import annotations

import hashlib
import socket
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from typing import Any, Self, TypeVar

from postroom.archive.coverage import MessageReadings
from postroom.archive.importing.state import COUNTS_ROW, ImportPosition, counts_in, counts_mark
from postroom.archive.messages import IncomingMail, Relabelling, StoredMessage, StoreOutcome, Submission, account_name
from postroom.archive.postgres import schema
from postroom.archive.postgres.attachment_texts import record_readings
from postroom.archive.postgres.connections import ArchiveConnections, ArchiveSession
from postroom.archive.postgres.insertion import AccountLabels, IndexedMail, PostgresInsertion, new_ids
from postroom.archive.postgres.reindexing import reindex_some
from postroom.archive.postgres.words import indexed
from postroom.archive.preparing import PreparedMail, prepare
from postroom.archive.shards.writer import portions
from postroom.domain.errors import PostroomError

_BATCHES_WAITING = 4
_MUCH = 1_000
_THERE = (
    "SELECT r.key, r.id FROM archive.register r JOIN archive.messages m ON m.account = r.account AND m.id = r.id "
    "WHERE r.account = %s AND r.key = ANY(%s)"
)

T = TypeVar("T")
Change = Callable[[ArchiveSession, int, Mapping[str, int]], None]


class PostgresArchiveWriter:
    """Use from one thread at a time. Changes are applied in the order of the calls."""

    def __init__(self, connections: ArchiveConnections) -> None:
        self._connections = connections
        self._thread = ThreadPoolExecutor(1, "archive-database")
        self._room = threading.BoundedSemaphore(_BATCHES_WAITING)
        self._accounts: dict[str, int] = {}
        self._made: set[schema.Partition] = set()
        self._fresh: Counter[int] = Counter()

    def store(self, email: str, mails: Sequence[IncomingMail]) -> list[StoredMessage]:
        return self.submit(email, [prepare(mail) for mail in mails]).result()

    def submit(self, email: str, mails: Sequence[PreparedMail], *, bulk: bool = False) -> Submission:
        account, start = account_name(email), 0
        parts: list[tuple[list[int], Future[list[StoredMessage]]]] = []
        for portion in portions(mails, bulk=bulk):
            numbers = list(range(start, start + len(portion)))
            start += len(portion)
            self._room.acquire()
            future = self._thread.submit(self._store, account, portion)
            future.add_done_callback(lambda done: self._room.release())
            parts.append((numbers, future))
        return Submission(len(mails), parts)

    def known_gmail_ids(self, email: str, gmail_ids: Sequence[str]) -> set[str]:
        return {key for key, _ in self._query(email, _THERE, list(gmail_ids))}

    def some_gmail_ids(self, email: str, count: int) -> list[str]:
        sql = (
            "SELECT gmail_id FROM archive.messages WHERE account = %s AND gmail_id IS NOT NULL "
            "AND deleted_at_source IS NULL ORDER BY id DESC LIMIT %s"
        )
        return [gmail_id for (gmail_id,) in self._query(email, sql, count)]

    def set_labels(self, email: str, labels: Mapping[str, frozenset[str]]) -> set[str]:
        def change(session: ArchiveSession, account: int, ids: Mapping[str, int]) -> None:
            book = AccountLabels(session, account)
            for key, row_id in ids.items():
                book.replace(row_id, labels[key])

        return self._change(email, list(labels), change)

    def change_labels(self, email: str, changes: Sequence[Relabelling]) -> set[str]:
        by_key: dict[str, list[Relabelling]] = defaultdict(list)
        for each in changes:
            by_key[each.gmail_id].append(each)

        def change(session: ArchiveSession, account: int, ids: Mapping[str, int]) -> None:
            book = AccountLabels(session, account)
            for key, row_id in ids.items():
                for each in by_key[key]:
                    book.take(row_id, each.remove - each.add)
                    book.give([(row_id, each.add)])

        return self._change(email, list(by_key), change)

    def rename_label(self, email: str, old: str, new: str) -> None:
        if old != new:
            self._in_turn(email, lambda session, account: AccountLabels(session, account).rename(old, new))

    def label_names(self, email: str) -> set[str]:
        return {name for (name,) in self._query(email, "SELECT name FROM archive.labels WHERE account = %s")}

    def label_members(self, email: str, label: str) -> set[str]:
        sql = (
            "SELECT m.gmail_id FROM archive.labels l JOIN archive.message_labels ml USING (label) "
            "JOIN archive.messages m ON m.account = ml.account AND m.id = ml.id "
            "WHERE l.account = %s AND l.name = %s AND m.gmail_id IS NOT NULL AND m.deleted_at_source IS NULL"
        )
        return {gmail_id for (gmail_id,) in self._query(email, sql, label)}

    def mark_deleted(self, email: str, gmail_ids: Sequence[str], when: datetime) -> set[str]:
        def change(session: ArchiveSession, account: int, ids: Mapping[str, int]) -> None:
            session.query(
                "UPDATE archive.messages SET deleted_at_source = coalesce(deleted_at_source, %s) "
                "WHERE account = %s AND id = ANY(%s)",
                (when, account, list(ids.values())),
            )

        return self._change(email, gmail_ids, change)

    def unmark_deleted(self, email: str, gmail_ids: Sequence[str]) -> set[str]:
        def change(session: ArchiveSession, account: int, ids: Mapping[str, int]) -> None:
            session.query(
                "UPDATE archive.messages SET deleted_at_source = NULL WHERE account = %s AND id = ANY(%s)",
                (account, list(ids.values())),
            )

        return self._change(email, gmail_ids, change)

    def record_readings(self, email: str, messages: Sequence[MessageReadings]) -> None:
        self._in_turn(email, lambda session, account: record_readings(session, account, messages))

    def improve_index(self, email: str) -> bool:
        return self._in_turn(email, reindex_some)

    def merge_index(self, email: str) -> None:
        """PostgreSQL's own upkeep does that."""

    def import_positions(self, source: str) -> PostgresImportPositions:
        return PostgresImportPositions(self._connections, source)

    def checkpoint(self) -> None:
        """Waits for submitted mail; every commit is on disk already."""
        self._thread.submit(self._analyse).result()

    def close(self) -> None:
        try:
            self.checkpoint()
        finally:
            self._thread.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _store(self, email: str, mails: Sequence[PreparedMail]) -> list[StoredMessage]:
        try:
            return self._store_all(email, mails)
        except PostroomError:
            self._made.clear()  # a partition may have been taken away
            raise

    def _store_all(self, email: str, mails: Sequence[PreparedMail]) -> list[StoredMessage]:
        entries = [IndexedMail(mail, indexed(mail.texts)) for mail in mails]
        with self._connections.session() as session:
            account = self._account(session, email)
            for month in {
                schema.partition_of(account, row_id) for row_id in new_ids(session, account, entries)
            } - self._made:
                schema.make_partition(session, month)
                self._made.add(month)
            with session.transaction():
                schema.lock_account(session, account)
                ids = new_ids(session, account, entries)
                stored = PostgresInsertion(session, account, email, AccountLabels(session, account)).put(entries, ids)
            self._fresh[account] += sum(each.outcome is StoreOutcome.STORED for each in stored)
            return stored

    def _analyse(self) -> None:
        """Update the statistics after much new mail, so that searches are planned well at once."""
        for account in [account for account, count in self._fresh.items() if count >= _MUCH]:
            self._connections.query(f"ANALYZE archive.entries_{account}")
            del self._fresh[account]

    def _change(self, email: str, keys: Sequence[str], change: Change) -> set[str]:
        """Apply a change to the messages of these keys; returns the keys that are not there."""

        def run(session: ArchiveSession, account: int) -> set[str]:
            ids: dict[str, int] = dict(session.query(_THERE, (account, list(keys))))
            change(session, account, ids)
            return set(keys) - ids.keys()

        return self._in_turn(email, run)

    def _in_turn(self, email: str, work: Callable[[ArchiveSession, int], T]) -> T:
        """In its own transaction, after all earlier calls."""

        def run() -> T:
            with self._connections.session() as session:
                account = self._account(session, account_name(email))
                with session.transaction():
                    schema.lock_account(session, account)
                    return work(session, account)

        return self._thread.submit(run).result()

    def _account(self, session: ArchiveSession, email: str) -> int:
        if email not in self._accounts:
            self._accounts[email] = schema.account_number(session, email)
        return self._accounts[email]

    def _query(self, email: str, sql: str, *values: object) -> list[tuple[Any, ...]]:
        with self._connections.session() as session:
            account = schema.find_account(session, account_name(email))
            return [] if account is None else session.query(sql, (account, *values))


class PostgresImportPositions:
    """How far an unfinished import is. Its key includes the host, since sources are files of a host."""

    def __init__(self, connections: ArchiveConnections, source: str) -> None:
        self._connections = connections
        self._source = _hash(f"{socket.gethostname()} {source}")
        exists = "SELECT EXISTS (SELECT 1 FROM archive.imports WHERE source = %s)"
        self._is_resumed = connections.query(exists, (self._source,)) == [(True,)]

    def position(self, file: str, identity: str) -> int:
        if not self._is_resumed:
            return 0
        sql = "SELECT position FROM archive.imports WHERE source = %s AND file = %s AND identity = %s"
        rows = self._connections.query(sql, (self._source, _hash(file), identity))
        return int(rows[0][0]) if rows else 0

    def counts(self) -> dict[str, float]:
        sql = "SELECT identity FROM archive.imports WHERE source = %s AND file = %s"
        rows = self._connections.query(sql, (self._source, _hash(COUNTS_ROW))) if self._is_resumed else []
        return counts_in(rows[0][0]) if rows else {}

    def remember(self, marks: Mapping[str, ImportPosition], counts: Mapping[str, float]) -> None:
        sql = (
            "INSERT INTO archive.imports VALUES (%s, %s, %s, %s) ON CONFLICT (source, file) "
            "DO UPDATE SET identity = excluded.identity, position = excluded.position"
        )
        with self._connections.session() as session, session.transaction():
            rows = {**marks, COUNTS_ROW: counts_mark(counts)}
            session.many(sql, [(self._source, _hash(file), *mark) for file, mark in rows.items()])

    def forget(self) -> None:
        self._connections.query("DELETE FROM archive.imports WHERE source = %s", (self._source,))

    def close(self) -> None:
        """It holds nothing open."""


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()

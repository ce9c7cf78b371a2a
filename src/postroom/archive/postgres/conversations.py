"""The index of conversations of the archive in PostgreSQL: tables beside the mail, made from it.

Any process may add to it; one at a time does, under an advisory lock that ends with its transaction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

from postroom.archive.conversations.facts import ConversationFacts, StoredHead, facts_of, head_of
from postroom.archive.conversations.forest import TABLES, ConversationCounts, ConversationForest
from postroom.archive.postgres.connections import ArchiveConnections, ArchiveSession

PREFIX = "archive.conversation_"
LOCK = 0x506F7343  # "PosC"
_EXISTS = f"SELECT to_regclass('{PREFIX}places') IS NOT NULL"
_WAITING = f"""
    SELECT r.id FROM archive.register r LEFT JOIN {PREFIX}members c ON c.place = %s AND c.id = r.id
    WHERE r.account = %s AND r.id < %s AND (c.id IS NULL OR c.thread <> r.thread_id OR c.sha256 <> r.sha256)
    ORDER BY r.id DESC LIMIT %s
"""
_HEADS = """
    SELECT m.id, m.thread_id, m.date_ms, m.sha256, m.codec, m.data, ARRAY(
        SELECT l.name FROM archive.message_labels ml JOIN archive.labels l USING (label)
        WHERE ml.account = m.account AND ml.id = m.id)
    FROM archive.messages m WHERE m.account = %s AND m.id = ANY(%s) ORDER BY m.id DESC
"""
_LAST = (1 << 63) - 1


class _ForestSession:
    """`ForestTables` over a session."""

    prefix = PREFIX
    mark = "%s"

    def __init__(self, session: ArchiveSession) -> None:
        self._session = session

    def query(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return self._session.query(sql, values)

    def many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        self._session.many(sql, rows)


class PostgresConversationIndex:
    def __init__(self, connections: ArchiveConnections) -> None:
        self._connections = connections
        with connections.session() as session, session.transaction():
            session.query("SELECT pg_advisory_xact_lock(%s, 0)", (LOCK,))
            if not has_index(session):
                session.query(TABLES.format(t=PREFIX, i="conversation_", bytes="BYTEA"))

    def waiting(self, limit: int) -> Iterator[list[ConversationFacts]]:
        """Messages that are not indexed as they are now, so many at a time, the newest of each account first."""
        for account, email in self._connections.query("SELECT account, email FROM archive.accounts ORDER BY email"):
            last = _LAST
            while ids := [row[0] for row in self._connections.query(_WAITING, (email, account, last, limit))]:
                heads = self._connections.query(_HEADS, (account, ids))
                yield [facts_of(_stored(email, row)) for row in heads]
                last = ids[-1]

    def add(self, messages: Sequence[ConversationFacts]) -> int:
        with self._connections.session() as session, session.transaction():
            session.query("SELECT pg_advisory_xact_lock(%s, 0)", (LOCK,))
            return ConversationForest(_ForestSession(session)).add(messages)

    def counts(self) -> ConversationCounts:
        with self._connections.session() as session:
            return ConversationForest(_ForestSession(session)).counts()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """The connections belong to the archive and stay open."""


@contextmanager
def opened_forest(connections: ArchiveConnections) -> Iterator[ConversationForest | None]:
    """For reading; None while there is no index."""
    with connections.session() as session:
        yield ConversationForest(_ForestSession(session)) if has_index(session) else None


def has_index(session: ArchiveSession) -> bool:
    return session.query(_EXISTS) == [(True,)]


def _stored(email: str, row: Sequence[Any]) -> StoredHead:
    row_id, thread, date_ms, sha256, codec, data, labels = row
    return StoredHead(email, row_id, email, thread, date_ms, bytes(sha256), head_of(codec, data), labels)

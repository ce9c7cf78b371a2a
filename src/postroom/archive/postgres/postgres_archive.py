"""The archive in PostgreSQL, opened, with its removal certificates and the counts of what each month holds. The
tables refuse any change to a certificate.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

import psycopg
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from postroom.archive.backend import MailWriter, StillAlone
from postroom.archive.certificates import (
    LEDGER_COLUMNS,
    ArchiveProof,
    Certificate,
    Removal,
    RemovalResult,
    certificate_of,
)
from postroom.archive.messages import SLOT_BITS, ArchivedMessage, account_name
from postroom.archive.postgres import schema
from postroom.archive.postgres.connections import ArchiveConnections, ArchiveSession, Rows
from postroom.archive.postgres.conversations import PostgresConversationIndex
from postroom.archive.postgres.reader import PostgresArchiveReader
from postroom.archive.postgres.searching import PostgresQuestions
from postroom.archive.postgres.verification import PostgresVerification
from postroom.archive.postgres.writer import PostgresArchiveWriter
from postroom.archive.search import Search
from postroom.archive.statistics import (
    RESPONSE_WITHIN_MS,
    RESPONSES,
    SIZE_NUMBER,
    Groups,
    ShardStatistics,
    StatisticsBy,
    Turn,
    all_groups,
)
from postroom.archive.status import OwnedElsewhere, Progress, Repair, ShardInfo, SyncMark, VerifyReport
from postroom.domain.clock import Clock
from postroom.domain.errors import BadInput, Retryable
from postroom.domain.ids import new_id

_TALLY = "count(*), coalesce(sum(m.size), 0), count(*) FILTER (WHERE m.has_attachment)"
_DATE = "timezone('UTC', to_timestamp(m.date_ms / 1000.0))"
_STATEMENTS = {
    StatisticsBy.SENDER: f"SELECT r.value ->> 1, {_TALLY} FROM archive.{{table}} m "
    "LEFT JOIN jsonb_array_elements(m.recipients) r ON r.value ->> 0 = 'from' GROUP BY 1",
    StatisticsBy.MONTH: f"SELECT to_char({_DATE}, 'YYYY-MM'), {_TALLY} FROM archive.{{table}} m GROUP BY 1",
    StatisticsBy.HOUR: f"SELECT to_char({_DATE}, 'HH24'), {_TALLY} FROM archive.{{table}} m GROUP BY 1",
    StatisticsBy.SIZE: f"SELECT {SIZE_NUMBER.format(size='m.size')}, {_TALLY} FROM archive.{{table}} m GROUP BY 1",
    StatisticsBy.LABEL: f"SELECT l.name, {_TALLY} FROM archive.{{table}} m JOIN archive.message_labels ml "
    "ON ml.account = m.account AND ml.id = m.id JOIN archive.labels l USING (label) GROUP BY 1",
    StatisticsBy.TYPE: "SELECT a.value ->> 0, count(DISTINCT m.id), coalesce(sum((a.value ->> 2)::bigint), 0), "
    "count(*) FROM archive.{table} m, jsonb_array_elements(m.attachments) a GROUP BY 1",
}
_TURNS = """
    SELECT m.thread_id, m.date_ms, r.value ->> 1, s.id IS NOT NULL, m.id >= %s
    FROM archive.messages m CROSS JOIN jsonb_array_elements(m.recipients) r
    LEFT JOIN archive.message_labels s ON s.account = m.account AND s.id = m.id
        AND s.label = (SELECT label FROM archive.labels WHERE account = %s AND name = 'SENT')
    WHERE r.value ->> 0 = 'from' AND m.account = %s AND m.id >= %s AND m.id < %s"""
_STAMPS = """
    SELECT p.account, p.low, count(t.id), coalesce(sum(t.id % 1000003 * t.label), 0)
    FROM archive.partitions p LEFT JOIN (
        SELECT account, id, 1 AS label FROM archive.register
        UNION ALL SELECT account, id, 1 + label FROM archive.message_labels
    ) t ON t.account = p.account AND t.id >= p.low AND t.id < p.high
    GROUP BY p.account, p.low"""


def count_partitions(connections: ArchiveConnections, known: Mapping[str, str]) -> Iterator[ShardStatistics]:
    with connections.session() as session:
        emails: dict[int, str] = dict(session.query("SELECT account, email FROM archive.accounts"))
        stamps = {(account, low): f"{number}-{total}" for account, low, number, total in session.query(_STAMPS)}
        for partition in schema.partitions(session, list(emails)):
            email, stamp = emails[partition.account], stamps.get((partition.account, partition.low), "")
            shard = f"{email}/{partition.shown}"
            groups = None if known.get(shard) == stamp else _groups(session, partition, email)
            yield ShardStatistics(email, shard, stamp, groups)


def _groups(session: ArchiveSession, partition: schema.Partition, email: str) -> Groups:
    if session.query("SELECT to_regclass(%s)", (f"archive.{partition.table}",)) == [(None,)]:
        return {kind: {} for kind in (*StatisticsBy, RESPONSES)}  # `verify` reports that it is missing
    statements = {kind: sql.replace("{table}", partition.table) for kind, sql in _STATEMENTS.items()}
    account, low, since = partition.account, partition.low, partition.low - (RESPONSE_WITHIN_MS << SLOT_BITS)
    turns = session.query(_TURNS, (low, account, account, since, partition.high))
    return all_groups(session.query, statements, (Turn(*row) for row in turns), email)


_OUTCOME = "INSERT INTO archive.outcomes (certificate, result, detail, recorded_at) VALUES (%s, %s, %s, %s)"


class PostgresCertificates:
    """An account's certificates, to be added to."""

    def __init__(self, connections: ArchiveConnections, email: str) -> None:
        self._connections = connections
        with connections.session() as session:
            self._account = schema.account_number(session, account_name(email))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """It holds nothing open."""

    def certify(
        self, batch: str, removal: Removal, proofs: Sequence[ArchiveProof], watermark: int, now: datetime
    ) -> list[Certificate]:
        with self._connections.session() as session, session.transaction():
            schema.lock_account(session, self._account)
            numbers = [self._certificate(session, batch, removal, proof, watermark, now) for proof in proofs]
            session.many(_OUTCOME, [(number, RemovalResult.INTENDED, f"batch {batch}", now) for number in numbers])
        sql = f"SELECT {LEDGER_COLUMNS} FROM archive.ledger WHERE certificate = ANY(%s) ORDER BY certificate"
        return _read(self._connections.query(sql, (numbers,)))

    def settle(self, certificates: Iterable[Certificate], result: RemovalResult, detail: str, now: datetime) -> None:
        with self._connections.session() as session, session.transaction():
            session.many(_OUTCOME, [(certificate.number, result, detail, now) for certificate in certificates])

    def open(self) -> list[Certificate]:
        intended = "account = %s AND result = 'intended' ORDER BY certificate"
        sql = f"SELECT {LEDGER_COLUMNS} FROM archive.ledger WHERE {intended}"
        return _read(self._connections.query(sql, (self._account,)))

    def _certificate(
        self, session: ArchiveSession, batch: str, removal: Removal, proof: ArchiveProof, watermark: int, now: datetime
    ) -> int:
        """Equal bytes certified before keep their one certificate."""
        identity = (self._account, proof.gmail_id, removal.action, removal.label, proof.sha256)
        found = session.query(
            "SELECT certificate FROM archive.certificates WHERE account = %s AND gmail_id = %s AND action = %s "
            "AND label = %s AND sha256 = %s",
            identity,
        )
        if found:
            return int(found[0][0])
        rest = (batch, proof.key, proof.size, proof.shard, proof.row_id, proof.provenance, watermark, now)
        made = session.query(
            "INSERT INTO archive.certificates (account, gmail_id, action, label, sha256, batch, key, size, shard, "
            f"row_id, provenance, watermark, certified_at) VALUES ({', '.join(['%s'] * 13)}) RETURNING certificate",
            (*identity, *rest),
        )
        return int(made[0][0])


class PostgresCertificateLedger:
    def __init__(self, connections: ArchiveConnections, email: str) -> None:
        self._connections = connections
        self._email = account_name(email)

    def certified(self, gmail_ids: Sequence[str]) -> set[str]:
        rows = self._rows("DISTINCT gmail_id", "gmail_id = ANY(%s)", list(gmail_ids))
        return {gmail_id for (gmail_id,) in rows}

    def removed_among(self, removal: Removal, gmail_ids: Sequence[str]) -> set[str]:
        condition = "gmail_id = ANY(%s) AND action = %s AND label = %s AND result IN ('removed', 'gone')"
        rows = self._rows("gmail_id", condition, list(gmail_ids), removal.action, removal.label)
        return {gmail_id for (gmail_id,) in rows}

    def intended_among(self, removal: Removal, gmail_ids: Sequence[str]) -> set[int]:
        condition = "gmail_id = ANY(%s) AND action = %s AND label = %s AND result = 'intended'"
        rows = self._rows("certificate", condition, list(gmail_ids), removal.action, removal.label)
        return {number for (number,) in rows}

    def certificates(
        self,
        *,
        result: RemovalResult | None = None,
        gmail_id: str | None = None,
        before: int | None = None,
        limit: int = 50,
    ) -> list[Certificate]:
        wanted = {"result = %s": result, "gmail_id = %s": gmail_id, "certificate < %s": before}
        conditions = [condition for condition, value in wanted.items() if value is not None]
        values = [value for value in wanted.values() if value is not None]
        where = " AND ".join(conditions) or "TRUE"
        return _read(self._rows(LEDGER_COLUMNS, f"{where} ORDER BY certificate DESC LIMIT %s", *values, limit))

    def counts(self) -> dict[RemovalResult, int]:
        rows = self._rows("result, count(*)", "TRUE GROUP BY result")
        return {RemovalResult(result): count for result, count in rows}

    def _rows(self, columns: str, condition: str, *values: object) -> Rows:
        with self._connections.session() as session:
            account = schema.find_account(session, self._email)
            if account is None:
                return []
            sql = f"SELECT {columns} FROM archive.ledger WHERE account = %s AND {condition}"
            return session.query(sql, (account, *values))


def _read(rows: Rows) -> list[Certificate]:
    return [certificate_of(row, lambda moment: moment.astimezone(UTC)) for row in rows]


PATIENCE_S = 30
"""A search that takes longer is given up."""


class PostgresArchive:
    """Needs no owner: every process with the address may read and write, from any host."""

    def __init__(self, address: str, vectors: Path | None = None) -> None:
        """`vectors` is the folder of this host below which the accounts' vectors are."""
        try:
            url = make_url(address)
        except ArgumentError:
            raise BadInput("database.url", "is not a database address such as postgresql://user@host/name") from None
        self.name = f"database {url.database} on {url.host or 'this host'}"
        self.ledger_name = "the table archive.certificates"
        self.sync_holder = f"postroom sync on {socket.gethostname()} (process {os.getpid()}, {new_id()[-6:]})"
        """Unlike the owner of files, several may be here: each has a name of its own, and waits for another's lease."""
        self._vectors = vectors
        self._connections = ArchiveConnections(url)
        self._searching = ArchiveConnections(
            url, statement_timeout=f"{PATIENCE_S}s", max_parallel_workers_per_gather="0"
        )
        try:
            schema.prepare_tables(self._connections)
        except BaseException:
            self._connections.close()
            raise

    @property
    def vectors(self) -> Path | None:
        return self._vectors

    def reader(self) -> PostgresArchiveReader:
        return PostgresArchiveReader(self._connections)

    def search(self, clock: Clock | None = None) -> Search:
        return Search(PostgresQuestions(self._searching), clock, PATIENCE_S, self._vectors)

    def conversations(self) -> PostgresConversationIndex:
        return PostgresConversationIndex(self._connections)

    def writer(self, purpose: str) -> PostgresArchiveWriter:
        return PostgresArchiveWriter(self._connections)

    def portions(self, email: str, below: int | None = None) -> Iterator[list[ArchivedMessage]]:
        return self.reader().portions(email, below)

    def certificates(self, email: str) -> PostgresCertificates:
        return PostgresCertificates(self._connections, email)

    def ledger(self, email: str) -> PostgresCertificateLedger:
        return PostgresCertificateLedger(self._connections, email)

    @contextmanager
    def one_archiver(self, email: str) -> Iterator[StillAlone]:
        """A lock of the connection: the server releases it when its holder is gone, however it ended. So it is
        gone, too, when the connection breaks while its holder is well."""
        with self._connections.session() as session:
            account = schema.account_number(session, account_name(email))
            if session.query("SELECT pg_try_advisory_lock(%s, %s)", (schema.ARCHIVER_LOCK, account)) != [(True,)]:
                raise OwnedElsewhere(f"Another `postroom archive run` is at work on {email}. Wait until it ends.")

            def still_alone() -> None:
                try:
                    session.query("SELECT 1")
                except psycopg.Error as error:
                    raise Retryable(
                        "Stopped: the connection that kept other archivers away from this account broke. "
                        "Nothing is lost; run it again."
                    ) from error

            try:
                yield still_alone
            finally:
                with suppress(psycopg.Error):  # a connection that is gone holds no lock
                    session.query("SELECT pg_advisory_unlock(%s, %s)", (schema.ARCHIVER_LOCK, account))

    def read_mark(self, email: str) -> SyncMark | None:
        sql = "SELECT account_id, walk FROM archive.sync_marks JOIN archive.accounts USING (account) WHERE email = %s"
        rows = self._connections.query(sql, (account_name(email),))
        return SyncMark(*rows[0]) if rows else None

    def write_mark(self, email: str, mark: SyncMark) -> None:
        with self._connections.session() as session:
            account = schema.account_number(session, account_name(email))
            session.query(
                "INSERT INTO archive.sync_marks VALUES (%s, %s, %s) ON CONFLICT (account) "
                "DO UPDATE SET account_id = excluded.account_id, walk = excluded.walk",
                (account, mark.account_id, mark.walk),
            )

    def settle_lost(self, email: str) -> None:
        with self._connections.session() as session:
            account = schema.account_number(session, account_name(email))
            session.query("UPDATE archive.partitions SET lost = 0 WHERE account = %s AND lost > 0", (account,))

    def verify(self, email: str | None = None, progress: Progress = lambda done: None) -> VerifyReport:
        return PostgresVerification(self._connections).verify(email, progress)

    def repair(self, report: VerifyReport, owner: MailWriter | None = None) -> Repair:
        return PostgresVerification(self._connections).repair(report)

    def shards(self, email: str) -> list[ShardInfo]:
        return PostgresVerification(self._connections).shards(email)

    def statistics(self, known: Mapping[str, str]) -> Iterator[ShardStatistics]:
        return count_partitions(self._connections, known)

    def free_bytes(self) -> None:
        """The disk is the database server's."""
        return None

    def close(self) -> None:
        self._searching.close()
        self._connections.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

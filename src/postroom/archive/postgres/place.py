"""The archive in PostgreSQL, opened."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Self

import psycopg
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from postroom.archive.layout import account_name
from postroom.archive.model import ArchivedMessage
from postroom.archive.ownership import OwnedElsewhere
from postroom.archive.place import StillAlone
from postroom.archive.postgres.certificates import DatabaseBook, DatabaseLedger
from postroom.archive.postgres.connections import Connections
from postroom.archive.postgres.reading import DatabaseReader
from postroom.archive.postgres.schema import ARCHIVER_LOCK, account_number, prepare_tables
from postroom.archive.postgres.searching import DatabaseQuestions
from postroom.archive.postgres.verifying import Verification
from postroom.archive.postgres.writing import DatabaseArchive
from postroom.archive.salvage import Repair
from postroom.archive.search import Search
from postroom.archive.stock import Shard
from postroom.archive.sync_mark import SyncMark
from postroom.archive.verify import Progress, Report
from postroom.domain.clock import Clock
from postroom.domain.errors import BadInput, Retryable
from postroom.domain.ids import new_id

PATIENCE_S = 30
"""A search that takes longer is given up."""


class DatabasePlace:
    """Needs no owner: everybody who has the address may read and write, from any host."""

    def __init__(self, address: str) -> None:
        try:
            url = make_url(address)
        except ArgumentError:
            raise BadInput("database.url", "is not a database address such as postgresql://user@host/name") from None
        self.name = f"database {url.database} on {url.host or 'this host'}"
        self.ledger_name = "the table archive.certificates"
        self.sync_holder = f"postroom sync on {socket.gethostname()} (process {os.getpid()}, {new_id()[-6:]})"
        """Unlike the owner of files, several may be here: each has a name of its own, and waits for another's lease."""
        self._connections = Connections(url)
        self._searching = Connections(url, f"-c statement_timeout={PATIENCE_S}s -c max_parallel_workers_per_gather=0")
        try:
            prepare_tables(self._connections)
        except BaseException:
            self._connections.close()
            raise

    def reader(self) -> DatabaseReader:
        return DatabaseReader(self._connections)

    def search(self, clock: Clock | None = None) -> Search:
        return Search(DatabaseQuestions(self._searching), clock, PATIENCE_S)

    def writer(self, purpose: str) -> DatabaseArchive:
        return DatabaseArchive(self._connections)

    def portions(self, email: str, below: int | None = None) -> Iterator[list[ArchivedMessage]]:
        return self.reader().portions(email, below)

    def certificates(self, email: str) -> DatabaseBook:
        return DatabaseBook(self._connections, email)

    def ledger(self, email: str) -> DatabaseLedger:
        return DatabaseLedger(self._connections, email)

    @contextmanager
    def one_archiver(self, email: str) -> Iterator[StillAlone]:
        """A lock of the connection: the server gives it back when whoever holds it is gone, however it went. So it is
        gone, too, when the connection breaks while its holder is well."""
        with self._connections.session() as session:
            account = account_number(session, account_name(email))
            if session.query("SELECT pg_try_advisory_lock(%s, %s)", (ARCHIVER_LOCK, account)) != [(True,)]:
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
                    session.query("SELECT pg_advisory_unlock(%s, %s)", (ARCHIVER_LOCK, account))

    def read_mark(self, email: str) -> SyncMark | None:
        sql = "SELECT account_id, walk FROM archive.sync_marks JOIN archive.accounts USING (account) WHERE email = %s"
        rows = self._connections.query(sql, (account_name(email),))
        return SyncMark(*rows[0]) if rows else None

    def write_mark(self, email: str, mark: SyncMark) -> None:
        with self._connections.session() as session:
            account = account_number(session, account_name(email))
            session.query(
                "INSERT INTO archive.sync_marks VALUES (%s, %s, %s) ON CONFLICT (account) "
                "DO UPDATE SET account_id = excluded.account_id, walk = excluded.walk",
                (account, mark.account_id, mark.walk),
            )

    def verify(self, email: str | None = None, progress: Progress = lambda done: None) -> Report:
        return Verification(self._connections).verify(email, progress)

    def repair(self, report: Report) -> Repair:
        return Verification(self._connections).repair(report)

    def shards(self, email: str) -> list[Shard]:
        return Verification(self._connections).shards(email)

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

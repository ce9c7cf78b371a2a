"""Connections to the database that holds the archive, lent to one thread at a time; its errors become ours here."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import errors
from sqlalchemy.engine import URL

from postroom.db.postgres import settings_of_a_session
from postroom.domain.errors import BadInput, Fatal, PostroomError, Retryable
from postroom.telemetry.logs import clean

_MOST_IDLE = 8
_TRUSTED_FOR_S = 5.0
_LATER = (
    errors.LockNotAvailable,
    errors.DeadlockDetected,
    errors.SerializationFailure,
    errors.DiskFull,
    errors.ReadOnlySqlTransaction,
    errors.IdleInTransactionSessionTimeout,
)
# A writer that freezes, or whose host is gone, must not keep an account's lock for ever; and a commit is on disk when
# it returns, whatever the server's own default is.
# A transaction that waited for a lock must see what was committed meanwhile, so the isolation level is set too.
_SETTINGS = {
    "synchronous_commit": "on",
    "default_transaction_isolation": "read committed",
    "lock_timeout": "60s",
    "jit": "off",
    "idle_in_transaction_session_timeout": "30s",
    "idle_session_timeout": "0",
    "statement_timeout": "0",
}
_CONNECT: dict[str, Any] = {
    "application_name": "postroom archive",
    "client_encoding": "UTF8",
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}

Rows = list[tuple[Any, ...]]


class ArchiveSession:
    """One connection, in the hands of one thread. Outside of `transaction` every statement is one of its own."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self.connection = connection
        self.idle_since = time.monotonic()

    def query(self, sql: str, values: Sequence[Any] = ()) -> Rows:
        cursor = self.connection.execute(sql.encode(), values or None)
        return cursor.fetchall() if cursor.description is not None else []

    def together(self, *questions: tuple[str, Sequence[Any]]) -> list[Rows]:
        """Several questions in one trip to the server."""
        with self.connection.pipeline():
            cursors = [self.connection.execute(sql.encode(), values) for sql, values in questions]
        return [cursor.fetchall() for cursor in cursors]

    def many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        if rows:
            with self.connection.cursor() as cursor:
                cursor.executemany(sql.encode(), rows)

    def copy(self, table: str, columns: str, rows: Iterable[Sequence[Any]]) -> None:
        """Many rows at once, into a table that has none of them."""
        with self.connection.cursor() as cursor, cursor.copy(f"COPY {table} ({columns}) FROM STDIN".encode()) as copy:
            for row in rows:
                copy.write_row(row)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self.connection.transaction():
            yield

    def is_alive(self) -> bool:
        """Asked of one that has been idle for a while: the server may have been restarted meanwhile."""
        if time.monotonic() - self.idle_since < _TRUSTED_FOR_S:
            return not self.connection.closed
        try:
            self.query("SELECT 1")
        except psycopg.Error:
            return False
        return True


class ArchiveConnections:
    def __init__(self, url: URL, **settings: str) -> None:
        self._settings = settings_of_a_session(_SETTINGS | settings)
        self._url = url.set(drivername="postgresql").render_as_string(hide_password=False)
        self._idle: list[ArchiveSession] = []
        self._lock = threading.Lock()
        self._is_closed = False

    @contextmanager
    def session(self) -> Iterator[ArchiveSession]:
        session: ArchiveSession | None = None
        try:
            session = self._take()
            yield session
        except psycopg.Error as error:
            if session is not None and session.connection.closed:
                self._drop_idle()  # where one was cut off, the others most likely were too
            _drop(session)
            raise archive_error(error) from error
        except BaseException:
            _drop(session)
            raise
        self._give_back(session)

    def query(self, sql: str, values: Sequence[Any] = ()) -> Rows:
        with self.session() as session:
            return session.query(sql, values)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
        self._drop_idle()

    def _drop_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for session in idle:
            _drop(session)

    def _take(self) -> ArchiveSession:
        while (session := self._idle_one()) is not None:
            if session.is_alive():
                return session
            _drop(session)
        connection = psycopg.connect(self._url, autocommit=True, prepare_threshold=None, **_CONNECT)
        connection.execute(self._settings)
        return ArchiveSession(connection)

    def _idle_one(self) -> ArchiveSession | None:
        with self._lock:
            if self._is_closed:
                raise Retryable("The archive is being closed.")
            return self._idle.pop() if self._idle else None

    def _give_back(self, session: ArchiveSession) -> None:
        session.idle_since = time.monotonic()
        with self._lock:
            if not self._is_closed and not session.connection.closed and len(self._idle) < _MOST_IDLE:
                self._idle.append(session)
                return
        session.connection.close()


def _drop(session: ArchiveSession | None) -> None:
    if session is not None:
        session.connection.close()


def sayable(names: Iterable[str]) -> list[str]:
    """Those that the database can hold; nothing in it has any of the others."""
    return [name for name in names if name == name.replace("\0", "").encode("utf-8", "ignore").decode()]


def archive_error(error: psycopg.Error) -> PostroomError:
    """The one place where the database's complaints about the archive become ours, without rows, which hold mail."""
    said = clean(
        error.diag.message_primary or str(error).strip().splitlines()[0] if str(error).strip() else "no reason"
    )
    if isinstance(error, errors.QueryCanceled):
        return BadInput("query", "this takes too long; narrow it, with dates for example")
    if isinstance(error, errors.DiskFull):
        return Retryable(f"The disk of the database that holds the archive is full ({said}). Nothing is half stored.")
    if isinstance(error, errors.InsufficientPrivilege):
        return Fatal(
            f"The database refuses the archive ({said}). Its user needs the right to make the schema `archive`."
        )
    if isinstance(error, (*_LATER, psycopg.OperationalError, psycopg.InterfaceError)):
        return Retryable(f"The database that holds the archive cannot be used now: {said}")
    return Fatal(f"The archive in the database cannot be used: {said}. Run `postroom verify`.")

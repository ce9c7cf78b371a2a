"""Where transactions run, whichever database is behind it; the drivers' errors become ours here.

`Wake` tells waiting workers, here and in other processes, that something was committed. A wake-up is a hint and may be
lost, so every waiter also looks by itself now and then; it carries one of a few topics and no data.

A few hot statements are hand-written SQL: written once with `:name` parameters and handed to the driver as they are.
Their times go through `bind_time` and `read_time`; ids are texts on both databases.
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple

from sqlalchemy import Connection, CursorResult, Executable, Select, Table
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, TimeoutError

from postroom.db.types import utc_text
from postroom.domain.backoff import Backoff
from postroom.domain.errors import Fatal, PostroomError, Retryable
from postroom.telemetry import logs
from postroom.telemetry.logs import clean

if TYPE_CHECKING:
    from sqlalchemy.dialects import postgresql, sqlite


class Topic(StrEnum):
    """What happened. The value is one character, because it travels through a pipe."""

    WORK = "w"
    CANCEL = "c"


class Wakeups:
    """One listener's mailbox: the topics that came since it last looked."""

    def __init__(self) -> None:
        self._topics: set[Topic] = set()
        self._arrived = asyncio.Event()

    def put(self, topic: str) -> None:
        """A topic that is not known comes from a newer Postroom and means nothing here."""
        if topic in set(Topic):
            self._topics.add(Topic(topic))
            self._arrived.set()

    async def wait(self) -> None:
        await self._arrived.wait()

    def take(self) -> set[Topic]:
        topics, self._topics = self._topics, set()
        self._arrived.clear()
        return topics


class Wake(ABC):
    @abstractmethod
    async def send(self, topic: Topic) -> None:
        """Wake every listener. Call it after the commit, never inside the transaction."""

    @abstractmethod
    def listen(self) -> AbstractAsyncContextManager[Wakeups]:
        """Receive wake-ups for as long as the block lasts."""

    @abstractmethod
    async def close(self) -> None: ...


# PostgreSQL: serialization_failure, deadlock_detected
_RUN_AGAIN = {"40001", "40P01"}
# PostgreSQL: lock_not_available, idle_in_transaction_session_timeout, read_only_sql_transaction (after a failover)
_LATER = {"55P03", "25P03", "25006"}


def can_run_again(error: DBAPIError) -> bool:
    """The server rolled the transaction back because of a conflict with another one; it can be run again."""
    return getattr(error.orig, "sqlstate", None) in _RUN_AGAIN


def translate_error(error: DBAPIError) -> PostroomError | None:
    """What to raise instead; None if the error is a bug of ours and should surface unchanged."""
    cause = clean(str(error.orig).strip())
    if isinstance(error.orig, sqlite3.Error):
        return _of_sqlite(error.orig, cause)
    if error.connection_invalidated or can_run_again(error):
        return Retryable(f"The database went away: {cause}")
    if isinstance(error, OperationalError | InterfaceError) or getattr(error.orig, "sqlstate", None) in _LATER:
        return Retryable(f"The database cannot be used now: {cause}")
    return None


def _of_sqlite(error: sqlite3.Error, cause: str) -> PostroomError | None:
    match getattr(error, "sqlite_errorcode", 0) & 0xFF:  # the primary code, without its details
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return Retryable("The database is busy: another process holds its write lock.")
        case sqlite3.SQLITE_FULL:
            return Retryable("The disk that holds the database is full. Free some space; work goes on by itself.")
        case sqlite3.SQLITE_IOERR:
            return Retryable(f"The disk that holds the database does not answer as it should: {cause}")
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM:
            return Fatal(f"The database cannot be opened for writing ({cause}): check who owns its file and folder.")
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return Fatal(f"The database file is damaged ({cause}). Restore it from a backup.")
        case _:
            return None


log = logs.get(__name__)

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
AfterCommit = Callable[[], Awaitable[None]]
Rows = Mapping[str, Any] | Sequence[Mapping[str, Any]]

_RUNS_OF_A_TRANSACTION = 5
_RIVAL_BACKOFF = Backoff(0.05, 0.05, jitter=(0.0, 1.0))


class Dialect(StrEnum):
    SQLITE = "sqlite"
    POSTGRESQL = "postgresql"


class Tx:
    """One transaction: statements to run now, and what to do once it is committed."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.dialect = Dialect(connection.dialect.name)
        self.on_commit: dict[str, AfterCommit] = {}

    def execute(self, statement: Executable, parameters: Rows | None = None) -> CursorResult[*tuple[Any, ...]]:
        return self.connection.execute(statement, parameters)

    def rows(self, sql: str, parameters: Mapping[str, Any] | None = None) -> Sequence[Sequence[Any]]:
        """Run a hand-written statement as it is, and fetch what it returns, if anything."""
        result = self.connection.exec_driver_sql(sql, dict(parameters or {}))
        return result.all() if result.returns_rows else ()

    def locking(self, query: Select[*Ts], *, skip_locked: bool = False) -> Select[*Ts]:
        """The query with its rows locked until the transaction ends (on SQLite a writer locks the whole database)."""
        return query.with_for_update(skip_locked=skip_locked) if self.dialect is Dialect.POSTGRESQL else query

    def lock_table(self, table: Table) -> None:
        """Lock the table against other writers until the transaction ends (on SQLite a writer locks the whole
        database)."""
        if self.dialect is Dialect.POSTGRESQL:
            self.connection.exec_driver_sql(f"LOCK TABLE {table.name} IN SHARE ROW EXCLUSIVE MODE")

    def insert_missing(self, table: Table, *rows: Mapping[str, Any]) -> None:
        """Insert rows and skip those whose key exists, even if another transaction is adding it at the same moment."""
        if rows:
            self.execute(insert(self, table).on_conflict_do_nothing(), list(rows))

    def after_commit(self, key: str, action: AfterCommit) -> None:
        """Run `action` after the commit, once for all calls with this key; never after a rollback."""
        self.on_commit[key] = action


class Database(ABC):
    """Where transactions run. `wake` tells other processes, and other tasks, that something was committed."""

    dialect: Dialect
    wake: Wake

    async def write(self, transaction: Callable[[Tx], T]) -> T:
        """Run a transaction that may write; it is committed when this returns."""
        return await self._run(transaction, write=True)

    async def read(self, transaction: Callable[[Tx], T]) -> T:
        """Run a transaction that only reads; on SQLite it never waits for a writer."""
        return await self._run(transaction, write=False)

    async def _run(self, transaction: Callable[[Tx], T], *, write: bool) -> T:
        for remaining in reversed(range(_RUNS_OF_A_TRANSACTION)):
            try:
                value, on_commit = await self._transact(transaction, write=write)
            except DBAPIError as error:
                if can_run_again(error) and remaining:
                    await asyncio.sleep(_RIVAL_BACKOFF.delay_s(1))
                    continue
                translated = translate_error(error)
                if translated is None:
                    raise
                raise translated from error
            except TimeoutError as error:
                raise Retryable("The database has no free connection; all are busy.") from error
            await self._after(on_commit)
            return value
        raise AssertionError("the last run either returned or raised")

    async def _after(self, actions: list[AfterCommit]) -> None:
        """Run the actions registered with `after_commit`. One that fails is only logged: the commit has succeeded."""
        for action in actions:
            try:
                await action()
            except Exception:
                log.exception("database.after_commit_failed")

    @abstractmethod
    async def _transact(self, transaction: Callable[[Tx], T], *, write: bool) -> tuple[T, list[AfterCommit]]: ...

    @abstractmethod
    async def close(self) -> None: ...


_PARAMETER = re.compile(r"(?<![:\w]):(\w+)")


def driver_sql(dialect: Dialect, sql: str) -> str:
    """The text as the dialect's driver wants it."""
    if dialect is Dialect.SQLITE:
        return sql
    return _PARAMETER.sub(r"%(\1)s", sql.replace("%", "%%"))


def bind_time(dialect: Dialect, moment: datetime) -> datetime | str:
    return utc_text(moment) if dialect is Dialect.SQLITE else moment


def read_time(value: datetime | str | None) -> datetime | None:
    return datetime.fromisoformat(value) if isinstance(value, str) else value


def insert(tx: Tx, table: Table) -> postgresql.Insert | sqlite.Insert:
    """An INSERT of the dialect in use, which knows ON CONFLICT. Only that dialect is imported: it takes a while."""
    if tx.dialect is Dialect.POSTGRESQL:
        from sqlalchemy.dialects import postgresql

        return postgresql.insert(table)
    from sqlalchemy.dialects import sqlite

    return sqlite.insert(table)

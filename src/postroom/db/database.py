"""Where transactions run, whichever database is behind it; `driver_errors` makes the drivers' errors ours.

SQLAlchemy takes a third of a second to load, so it is loaded with the driver of a database and not with this module.

`Wake` tells waiting workers, here and in other processes, that something was committed. A wake-up is a hint and may be
lost, so every waiter also looks by itself now and then; it carries one of a few topics and no data.

A few hot statements are hand-written SQL: written once with `:name` parameters and handed to the driver as they are.
Their times go through `bind_time` and `read_time`; ids are texts on both databases.
"""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, TypeVarTuple

from postroom.domain.clock import Backoff, utc_text
from postroom.domain.errors import PostroomError
from postroom.telemetry import logs

if TYPE_CHECKING:
    from sqlalchemy import Connection, CursorResult, Executable, Select, Table
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


log = logs.get(__name__)

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
AfterCommit = Callable[[], Awaitable[None]]
Rows = Mapping[str, Any] | Sequence[Mapping[str, Any]]
Statement = tuple[str, Mapping[str, Any]]
"""Hand-written SQL and its parameters."""

_RUNS_OF_A_TRANSACTION = 5
_RIVAL_BACKOFF = Backoff(0.05, 0.05, jitter=(0.0, 1.0))


class Dialect(StrEnum):
    SQLITE = "sqlite"
    POSTGRESQL = "postgresql"


class Reader(Protocol):
    """What runs hand-written statements that only read: a transaction, or a driver alone (`plain_sqlite.py`)."""

    @property
    def dialect(self) -> Dialect: ...

    def rows(self, sql: str, parameters: Mapping[str, Any] | None = None) -> Sequence[Sequence[Any]]:
        """Run a statement as the driver wants it, and fetch what it returns, if anything."""


class Prepared:
    """A statement that every message runs: built once and compiled once, because either takes longer than to run it. It
    knows neither defaults that Python makes for a column nor IN with a list."""

    def __init__(self, statement: Any) -> None:
        self.statement = statement
        self.compiled: dict[tuple[Any, ...], Any] = {}
        """What the drivers run (`compiled.py`)."""

    @cached_property
    def locking(self) -> Any:
        return self.statement.with_for_update()


class Tx:
    """One transaction: statements to run now, and what to do once it is committed."""

    def __init__(self, connection: Connection, *, write: bool) -> None:
        self.connection = connection
        self._locks = write and connection.dialect.name == Dialect.POSTGRESQL
        self.dialect = Dialect(connection.dialect.name)
        self.on_commit: dict[str, AfterCommit] = {}
        self.seen: dict[Hashable, Any] | None = None
        """What reads of this moment have found; None where something may be written in between."""

    def shared(self, key: Hashable, read: Callable[[], T]) -> T:
        """What `read` finds, read once for all reads of one turn of the event loop. A transaction that writes looks
        each time. The value is not to be changed."""
        if self.seen is None:
            return read()
        if key not in self.seen:
            self.seen[key] = read()
        found: T = self.seen[key]
        return found

    def execute(self, statement: Executable, parameters: Rows | None = None) -> CursorResult[*tuple[Any, ...]]:
        return self.connection.execute(statement, parameters)

    def rows(self, sql: str, parameters: Mapping[str, Any] | None = None) -> Sequence[Sequence[Any]]:
        result = self.connection.exec_driver_sql(sql, dict(parameters or {}))
        return result.all() if result.returns_rows else ()

    def run(self, prepared: Prepared, parameters: Mapping[str, Any], *, lock: bool = False) -> Sequence[Any]:
        """The rows of a prepared statement, their columns by name. `lock` keeps others from changing them until the
        transaction ends."""
        result = self.execute(prepared.locking if lock and self._locks else prepared.statement, parameters)
        return result.all() if result.returns_rows else ()

    def run_many(self, prepared: Prepared, rows: Sequence[Mapping[str, Any]]) -> int:
        """Run a statement that returns nothing once for each of these rows, which name the same parameters; how many
        rows of the database it changed."""
        return self.execute(prepared.statement, rows).rowcount if rows else 0

    def batch(self, *statements: Statement, commit: bool = False) -> list[Sequence[Sequence[Any]]]:
        """Run hand-written statements in this order, of which none needs the rows of another; returns the rows of each.
        On PostgreSQL they go to the server together and cost one round trip; with `commit`, which says that they are
        the last of the transaction, the commit goes with them."""
        return [self.rows(sql, parameters) for sql, parameters in statements]

    def locking(self, query: Select[*Ts], *, skip_locked: bool = False) -> Select[*Ts]:
        """The query with its rows locked until the transaction ends. On SQLite a writer locks the whole database; what
        only reads needs no lock: it sees one moment."""
        return query.with_for_update(skip_locked=skip_locked) if self._locks else query

    def lock_table(self, table: Table) -> None:
        """Lock the table against other writers until the transaction ends (on SQLite a writer locks the whole
        database)."""
        if self._locks:
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
    writes_at_once = False
    """Whether several transactions may write at the same time."""

    async def write(self, transaction: Callable[[Tx], T], *, together: str | None = None) -> T:
        """Run a transaction that may write; it is committed when this returns. Those of one name `together` share
        transactions where they wait at the same time: for functions that many messages need and that lock the same row.
        On SQLite all do."""
        return await self._run(transaction, write=True, together=together)

    async def read(self, transaction: Callable[[Tx], T]) -> T:
        """Run a transaction that only reads; on SQLite it never waits for a writer."""
        return await self._run(transaction, write=False)

    async def _run(self, transaction: Callable[[Tx], T], *, write: bool, together: str | None = None) -> T:
        for remaining in reversed(range(_RUNS_OF_A_TRANSACTION)):
            try:
                value, on_commit = await self._transact(transaction, write=write, together=together)
            except PostroomError:
                raise
            except Exception as error:
                from postroom.db.driver_errors import can_run_again, translate_error

                if can_run_again(error) and remaining:
                    await asyncio.sleep(_RIVAL_BACKOFF.delay_s(1))
                    continue
                translated = translate_error(error)
                if translated is None:
                    raise
                raise translated from error
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
    async def _transact(
        self, transaction: Callable[[Tx], T], *, write: bool, together: str | None = None
    ) -> tuple[T, list[AfterCommit]]: ...

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
    if value is None:
        return None
    return datetime.fromisoformat(value) if isinstance(value, str) else value.astimezone(UTC)


def insert(tx: Tx, table: Table) -> postgresql.Insert | sqlite.Insert:
    """An INSERT of the dialect in use, which knows ON CONFLICT."""
    return insert_for(tx.dialect, table)


def insert_for(dialect: Dialect, table: Table) -> postgresql.Insert | sqlite.Insert:
    """The same, for a statement that is made once. Only that dialect is imported: it takes a while."""
    if dialect is Dialect.POSTGRESQL:
        from sqlalchemy.dialects import postgresql

        return postgresql.insert(table)
    from sqlalchemy.dialects import sqlite

    return sqlite.insert(table)

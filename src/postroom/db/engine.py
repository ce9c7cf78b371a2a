"""Opens the database and runs transactions on it, off the event loop."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, CursorResult, Engine, Executable, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, TimeoutError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from postroom.db import errors, schema
from postroom.db.wake import FifoWake, PostgresWake, Wake
from postroom.domain.errors import BadInput
from postroom.settings import DatabaseSettings

T = TypeVar("T")
Rows = Mapping[str, Any] | Sequence[Mapping[str, Any]]

_READER_THREADS = 4
_RUNS_OF_A_TRANSACTION = 5


class Dialect(StrEnum):
    SQLITE = "sqlite"
    POSTGRESQL = "postgresql"


class Tx:
    """One transaction: statements to run now, and what to do once it is committed."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.dialect = Dialect(connection.dialect.name)
        self.on_commit: dict[str, Callable[[], Awaitable[None]]] = {}

    def execute(self, statement: Executable, parameters: Rows | None = None) -> CursorResult[*tuple[Any, ...]]:
        return self.connection.execute(statement, parameters)

    def after_commit(self, key: str, action: Callable[[], Awaitable[None]]) -> None:
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
                if errors.can_run_again(error) and remaining:
                    continue
                raise errors.translate(error) or error from error
            except TimeoutError as error:
                raise errors.translate(error) or error from error
            for action in on_commit:
                await action()
            return value
        raise AssertionError("the last run either returned or raised")

    @abstractmethod
    async def _transact(
        self, transaction: Callable[[Tx], T], *, write: bool
    ) -> tuple[T, list[Callable[[], Awaitable[None]]]]: ...

    @abstractmethod
    async def close(self) -> None: ...


class SqliteDatabase(Database):
    """One writing thread, a few reading ones: a transaction costs one hop, whatever it runs."""

    dialect = Dialect.SQLITE

    def __init__(self, url: URL, settings: DatabaseSettings) -> None:
        if not url.database or url.database == ":memory:":
            raise BadInput("database.url", "SQLite needs a file, for example sqlite:////var/lib/postroom/postroom.db")
        path = Path(url.database)
        self._engine = _sqlite_engine(url, settings)
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="db-writer")
        self._readers = ThreadPoolExecutor(_READER_THREADS, thread_name_prefix="db-reader")
        self.wake = FifoWake(path.with_name(path.name + ".wake"))

    async def _transact(
        self, transaction: Callable[[Tx], T], *, write: bool
    ) -> tuple[T, list[Callable[[], Awaitable[None]]]]:
        def run() -> tuple[T, list[Callable[[], Awaitable[None]]]]:
            with self._engine.connect().execution_options(immediate=write) as connection, connection.begin():
                tx = Tx(connection)
                value = transaction(tx)
            return value, list(tx.on_commit.values())

        executor = self._writer if write else self._readers
        return await asyncio.get_running_loop().run_in_executor(executor, run)

    async def close(self) -> None:
        await self.wake.close()
        self._writer.shutdown()
        self._readers.shutdown()
        self._engine.dispose()


class PostgresDatabase(Database):
    """The same functions, run over an asynchronous connection."""

    dialect = Dialect.POSTGRESQL

    def __init__(self, url: URL, settings: DatabaseSettings) -> None:
        url = url.set(drivername="postgresql+psycopg")
        self._engine: AsyncEngine = create_async_engine(url, pool_size=settings.pool_size, max_overflow=5)
        self.wake = PostgresWake(url.set(drivername="postgresql").render_as_string(hide_password=False))

    async def _transact(
        self, transaction: Callable[[Tx], T], *, write: bool
    ) -> tuple[T, list[Callable[[], Awaitable[None]]]]:
        def run(connection: Connection) -> tuple[T, list[Callable[[], Awaitable[None]]]]:
            tx = Tx(connection)
            value = transaction(tx)
            return value, list(tx.on_commit.values())

        async with self._engine.connect() as connection, connection.begin():
            return await connection.run_sync(run)

    async def close(self) -> None:
        await self.wake.close()
        await self._engine.dispose()


async def connect(url: str, settings: DatabaseSettings | None = None) -> Database:
    """Open the database and bring its schema up to date; a schema from a newer Postroom is refused."""
    settings = settings or DatabaseSettings()
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise BadInput("database.url", "is not a database address such as postgresql://user@host/name") from None
    backend = parsed.get_backend_name()
    database: Database
    if backend == Dialect.SQLITE:
        database = SqliteDatabase(parsed, settings)
    elif backend == Dialect.POSTGRESQL:
        database = PostgresDatabase(parsed, settings)
    else:
        raise BadInput("database.url", f"{backend} is not supported; use sqlite or postgresql")
    try:
        if await database.read(lambda tx: schema.revision(tx.connection)) != schema.HEAD:
            await database.write(lambda tx: schema.upgrade(tx.connection))
    except BaseException:
        await database.close()
        raise
    return database


def _sqlite_engine(url: URL, settings: DatabaseSettings) -> Engine:
    engine = create_engine(
        url.set(drivername="sqlite+pysqlite"),
        connect_args={"timeout": settings.busy_timeout_s, "isolation_level": None},
        pool_size=_READER_THREADS + 1,
    )

    @event.listens_for(engine, "connect")
    def configure(connection: Any, record: Any) -> None:
        for pragma in (
            "journal_mode=WAL",
            f"synchronous={settings.synchronous}",
            "foreign_keys=ON",
            "temp_store=MEMORY",
        ):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        immediate = connection.get_execution_options().get("immediate", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")

    return engine

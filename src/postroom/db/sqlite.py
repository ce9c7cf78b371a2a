"""SQLite: one writing thread, a few reading ones; a transaction costs one hop, whatever it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL

from postroom.db.database import AfterCommit, Database, Dialect, Tx
from postroom.db.wake_fifo import FifoWake
from postroom.domain.errors import BadInput
from postroom.settings import DatabaseSettings

T = TypeVar("T")

_READER_THREADS = 4


class SqliteDatabase(Database):
    dialect = Dialect.SQLITE

    def __init__(self, url: URL, settings: DatabaseSettings) -> None:
        if not url.database or url.database == ":memory:":
            raise BadInput("database.url", "SQLite needs a file, for example sqlite:////var/lib/postroom/postroom.db")
        path = Path(url.database)
        self._engine = _sqlite_engine(url, settings)
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="db-writer")
        self._readers = ThreadPoolExecutor(_READER_THREADS, thread_name_prefix="db-reader")
        self.wake = FifoWake(path.with_name(path.name + ".wake"))

    async def _transact(self, transaction: Callable[[Tx], T], *, write: bool) -> tuple[T, list[AfterCommit]]:
        def run() -> tuple[T, list[AfterCommit]]:
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


def _sqlite_engine(url: URL, settings: DatabaseSettings) -> Engine:
    engine = create_engine(
        url.set(drivername="sqlite+pysqlite"),
        connect_args={"timeout": settings.busy_timeout_s, "isolation_level": None},
        pool_size=_READER_THREADS + 1,
        hide_parameters=True,
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

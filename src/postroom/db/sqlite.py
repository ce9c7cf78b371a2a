"""SQLite: one writing thread and a few reading ones; wake-ups through named pipes beside the file, one for each
listener.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL

from postroom.db.database import AfterCommit, Database, Dialect, Topic, Tx, Wake, Wakeups
from postroom.domain.errors import BadInput
from postroom.domain.ids import new_id
from postroom.settings import DatabaseSettings
from postroom.telemetry import logs

log = logs.get(__name__)


class FifoWake(Wake):
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def send(self, topic: Topic) -> None:
        try:
            pipes = list(os.scandir(self._folder))
        except FileNotFoundError:
            return
        for pipe in pipes:
            self._write(pipe.path, topic)

    def _write(self, pipe: str, topic: Topic) -> None:
        try:
            handle = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno == errno.ENXIO:  # its listener died without removing the pipe
                Path(pipe).unlink(missing_ok=True)
            return
        try:
            os.write(handle, topic.encode())
        except OSError as error:  # full: it has thousands to read already; broken: it has just gone
            log.debug("wake.not_written", pipe=pipe, error=error.strerror)
        finally:
            os.close(handle)

    @asynccontextmanager
    async def listen(self) -> AsyncIterator[Wakeups]:
        wakeups = Wakeups()
        self._folder.mkdir(mode=0o700, exist_ok=True)
        # Made and opened under another name: a sender that met it before it had a reader would remove it.
        pipe = self._folder / f"{new_id()}.fifo"
        hidden = self._folder.parent / f".{pipe.name}"
        os.mkfifo(hidden, 0o600)
        handle = os.open(hidden, os.O_RDWR | os.O_NONBLOCK)
        hidden.rename(pipe)
        loop = asyncio.get_running_loop()
        loop.add_reader(handle, self._read, handle, wakeups)
        try:
            yield wakeups
        finally:
            loop.remove_reader(handle)
            os.close(handle)
            pipe.unlink(missing_ok=True)

    def _read(self, handle: int, wakeups: Wakeups) -> None:
        with contextlib.suppress(BlockingIOError):
            for topic in {*os.read(handle, 65_536).decode()}:
                wakeups.put(topic)

    async def close(self) -> None:
        """Nothing is held open between wake-ups."""


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
                tx = Tx(connection, write=write)
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

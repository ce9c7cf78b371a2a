"""SQLite: one writing thread and a few reading ones; wake-ups through named pipes beside the file, one for each
listener.

Commits of concurrent writers are gathered: what comes in while the writing thread is busy is committed together, with
one wait for the disk instead of one for each. Reads that are wanted in one turn of the event loop share a hop to a
reading thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL

from postroom.db.compiled import compiled
from postroom.db.database import AfterCommit, Database, Dialect, Prepared, Topic, Tx, Wake, Wakeups
from postroom.db.gathering import GatheredReads, GatheredWrites, Session
from postroom.domain.errors import BadInput
from postroom.domain.ids import new_id
from postroom.settings import DatabaseSettings
from postroom.telemetry import logs

log = logs.get(__name__)


class FifoWake(Wake):
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._just_sent: set[Topic] = set()

    async def send(self, topic: Topic) -> None:
        """Once for all writes that were committed together: they return in one turn of the event loop, and those of a
        later commit in a later one."""
        if topic in self._just_sent:
            return
        self._just_sent.add(topic)
        asyncio.get_running_loop().call_soon(self._just_sent.discard, topic)
        self._send(topic)

    def _send(self, topic: Topic) -> None:
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


class SqliteTx(Tx):
    """Hand-written statements go to the driver itself, which keeps them prepared."""

    def __init__(self, connection: Connection, *, write: bool) -> None:
        super().__init__(connection, write=write)
        self._driver = _driver(connection)

    def rows(self, sql: str, parameters: Mapping[str, Any] | None = None) -> Sequence[Sequence[Any]]:
        found: Sequence[Sequence[Any]] = self._driver.execute(sql, parameters or {}).fetchall()
        return found

    def run(self, prepared: Prepared, parameters: Mapping[str, Any], *, lock: bool = False) -> Sequence[Any]:
        return compiled(prepared, self.connection.dialect, parameters).run(self._driver.cursor(), parameters)

    def run_many(self, prepared: Prepared, rows: Sequence[Mapping[str, Any]]) -> int:
        if not rows:
            return 0
        return compiled(prepared, self.connection.dialect, rows[0]).run_many(self._driver.cursor(), rows)


class _SqliteSession(Session):
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._driver = _driver(connection)

    def tx(self, *, write: bool, is_alone: bool) -> Tx:
        return SqliteTx(self._connection, write=write)

    def execute(self, sql: str) -> object:
        return self._driver.execute(sql)

    def has_ended(self) -> bool:
        return not self._driver.in_transaction

    async def given_up(self) -> None:
        """It ends soon of itself: a statement waits for no other transaction."""


class _SqliteWriter(GatheredWrites):
    """The writing thread and its connection."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="db-writer")
        self._connection: Connection | None = None
        super().__init__(self._thread, self._open)

    def close(self) -> None:
        """What waits is done first."""
        self.start()
        self._thread.shutdown()
        self._let_go()

    @contextmanager
    def _open(self) -> Iterator[Session]:
        """One connection serves all; after an error, whatever it was, the next transaction gets another."""
        if self._connection is None:
            self._connection = self._engine.connect()
        try:
            with _driver_transaction(self._connection, "BEGIN IMMEDIATE"):
                yield _SqliteSession(self._connection)
        except BaseException:
            self._let_go()
            raise

    def _let_go(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _driver(connection: Connection) -> Any:
    return connection.connection.driver_connection


@contextmanager
def _driver_transaction(connection: Connection, begin: str = "BEGIN") -> Iterator[None]:
    """Begun and ended by the driver: SQLAlchemy takes longer for that than the driver takes for a statement. It knows
    of the transaction only if it runs a statement, and does not roll back what could not be committed. After an error
    the connection is to be closed."""
    driver = _driver(connection)
    try:
        driver.execute(begin)
        yield
        if connection.in_transaction():
            connection.commit()
        else:
            driver.commit()
    except BaseException:
        driver.rollback()
        raise


class _SqliteReaders(GatheredReads):
    """The reading threads. Connections are kept, but for one that met an error."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._pool = ThreadPoolExecutor(_READER_THREADS, thread_name_prefix="db-reader")
        self._idle: deque[Connection] = deque()
        super().__init__(self._pool, self._open)

    def close(self) -> None:
        self._pool.shutdown()
        for connection in self._idle:
            connection.close()

    @contextmanager
    def _open(self) -> Iterator[Session]:
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._engine.connect()
        try:
            with _driver_transaction(connection):
                yield _SqliteSession(connection)
        except BaseException:
            connection.close()
            raise
        self._idle.append(connection)


class SqliteDatabase(Database):
    dialect = Dialect.SQLITE

    def __init__(self, url: URL, settings: DatabaseSettings) -> None:
        if not url.database or url.database == ":memory:":
            raise BadInput("database.url", "SQLite needs a file, for example sqlite:////var/lib/postroom/postroom.db")
        path = Path(url.database)
        self._engine = _sqlite_engine(url, settings)
        self._writer = _SqliteWriter(self._engine)
        self._readers = _SqliteReaders(self._engine)
        self.wake = FifoWake(path.with_name(path.name + ".wake"))

    async def _transact(
        self, transaction: Callable[[Tx], T], *, write: bool, together: str | None = None
    ) -> tuple[T, list[AfterCommit]]:
        return await (self._writer.run(transaction) if write else self._readers.run(transaction))

    async def close(self) -> None:
        await self.wake.close()
        self._writer.close()
        self._readers.close()
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

    return engine

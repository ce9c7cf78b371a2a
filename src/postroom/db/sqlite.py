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
import threading
import time
from collections import deque, namedtuple
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL

from postroom.db.database import AfterCommit, Database, Dialect, Prepared, Topic, Tx, Wake, Wakeups
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


class _CompiledStatement:
    """A prepared statement as the driver takes it, with what turns its parameters and rows into those of our types."""

    def __init__(self, statement: Any, dialect: Any, given: Sequence[str]) -> None:
        compiled = statement.compile(dialect=dialect, column_keys=list(given))
        if compiled.insert_prefetch or compiled.update_prefetch or compiled.post_compile_params:
            raise AssertionError(f"it cannot be prepared: {compiled}")
        self._sql = str(compiled)
        constants, to_driver = compiled.construct_params(_check=False), compiled._bind_processors
        names = compiled.positiontup or ()
        self._parameters = [(name, constants[name]) for name in names]
        self._binders = [(at, to_driver[name]) for at, name in enumerate(names) if name in to_driver]
        columns = compiled._result_columns
        self._row: Any = namedtuple("_row", [each.keyname for each in columns], rename=True)  # type: ignore[misc]
        readers = [column.type._cached_result_processor(dialect, None) for column in columns]
        self._readers = [(at, read) for at, read in enumerate(readers) if read is not None]

    def run(self, driver: Any, given: Mapping[str, Any]) -> Sequence[Any]:
        rows = driver.execute(self._sql, self._values(given)).fetchall()
        if not self._readers:
            return [self._row._make(row) for row in rows]
        return [self._read(row) for row in rows]

    def run_many(self, driver: Any, rows: Sequence[Mapping[str, Any]]) -> int:
        return int(driver.executemany(self._sql, map(self._values, rows)).rowcount)

    def _values(self, given: Mapping[str, Any]) -> list[Any]:
        values = [given.get(name, constant) for name, constant in self._parameters]
        for at, to_driver in self._binders:
            values[at] = to_driver(values[at])
        return values

    def _read(self, row: Sequence[Any]) -> Any:
        values = list(row)
        for at, read in self._readers:
            values[at] = read(values[at])
        return self._row._make(values)


T = TypeVar("T")

_READER_THREADS = 4
_MOST_TOGETHER = 100
_LONGEST_TOGETHER_S = 0.02
"""A group takes no further functions after so long: the first of them has waited for all the others."""


class SqliteTx(Tx):
    """Hand-written statements go to the driver itself, which keeps them prepared."""

    def __init__(self, connection: Connection, *, write: bool) -> None:
        super().__init__(connection, write=write)
        self._driver = _driver(connection)

    def rows(self, sql: str, parameters: Mapping[str, Any] | None = None) -> Sequence[Sequence[Any]]:
        found: Sequence[Sequence[Any]] = self._driver.execute(sql, parameters or {}).fetchall()
        return found

    def run(self, prepared: Prepared, parameters: Mapping[str, Any], *, lock: bool = False) -> Sequence[Any]:
        return self._compiled(prepared, parameters).run(self._driver, parameters)

    def run_many(self, prepared: Prepared, rows: Sequence[Mapping[str, Any]]) -> int:
        return self._compiled(prepared, rows[0]).run_many(self._driver, rows) if rows else 0

    def _compiled(self, prepared: Prepared, given: Mapping[str, Any]) -> _CompiledStatement:
        names = tuple(given)
        compiled: _CompiledStatement | None = prepared.compiled.get(names)
        if compiled is None:
            compiled = prepared.compiled[names] = _CompiledStatement(prepared.statement, self.connection.dialect, names)
        return compiled


@dataclass(slots=True, eq=False)
class _Waiting:
    """A function that waits for a thread, and the future of the task that asked for it."""

    transaction: Callable[[Tx], Any]
    answer: asyncio.Future[tuple[Any, list[AfterCommit]]]
    done: tuple[Any, list[AfterCommit]] | None = None
    error: BaseException | None = None

    def run(self, connection: Connection, seen: dict[Hashable, Any] | None = None) -> None:
        """`seen`: what reads share, where it only reads."""
        tx = SqliteTx(connection, write=seen is None)
        tx.seen = seen
        value = self.transaction(tx)
        self.done, self.error = (value, list(tx.on_commit.values())), None

    def failed(self, error: BaseException) -> None:
        # A future takes no StopIteration: the task would wait for ever.
        self.done, self.error = None, RuntimeError(repr(error)) if isinstance(error, StopIteration) else error

    def answer_task(self) -> None:
        """Within the loop of the task that asked, which may have gone."""
        if self.answer.done():
            return
        if self.error is not None:
            self.answer.set_exception(self.error)
        elif self.done is not None:
            self.answer.set_result(self.done)


class _GroupEnded(Exception):
    """The database ended the transaction of a group before its commit."""


class _SqliteWriter:
    """The writing thread. Functions that wait at the same time share a transaction.

    If one fails, all of them run again, each in a savepoint of its own, and that one is rolled back alone. If that
    transaction cannot be committed, each runs once more by itself, so that it gets the answer that it would have had
    without the others. No one is answered before the commit.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="db-writer")
        self._lock = threading.Lock()
        self._waiting: deque[_Waiting] = deque()
        self._is_working = False
        self._connection: Connection | None = None

    async def run(self, transaction: Callable[[Tx], T]) -> tuple[T, list[AfterCommit]]:
        loop = asyncio.get_running_loop()
        write = _Waiting(transaction, loop.create_future())
        with self._lock:
            self._waiting.append(write)
            if not self._is_working:
                self._is_working = True
                loop.call_soon(self._start)  # others of this turn of the loop belong to the same group
        return await write.answer

    def close(self) -> None:
        """What waits is done first."""
        self._start()
        self._thread.shutdown()
        self._let_go()

    def _start(self) -> None:
        try:
            self._thread.submit(self._work)
        except RuntimeError as error:  # closed: what waits came after that
            with self._lock:
                late, self._is_working = list(self._waiting), False
                self._waiting.clear()
            for write in late:
                write.failed(error)
            _answer_all(late)

    def _work(self) -> None:
        while (first := self._first()) is not None:
            if self._waiting:
                self._together(first)
            else:
                self._alone(first)
                _answer_all([first])

    def _first(self) -> _Waiting | None:
        """The next function; None if there is none, so that the next to come has to start the thread again."""
        with self._lock:
            first = self._next()
            self._is_working = first is not None
            return first

    def _next(self) -> _Waiting | None:
        """The next that a task still waits for: of one that was given up before it began, nothing is done."""
        while self._waiting:
            write = self._waiting.popleft()
            if not write.answer.cancelled():
                return write
        return None

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        """One connection serves all; after an error, whatever it was, the next transaction gets another."""
        if self._connection is None:
            self._connection = self._engine.connect().execution_options(immediate=True)
        try:
            with self._connection.begin():
                yield self._connection
        except BaseException:
            self._let_go()
            raise

    def _let_go(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _alone(self, write: _Waiting) -> None:
        try:
            with self._transaction() as connection:
                write.run(connection)
        except BaseException as error:
            write.failed(error)

    def _together(self, first: _Waiting) -> None:
        group: list[_Waiting] = []
        try:
            with self._transaction() as connection:
                self._run_group(connection, first, group)
        except BaseException as error:
            if group:
                self._apart(group)
            else:
                group.append(first)
                first.failed(error)
        _answer_all(group)

    def _run_group(self, connection: Connection, first: _Waiting, group: list[_Waiting]) -> None:
        ends = time.monotonic() + _LONGEST_TOGETHER_S
        write: _Waiting | None = first
        while write is not None:
            group.append(write)
            write.run(connection)
            in_time = len(group) < _MOST_TOGETHER and time.monotonic() < ends
            write = self._next() if in_time else None

    def _apart(self, group: Sequence[_Waiting]) -> None:
        try:
            with self._transaction() as connection:
                for write in group:
                    _run_in_savepoint(connection, write)
        except BaseException:
            for write in group:
                self._alone(write)


def _driver(connection: Connection) -> Any:
    return connection.connection.driver_connection


@contextmanager
def _driver_transaction(connection: Connection) -> Iterator[None]:
    """One that reads, begun and ended by the driver: SQLAlchemy takes longer for that than the driver takes for a
    statement. It knows of the transaction only if it runs a statement. After an error the connection is to be
    closed."""
    driver = _driver(connection)
    driver.execute("BEGIN")
    yield
    if connection.in_transaction():
        connection.commit()
    else:
        driver.commit()


def _run_in_savepoint(connection: Connection, write: _Waiting) -> None:
    driver = _driver(connection)
    driver.execute("SAVEPOINT one_of_many")
    try:
        write.run(connection)
    except BaseException as error:
        write.failed(error)
    if not driver.in_transaction:  # as after a full disk: what the others wrote is gone too
        raise _GroupEnded()
    if write.error is not None:
        driver.execute("ROLLBACK TO one_of_many")
    driver.execute("RELEASE one_of_many")


def _answer_all(writes: Sequence[_Waiting]) -> None:
    """Each loop is woken once. A loop that is closed has no one left to answer."""
    by_loop: dict[asyncio.AbstractEventLoop, list[_Waiting]] = {}
    for write in writes:
        by_loop.setdefault(write.answer.get_loop(), []).append(write)
    for loop, mine in by_loop.items():
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(_answer_in_loop, mine)


def _answer_in_loop(writes: Sequence[_Waiting]) -> None:
    for write in writes:
        write.answer_task()


class _SqliteReaders:
    """The reading threads. Reads of one turn of the event loop share a thread, a connection and a moment that they see.
    A slow one hands those behind it to another thread; connections are kept, but for one that met an error."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._threads = ThreadPoolExecutor(_READER_THREADS, thread_name_prefix="db-reader")
        self._idle: deque[Connection] = deque()
        self._wanted: dict[asyncio.AbstractEventLoop, deque[_Waiting]] = {}

    async def run(self, transaction: Callable[[Tx], T]) -> tuple[T, list[AfterCommit]]:
        loop = asyncio.get_running_loop()
        read = _Waiting(transaction, loop.create_future())
        if loop not in self._wanted:
            self._wanted[loop] = deque()
            loop.call_soon(self._start, loop)
        self._wanted[loop].append(read)
        return await read.answer

    def close(self) -> None:
        self._threads.shutdown()
        for connection in self._idle:
            connection.close()

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        reads = self._wanted.pop(loop)
        try:
            self._threads.submit(self._work, reads)
        except RuntimeError as error:  # closed meanwhile
            for read in reads:
                read.failed(error)
                read.answer_task()

    def _work(self, reads: deque[_Waiting]) -> None:
        done: list[_Waiting] = []
        try:
            with self._transaction() as connection:
                self._read(connection, reads, done)
        except BaseException as error:
            if not done:
                done.append(reads.popleft())
            done[-1].failed(error)
        if reads:
            self._work_elsewhere(reads)
        _answer_all(done)

    def _read(self, connection: Connection, reads: deque[_Waiting], done: list[_Waiting]) -> None:
        ends, seen = time.monotonic() + _LONGEST_TOGETHER_S, dict[Hashable, Any]()
        while reads and (not done or time.monotonic() < ends):
            read = reads.popleft()
            if not read.answer.cancelled():
                done.append(read)
                read.run(connection, seen)

    def _work_elsewhere(self, reads: deque[_Waiting]) -> None:
        try:
            self._threads.submit(self._work, reads)
        except RuntimeError:  # it is being closed, and waits for this thread
            self._work(reads)

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._engine.connect()
        try:
            with _driver_transaction(connection):
                yield connection
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

    async def _transact(self, transaction: Callable[[Tx], T], *, write: bool) -> tuple[T, list[AfterCommit]]:
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

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        if _driver(connection).in_transaction:
            return
        immediate = connection.get_execution_options().get("immediate", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")

    return engine

"""PostgreSQL: the same transaction functions on threads, each with a connection; wake-ups through LISTEN and NOTIFY.

The driver and SQLAlchemy cost less than half on threads of what they cost over an asynchronous connection, and nothing
that the event loop has to do comes between two statements of a transaction, which may hold a lock.

NOTIFY inside a transaction takes a lock that all committing transactions share, so it is sent by itself after the
commit; callers that come while one is under way share the next.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar, cast

import psycopg
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.types.string import TextLoader
from sqlalchemy import Connection, NullPool, create_engine, event
from sqlalchemy.engine import URL, ExceptionContext
from sqlalchemy.exc import DBAPIError

from postroom.db.compiled import compiled
from postroom.db.database import AfterCommit, Database, Dialect, Prepared, Statement, Topic, Tx, Wake, Wakeups
from postroom.db.gathering import GatheredReads, GatheredWrites, Session, Waiting, answer_all, run_alone
from postroom.db.prepared_postgres import PreparedCursor
from postroom.settings import DatabaseSettings
from postroom.telemetry import logs

log = logs.get(__name__)

_CHANNEL = "postroom_wake"
_RECONNECT_S = 1.0
_CANCEL_WITHIN_S = 5.0
_LOCK_NOT_AVAILABLE = "55P03"
_READS = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_WRITES = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
_PREPARED = "postroom_prepared"


class PostgresWake(Wake):
    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo
        self._sender: psycopg.AsyncConnection | None = None
        self._sending = asyncio.Lock()
        self._unsent: set[Topic] = set()

    async def send(self, topic: Topic) -> None:
        self._unsent.add(topic)
        async with self._sending:
            topics, self._unsent = self._unsent, set()
            for item in topics:
                await self._notify(item)

    async def _notify(self, topic: Topic) -> None:
        try:
            if self._sender is None or self._sender.closed:
                self._sender = await psycopg.AsyncConnection.connect(self._conninfo, autocommit=True)
            await self._sender.execute("SELECT pg_notify(%s, %s)", (_CHANNEL, topic.value))
        except psycopg.Error as error:
            log.warning("wake.send_failed", error=str(error))
            await self._drop_sender()

    @asynccontextmanager
    async def listen(self) -> AsyncIterator[Wakeups]:
        wakeups = Wakeups()
        ready = asyncio.Event()
        task = asyncio.create_task(self._receive(wakeups, ready), name="wake-listener")
        try:
            await ready.wait()
            yield wakeups
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _receive(self, wakeups: Wakeups, ready: asyncio.Event) -> None:
        while True:
            try:
                async with await psycopg.AsyncConnection.connect(self._conninfo, autocommit=True) as connection:
                    await connection.execute(f"LISTEN {_CHANNEL}")
                    ready.set()
                    wakeups.put(Topic.WORK)  # notifications may have been missed while disconnected
                    async for notice in connection.notifies():
                        wakeups.put(notice.payload)
            except psycopg.Error as error:
                log.warning("wake.listener_lost", error=str(error))
            finally:
                ready.set()
            await asyncio.sleep(_RECONNECT_S)

    async def close(self) -> None:
        await self._drop_sender()

    async def _drop_sender(self) -> None:
        if self._sender is not None:
            await self._sender.close()
            self._sender = None


T = TypeVar("T")

# A peer that freezes, or whose host is gone, must not keep its locks: the server ends its transaction, and
# a transaction that waits for a lock gives up and is retried.
_LIMITS = {"idle_in_transaction_session_timeout": "10s", "lock_timeout": "20s"}
_CONNECT = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}


class PostgresTx(Tx):
    """Hand-written and prepared statements go to the driver itself: SQLAlchemy would cost more than the server does."""

    def __init__(self, connection: Connection, *, write: bool, is_alone: bool) -> None:
        super().__init__(connection, write=write)
        self._driver = _driver(connection)
        self._cursor = _prepared_cursor(connection)
        self._is_alone = is_alone

    def rows(self, sql: str, parameters: Mapping[str, Any] | None = None) -> Sequence[Sequence[Any]]:
        with self._our_errors():
            return _found(self._driver.execute(sql.encode(), parameters or {}))

    def run(self, prepared: Prepared, parameters: Mapping[str, Any], *, lock: bool = False) -> Sequence[Any]:
        statement = compiled(prepared, self.connection.dialect, parameters, lock=lock and self._locks)
        try:
            return statement.run(self._cursor, parameters)
        except psycopg.Error as error:
            raise _ours(self.connection, error) from error

    def run_many(self, prepared: Prepared, rows: Sequence[Mapping[str, Any]]) -> int:
        if not rows:
            return 0
        with self._our_errors():
            return compiled(prepared, self.connection.dialect, rows[0]).run_many(self._driver.cursor(), rows)

    def batch(self, *statements: Statement, commit: bool = False) -> list[Sequence[Sequence[Any]]]:
        commit = commit and self._is_alone  # else the others would be committed half way
        if not (len(statements) > 1 or commit) or not psycopg.Pipeline.is_supported():
            return [self.rows(*statement) for statement in statements]
        with self._our_errors():
            with self._driver.pipeline():
                cursors = [self._driver.execute(sql.encode(), given, prepare=True) for sql, given in statements]
                if commit:
                    self._driver.commit()
            return [_found(cursor) for cursor in cursors]

    @contextmanager
    def _our_errors(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            raise _ours(self.connection, error) from error


def _found(cursor: psycopg.Cursor[Any]) -> Sequence[Sequence[Any]]:
    return cursor.fetchall() if cursor.pgresult and cursor.pgresult.status == ExecStatus.TUPLES_OK else ()


def _driver(connection: Connection) -> psycopg.Connection[Any]:
    return cast("psycopg.Connection[Any]", connection.connection.driver_connection)


def _prepared_cursor(connection: Connection) -> PreparedCursor:
    """That of this connection to the server."""
    found: PreparedCursor | None = connection.info.get(_PREPARED)
    if found is None:
        found = connection.info[_PREPARED] = PreparedCursor(_driver(connection))
    return found


def _ours(connection: Connection, error: psycopg.Error) -> BaseException:
    """The driver's error, as SQLAlchemy would raise it; a connection that is lost is not used again."""
    _leave_row_out(error)
    is_lost = _driver(connection).closed
    if is_lost:
        connection.invalidate(error)
    return DBAPIError.instance(None, None, error, psycopg.Error, hide_parameters=True, connection_invalidated=is_lost)


class _PostgresSession(Session):
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._driver = _driver(connection)
        self._functions: list[Waiting] = []
        self._lock = threading.Lock()
        self._is_over = False
        self.is_cancelled = False

    def run(self, waiting: Waiting, *, seen: dict[Hashable, Any] | None = None, is_alone: bool = False) -> None:
        self._functions.append(waiting)
        super().run(waiting, seen=seen, is_alone=is_alone)

    def tx(self, *, write: bool, is_alone: bool) -> Tx:
        return PostgresTx(self._connection, write=write, is_alone=is_alone)

    def execute(self, sql: str) -> None:
        try:
            _prepared_cursor(self._connection).command(sql)
        except psycopg.Error as error:
            raise _ours(self._connection, error) from error

    def has_ended(self) -> bool:
        ours = (TransactionStatus.INTRANS, TransactionStatus.INERROR)
        return self._driver.info.transaction_status not in ours

    async def given_up(self) -> None:
        """If no one waits for any of it, its statement, which may wait for a lock, is cancelled."""
        if all(each.answer.cancelled() for each in self._functions):
            await asyncio.get_running_loop().run_in_executor(None, self._cancel)

    def _cancel(self) -> None:
        with self._lock:  # it does not end meanwhile: the server would cancel the next one on this connection
            if not self._is_over:
                self.is_cancelled = True
                with contextlib.suppress(psycopg.Error):
                    self._driver.cancel_safe(timeout=_CANCEL_WITHIN_S)

    def end(self) -> None:
        with self._lock:
            self._is_over = True


class _Connections:
    """Those of the threads. A connection belongs to one thread for a transaction; the last one used goes on first."""

    def __init__(self, url: URL) -> None:
        self._engine = create_engine(url, poolclass=NullPool, hide_parameters=True, connect_args=_CONNECT)
        self._idle: deque[tuple[Connection, int]] = deque()
        self._losses = 0
        """How often the server was lost. What was opened before the last time is not used again."""
        event.listen(self._engine, "connect", _prepare)
        event.listen(self._engine, "handle_error", _leave_rows_out)

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """All statements see one moment, as on SQLite."""
        with self._transaction(_READS) as session:
            yield session

    @contextmanager
    def writing(self) -> Iterator[Session]:
        with self._transaction(_WRITES) as session:
            yield session

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[Session]:
        connection, losses = self._taken()
        session, is_committed = _PostgresSession(connection), False
        try:
            with connection.begin():
                session.execute(begin)
                yield session
            is_committed = True
        except DBAPIError as error:
            if error.connection_invalidated:  # the server went away: the other connections are lost too
                self._losses += 1
            raise
        finally:
            session.end()
            if not is_committed and not connection.invalidated:
                with contextlib.suppress(psycopg.Error):  # then it is not idle, and not used again
                    _prepared_cursor(connection).rolled_back()
            self._put_back(connection, losses, is_usable=not session.is_cancelled)

    def _taken(self) -> tuple[Connection, int]:
        while self._idle:
            connection, losses = self._idle.pop()
            if losses == self._losses:
                return connection, losses
            connection.close()
        losses = self._losses
        return self._engine.connect(), losses

    def _put_back(self, connection: Connection, losses: int, *, is_usable: bool) -> None:
        if is_usable and not connection.invalidated and _is_idle(_driver(connection)):
            self._idle.append((connection, losses))
        else:
            connection.invalidate()
            connection.close()

    def close(self) -> None:
        while self._idle:
            self._idle.pop()[0].close()
        self._engine.dispose()


def _fails_all(error: BaseException) -> bool:
    """There is no connection, or another process holds a lock for too long: it takes seconds to find that out, and each
    of those that wait would find it out again."""
    if not isinstance(error, DBAPIError) or error.connection_invalidated:
        return False
    state = getattr(error.orig, "sqlstate", None)
    return isinstance(error.orig, psycopg.OperationalError) and state in (None, _LOCK_NOT_AVAILABLE)


def _is_idle(driver: psycopg.Connection[Any]) -> bool:
    return driver.info.transaction_status == TransactionStatus.IDLE


def _prepare(connection: psycopg.Connection[Any], record: Any) -> None:
    connection.adapters.register_loader("uuid", TextLoader)
    connection.autocommit = True
    connection.execute(settings_of_a_session(_LIMITS))
    connection.autocommit = False


def settings_of_a_session(values: Mapping[str, str]) -> bytes:
    """Not as options of the connection: PgBouncer refuses these."""
    return "; ".join(f"SET {name} = '{value}'" for name, value in values.items()).encode()


class PostgresDatabase(Database):
    dialect = Dialect.POSTGRESQL
    writes_at_once = True

    def __init__(self, url: URL, settings: DatabaseSettings) -> None:
        self._connections = _Connections(url.set(drivername="postgresql+psycopg"))
        self._threads = ThreadPoolExecutor(settings.pool_size, thread_name_prefix="db")
        self._reads = GatheredReads(self._threads, self._connections.reading)
        self._gathered: dict[str, GatheredWrites] = {}
        self.wake = PostgresWake(url.set(drivername="postgresql").render_as_string(hide_password=False))

    async def _transact(
        self, transaction: Callable[[Tx], T], *, write: bool, together: str | None = None
    ) -> tuple[T, list[AfterCommit]]:
        if not write:
            return await self._reads.run(transaction)
        if together is None:
            return await self._write_alone(transaction)
        if together not in self._gathered:
            self._gathered[together] = GatheredWrites(self._threads, self._connections.writing, _fails_all)
        return await self._gathered[together].run(transaction)

    async def _write_alone(self, transaction: Callable[[Tx], T]) -> tuple[T, list[AfterCommit]]:
        """A group would hold the locks of each until the last one ends, and groups of two processes would lock the same
        rows in opposite order."""
        write = Waiting(transaction, asyncio.get_running_loop().create_future())
        self._threads.submit(self._work, write)
        return await write.outcome()

    def _work(self, write: Waiting) -> None:
        if not write.answer.cancelled():
            run_alone(self._connections.writing, write)
            answer_all([write])

    async def close(self) -> None:
        await self.wake.close()
        # A transaction may wait for a lock, which the event loop must not.
        await asyncio.get_running_loop().run_in_executor(None, self._threads.shutdown)
        self._connections.close()


def _leave_rows_out(context: ExceptionContext) -> None:
    said = _leave_row_out(context.original_exception)
    if said and context.sqlalchemy_exception is not None:
        context.sqlalchemy_exception.args = (f"({type(context.original_exception).__name__}) {said}",)


def _leave_row_out(error: BaseException) -> str | None:
    """The server's details repeat the row that it refused, and rows hold mail; its first sentence is enough."""
    said: str | None = getattr(getattr(error, "diag", None), "message_primary", None)
    if said:
        error.args = (said,)
    return said

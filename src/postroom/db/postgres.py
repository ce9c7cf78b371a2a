"""PostgreSQL: the same transaction functions over an asynchronous connection; wake-ups through LISTEN and NOTIFY.

NOTIFY inside a transaction takes a lock that all committing transactions share, so it is sent by itself after the
commit; callers that come while one is under way share the next.

Hand-written statements go to the driver itself: SQLAlchemy would cost more than the server does.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar, cast

import psycopg
from psycopg.abc import PQGen
from psycopg.types.string import TextLoader
from psycopg.waiting import READY_R, READY_W, WAIT_R, WAIT_W
from sqlalchemy import Connection, event
from sqlalchemy.engine import URL, ExceptionContext
from sqlalchemy.exc import DBAPIError, DisconnectionError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.util import await_only

from postroom.db.database import AfterCommit, Database, Dialect, Statement, Topic, Tx, Wake, Wakeups
from postroom.settings import DatabaseSettings
from postroom.telemetry import logs

log = logs.get(__name__)

_CHANNEL = "postroom_wake"
_RECONNECT_S = 1.0
_LOSSES = "postroom_losses"
"""In a connection's notes: how often the server had been lost when it was opened."""


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
_CONNECT = {
    "options": "-c idle_in_transaction_session_timeout=10s -c lock_timeout=20s",
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}


_STEPS_IN_A_ROW = 64
"""After so many steps without a wait the event loop turns, however fast the server sends."""


class _Connection(psycopg.AsyncConnection[Any]):
    """Asks the event loop only where it has to wait. The driver alone does so before each statement that it sends and
    for each part of an answer, although the socket is ready; whatever else the loop has to do goes before it each
    time."""

    async def wait(self, gen: PQGen[T], *args: Any, **options: Any) -> T:
        return await super().wait(_without_needless_waits(gen, self.pgconn.socket), *args, **options)


def _without_needless_waits(steps: PQGen[T], socket: int) -> PQGen[T]:
    """The driver's steps, without those for which the socket is ready."""
    poller, taken = select.poll(), 0
    try:
        wanted = next(steps)
        while True:
            taken += 1
            ready = _ready(poller, socket, wanted) if taken % _STEPS_IN_A_ROW else 0
            wanted = steps.send(ready or (yield wanted))
    except StopIteration as done:
        value: T = done.value
        return value


def _ready(poller: select.poll, socket: int, wanted: int) -> int:
    """For what of it the socket is ready now; what is wrong with it is found by reading and writing."""
    poller.register(socket, (wanted & WAIT_R and select.POLLIN) | (wanted & WAIT_W and select.POLLOUT))
    [(_, found)] = poller.poll(0) or [(socket, 0)]
    if found & ~(select.POLLIN | select.POLLOUT):
        return wanted
    return (found & select.POLLIN and READY_R) | (found & select.POLLOUT and READY_W)


class PostgresTx(Tx):
    def rows(self, sql: str, parameters: Mapping[str, Any] | None = None) -> Sequence[Sequence[Any]]:
        return self.batch((sql, parameters or {}))[0]

    def batch(self, *statements: Statement, commit: bool = False) -> list[Sequence[Sequence[Any]]]:
        driver = cast(psycopg.AsyncConnection, self.connection.connection.driver_connection)
        try:
            return await_only(_run_all(driver, statements, commit=commit))
        except psycopg.Error as error:
            raise self._wrapped(error, driver) from error
        except asyncio.CancelledError as error:
            self.connection.invalidate(error)  # what the server still does with it is not known
            raise

    def _wrapped(self, error: psycopg.Error, driver: psycopg.AsyncConnection) -> Exception:
        """The error as SQLAlchemy would raise it; a connection that is lost is not used again."""
        _leave_row_out(error)
        if driver.closed:
            self.connection.invalidate(error)
        return DBAPIError.instance(
            None, None, error, psycopg.Error, hide_parameters=True, connection_invalidated=driver.closed
        )


async def _run_all(
    driver: psycopg.AsyncConnection, statements: Sequence[Statement], *, commit: bool
) -> list[Sequence[Sequence[Any]]]:
    if (len(statements) > 1 or commit) and psycopg.AsyncPipeline.is_supported():
        async with driver.pipeline():
            cursors = [await driver.execute(sql.encode(), parameters) for sql, parameters in statements]
            if commit:
                await driver.commit()
    else:
        cursors = [await driver.execute(sql.encode(), parameters) for sql, parameters in statements]
    return [await cursor.fetchall() if cursor.description else () for cursor in cursors]


class PostgresDatabase(Database):
    dialect = Dialect.POSTGRESQL
    writes_at_once = True

    def __init__(self, url: URL, settings: DatabaseSettings) -> None:
        url = url.set(drivername="postgresql+psycopg")
        self._engine: AsyncEngine = create_async_engine(
            url,
            pool_size=settings.pool_size,
            max_overflow=0,
            isolation_level="READ COMMITTED",
            hide_parameters=True,
            connect_args=_CONNECT | {"async_creator_fn": _Connection.connect},
        )
        self._reading = self._engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        """The same connections: all statements of a transaction that only reads see one moment, as on SQLite."""
        self._losses = 0
        event.listen(self._engine.sync_engine, "connect", self._opened)
        event.listen(self._engine.sync_engine, "checkout", self._refuse_lost)
        event.listen(self._engine.sync_engine, "handle_error", _leave_rows_out)
        self.wake = PostgresWake(url.set(drivername="postgresql").render_as_string(hide_password=False))

    async def _transact(self, transaction: Callable[[Tx], T], *, write: bool) -> tuple[T, list[AfterCommit]]:
        def run(connection: Connection) -> tuple[T, list[AfterCommit]]:
            tx = PostgresTx(connection, write=write)
            tx.seen = None if write else {}
            value = transaction(tx)
            return value, list(tx.on_commit.values())

        engine = self._engine if write else self._reading
        try:
            async with engine.connect() as connection, connection.begin():
                return await connection.run_sync(run)
        except DBAPIError as error:
            if error.connection_invalidated:  # the server went away: the other connections are lost too
                self._losses += 1
            raise

    def _opened(self, connection: Any, record: Any) -> None:
        record.info[_LOSSES] = self._losses
        connection.driver_connection.adapters.register_loader("uuid", TextLoader)  # ids are texts

    def _refuse_lost(self, connection: Any, record: Any, proxy: Any) -> None:
        """The pool opens another connection in place of one from before the last loss."""
        if record.info[_LOSSES] != self._losses:
            raise DisconnectionError

    async def close(self) -> None:
        await self.wake.close()
        await self._engine.dispose()


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

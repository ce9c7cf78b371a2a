"""PostgreSQL: the same transaction functions, run over an asynchronous connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from psycopg.types.string import TextLoader
from sqlalchemy import Connection, event
from sqlalchemy.engine import URL, ExceptionContext
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from postroom.db.database import AfterCommit, Database, Dialect, Tx
from postroom.db.wake_postgres import PostgresWake
from postroom.settings import DatabaseSettings

T = TypeVar("T")

# A peer that freezes, or whose host is gone, must not hold its locks for ever: the server ends its transaction, and
# whoever waits for a lock gives up and tries again.
_CONNECT = {
    "options": "-c idle_in_transaction_session_timeout=10s -c lock_timeout=20s",
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}


class PostgresDatabase(Database):
    dialect = Dialect.POSTGRESQL

    def __init__(self, url: URL, settings: DatabaseSettings) -> None:
        url = url.set(drivername="postgresql+psycopg")
        self._engine: AsyncEngine = create_async_engine(
            url,
            pool_size=settings.pool_size,
            max_overflow=0,
            isolation_level="READ COMMITTED",
            hide_parameters=True,
            connect_args=_CONNECT,
        )
        event.listen(self._engine.sync_engine, "connect", _read_ids_as_text)
        event.listen(self._engine.sync_engine, "handle_error", _leave_rows_out)
        self.wake = PostgresWake(url.set(drivername="postgresql").render_as_string(hide_password=False))

    async def _transact(self, transaction: Callable[[Tx], T], *, write: bool) -> tuple[T, list[AfterCommit]]:
        def run(connection: Connection) -> tuple[T, list[AfterCommit]]:
            tx = Tx(connection)
            value = transaction(tx)
            return value, list(tx.on_commit.values())

        async with self._engine.connect() as connection, connection.begin():
            return await connection.run_sync(run)

    async def close(self) -> None:
        await self.wake.close()
        await self._engine.dispose()


def _read_ids_as_text(connection: Any, record: Any) -> None:
    connection.driver_connection.adapters.register_loader("uuid", TextLoader)


def _leave_rows_out(context: ExceptionContext) -> None:
    """The server's details repeat the row that it refused, and rows hold mail; its first sentence is enough."""
    error = context.original_exception
    said = getattr(getattr(error, "diag", None), "message_primary", None)
    if said:
        error.args = (said,)
        if context.sqlalchemy_exception is not None:
            context.sqlalchemy_exception.args = (f"({type(error).__name__}) {said}",)

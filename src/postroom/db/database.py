"""Where transactions run, whichever database is behind it."""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, TypeVar, TypeVarTuple

from sqlalchemy import Connection, CursorResult, Executable, Select, Table
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError, TimeoutError

from postroom.db import errors
from postroom.db.wake import Wake
from postroom.domain.errors import Retryable
from postroom.telemetry import logs

log = logs.get(__name__)

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
AfterCommit = Callable[[], Awaitable[None]]
Rows = Mapping[str, Any] | Sequence[Mapping[str, Any]]

_RUNS_OF_A_TRANSACTION = 5
_LONGEST_PAUSE_S = 0.05


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
        """Run a hand-written statement (see `db/plain.py`) as it stands, and fetch what it returns, if anything."""
        result = self.connection.exec_driver_sql(sql, dict(parameters or {}))
        return result.all() if result.returns_rows else ()

    def locking(self, query: Select[*Ts], *, skip_locked: bool = False) -> Select[*Ts]:
        """The query with its rows locked until the transaction ends (on SQLite a writer has the whole database)."""
        return query.with_for_update(skip_locked=skip_locked) if self.dialect is Dialect.POSTGRESQL else query

    def lock_table(self, table: Table) -> None:
        """Nobody else writes to this table until the transaction ends (on SQLite a writer has the whole database)."""
        if self.dialect is Dialect.POSTGRESQL:
            self.connection.exec_driver_sql(f"LOCK TABLE {table.name} IN SHARE ROW EXCLUSIVE MODE")

    def insert_missing(self, table: Table, *rows: Mapping[str, Any]) -> None:
        """Insert rows, but for those whose key is there already, also where another transaction is just adding it."""
        insert = postgresql.insert if self.dialect is Dialect.POSTGRESQL else sqlite.insert
        if rows:
            self.execute(insert(table).on_conflict_do_nothing(), list(rows))

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
                if errors.can_run_again(error) and remaining:
                    await asyncio.sleep(random.uniform(0, _LONGEST_PAUSE_S))  # noqa: S311 (so that rivals part ways)
                    continue
                translated = errors.translate(error)
                if translated is None:
                    raise
                raise translated from error
            except TimeoutError as error:
                raise Retryable("The database has no free connection; all are busy.") from error
            await self._after(on_commit)
            return value
        raise AssertionError("the last run either returned or raised")

    async def _after(self, actions: list[AfterCommit]) -> None:
        """What is committed is committed: an action that fails is logged, and the caller is told of the success."""
        for action in actions:
            try:
                await action()
            except Exception:
                log.exception("database.after_commit_failed")

    @abstractmethod
    async def _transact(self, transaction: Callable[[Tx], T], *, write: bool) -> tuple[T, list[AfterCommit]]: ...

    @abstractmethod
    async def close(self) -> None: ...

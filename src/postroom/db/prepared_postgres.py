"""Statements that are prepared on a connection of PostgreSQL, and run there by libpq alone.

A cursor of the driver makes each call a generator of several steps, looks for the parameters in the text and guesses
their types; that costs more than the server needs for the statement. Here the server infers the types, once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import psycopg
from psycopg import abc
from psycopg.abc import Buffer
from psycopg.adapt import PyFormat, Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGresult


class PreparedCursor:
    """Runs statements whose parameters are `$1`, `$2` and so on, in the transaction that is open on the connection.

    With a rollback the driver takes back all that is prepared, also what it does not know of. A statement that is gone
    all the same fails the transaction, which `driver_errors.py` lets run again.
    """

    def __init__(self, driver: psycopg.Connection[Any]) -> None:
        self._driver = driver
        self._prepared: dict[str, tuple[bytes, abc.Transformer]] = {}
        self._rows: Sequence[Any] = ()

    def command(self, sql: str) -> None:
        """Begin a transaction, or do something with a savepoint. The driver sees what has become of the transaction."""
        self._checked(self._driver.pgconn.exec_(sql.encode()))

    def rolled_back(self) -> None:
        if self._prepared and not self._driver.closed:
            self._prepared.clear()
            self.command("DEALLOCATE ALL")

    def execute(self, sql: str, values: Sequence[Any]) -> None:
        name, adapting = self._prepared.get(sql) or self._prepare(sql)
        texts = adapting.dump_sequence(values, [PyFormat.TEXT] * len(values))
        result = self._checked(self._driver.pgconn.exec_prepared(name, cast("list[Buffer]", texts)))
        adapting.set_pgresult(result)
        self._rows = adapting.load_rows(0, result.ntuples, tuple)
        adapting.set_pgresult(None)  # it may be large

    def fetchall(self) -> Sequence[Any]:
        rows, self._rows = self._rows, ()
        return rows

    def _prepare(self, sql: str) -> tuple[bytes, abc.Transformer]:
        name = f"postroom_{len(self._prepared)}".encode()
        self._checked(self._driver.pgconn.prepare(name, sql.encode()))
        self._prepared[sql] = name, Transformer(self._driver)
        return self._prepared[sql]

    def _checked(self, result: PGresult) -> PGresult:
        if result.status in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK):
            return result
        error = error_from_result(result, self._driver.info.encoding)
        if self._driver.closed and error.sqlstate is None:  # the server went away, and could not say why
            raise psycopg.OperationalError(str(error))
        raise error

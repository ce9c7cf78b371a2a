"""Reads the SQLite file of an installation through its driver alone, for commands that only look.

SQLAlchemy takes longer to load than such a command takes to run. What is read this way is hand-written SQL.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from postroom.db.database import Dialect
from postroom.db.opening import CURRENT_REVISION, SCHEMA_HEAD
from postroom.settings import DatabaseSettings


class SqliteReader:
    dialect = Dialect.SQLITE

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def rows(self, sql: str, parameters: Mapping[str, Any] | None = None) -> Sequence[Sequence[Any]]:
        return self._connection.execute(sql, parameters or {}).fetchall()


@contextmanager
def sqlite_reader(file: Path, settings: DatabaseSettings) -> Iterator[SqliteReader | None]:
    """One transaction on the file; None if it has to be made or upgraded first, or is from a newer Postroom."""
    if not file.exists():
        yield None
        return
    try:
        with closing(sqlite3.connect(file, timeout=settings.busy_timeout_s, isolation_level=None)) as connection:
            connection.execute("PRAGMA query_only = ON")
            connection.execute("BEGIN")
            yield SqliteReader(connection) if _is_current(connection) else None
    except sqlite3.Error as error:
        from postroom.db.driver_errors import translate_error

        raise translate_error(error) or error from error


def _is_current(connection: sqlite3.Connection) -> bool:
    try:
        return connection.execute(CURRENT_REVISION).fetchall() == [(SCHEMA_HEAD,)]
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_ERROR:  # no such table
            return False
        raise

"""The one place where a database driver's errors become ours."""

from __future__ import annotations

import sqlite3

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

from postroom.domain.errors import Fatal, PostroomError, Retryable
from postroom.telemetry.logs import clean

# PostgreSQL: serialization_failure, deadlock_detected
_RUN_AGAIN = {"40001", "40P01"}
# PostgreSQL: lock_not_available, idle_in_transaction_session_timeout, read_only_sql_transaction (after a failover)
_LATER = {"55P03", "25P03", "25006"}


def can_run_again(error: DBAPIError) -> bool:
    """The server rolled the transaction back only because of the company it kept."""
    return getattr(error.orig, "sqlstate", None) in _RUN_AGAIN


def translate(error: DBAPIError) -> PostroomError | None:
    """What to raise instead, or None where the error is a bug of ours and should be seen as it is."""
    cause = clean(str(error.orig).strip())
    if isinstance(error.orig, sqlite3.Error):
        return _of_sqlite(error.orig, cause)
    if error.connection_invalidated or can_run_again(error):
        return Retryable(f"The database went away: {cause}")
    if isinstance(error, OperationalError | InterfaceError) or getattr(error.orig, "sqlstate", None) in _LATER:
        return Retryable(f"The database cannot be used now: {cause}")
    return None


def _of_sqlite(error: sqlite3.Error, cause: str) -> PostroomError | None:
    match getattr(error, "sqlite_errorcode", 0) & 0xFF:  # the primary code, without its details
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return Retryable("The database is busy: another process holds its write lock.")
        case sqlite3.SQLITE_FULL:
            return Retryable("The disk that holds the database is full. Free some space; work goes on by itself.")
        case sqlite3.SQLITE_IOERR:
            return Retryable(f"The disk that holds the database does not answer as it should: {cause}")
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM:
            return Fatal(f"The database cannot be opened for writing ({cause}): check who owns its file and folder.")
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return Fatal(f"The database file is damaged ({cause}). Restore it from a backup.")
        case _:
            return None

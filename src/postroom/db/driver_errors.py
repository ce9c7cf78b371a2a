"""The errors of SQLAlchemy and of the drivers, as ours. Loaded with the first error, because SQLAlchemy is slow to
load and a command that only reads does without it.
"""

from __future__ import annotations

import sqlite3

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

from postroom.domain.errors import Fatal, PostroomError, Retryable
from postroom.telemetry.logs import clean

# PostgreSQL: serialization_failure, deadlock_detected, query_canceled (it was meant for another function of the
# transaction, which its task gave up), invalid_sql_statement_name (what was prepared on the connection is gone)
_RUN_AGAIN = {"40001", "40P01", "57014", "26000"}
# PostgreSQL: lock_not_available, idle_in_transaction_session_timeout, read_only_sql_transaction (after a failover)
_LATER = {"55P03", "25P03", "25006"}


def can_run_again(error: Exception) -> bool:
    """The server rolled the transaction back because of another one; it can be run again."""
    return isinstance(error, DBAPIError) and getattr(error.orig, "sqlstate", None) in _RUN_AGAIN


def translate_error(error: Exception) -> PostroomError | None:
    """What to raise instead; None if the error is not the database's, or is a bug of ours and should surface
    unchanged."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    said = clean(str(cause).strip())
    if isinstance(cause, sqlite3.Error):
        return _of_sqlite(cause, said)
    if not isinstance(error, DBAPIError):
        return None
    if error.connection_invalidated or can_run_again(error):
        return Retryable(f"The database went away: {said}")
    if isinstance(error, OperationalError | InterfaceError) or getattr(cause, "sqlstate", None) in _LATER:
        return Retryable(f"The database cannot be used now: {said}")
    return None


def _of_sqlite(error: sqlite3.Error, said: str) -> PostroomError | None:
    match getattr(error, "sqlite_errorcode", 0) & 0xFF:  # the primary code, without its details
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return Retryable("The database is busy: another process holds its write lock.")
        case sqlite3.SQLITE_FULL:
            return Retryable("The disk that holds the database is full. Free some space; work goes on by itself.")
        case sqlite3.SQLITE_IOERR:
            return Retryable(f"The disk that holds the database does not answer as it should: {said}")
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM:
            return Fatal(f"The database cannot be opened for writing ({said}): check who owns its file and folder.")
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return Fatal(f"The database file is damaged ({said}). Restore it from a backup.")
        case _:
            return None

"""The one place where a database driver's errors become ours."""

from __future__ import annotations

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, TimeoutError

from postroom.domain.errors import Fatal, PostroomError, Retryable
from postroom.telemetry.logs import clean

# PostgreSQL: serialization_failure, deadlock_detected
_RUN_AGAIN = {"40001", "40P01"}


def can_run_again(error: DBAPIError) -> bool:
    """The server rolled the transaction back only because of the company it kept."""
    return getattr(error.orig, "sqlstate", None) in _RUN_AGAIN


def translate(error: DBAPIError | TimeoutError) -> PostroomError | None:
    """What to raise instead, or None where the error is a bug of ours and should be seen as it is."""
    if isinstance(error, TimeoutError):
        return Retryable("The database has no free connection; all are busy.")
    cause = clean(str(error.orig))
    if "database is locked" in cause:
        return Retryable("The database is busy: another process holds its write lock.")
    if "disk is full" in cause or "No space left" in cause:
        return Retryable("The disk that holds the database is full. Free some space; work goes on by itself.")
    if "readonly database" in cause:
        return Fatal("The database cannot be written: check who owns its file and folder.")
    if "malformed" in cause or "not a database" in cause:
        return Fatal(f"The database file is damaged ({cause}). Restore it from a backup.")
    if error.connection_invalidated or can_run_again(error):
        return Retryable(f"The database went away: {cause}")
    if isinstance(error, OperationalError | InterfaceError):
        return Retryable(f"The database cannot be used now: {cause}")
    return None

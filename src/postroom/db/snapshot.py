"""Copies a database as of one moment, while others go on writing to it."""

from __future__ import annotations

import os
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from postroom.domain.errors import Fatal, PostroomError, Retryable
from postroom.telemetry.logs import clean

if TYPE_CHECKING:
    from sqlalchemy.engine import URL

Copied = Callable[[int], None]
"""Called with the number of bytes copied since its last call. An error that it raises ends the copying."""

_PAGES_AT_ONCE = 1_000
_BUSY_TIMEOUT_S = 30.0


def copy_sqlite(source: Path, target: Path, copied: Copied = lambda count: None) -> None:
    """Copy a SQLite file. It is on disk, one file without a log, when this returns.

    The read transaction that is held throughout is what fixes the moment: without it, every commit of another process
    would start the copying over again, and a busy database could never be copied.
    """
    make_private(target)
    try:
        with (
            closing(_connect(f"{source.absolute().as_uri()}?mode=ro")) as reading,
            closing(_connect(f"{target.absolute().as_uri()}?mode=rw")) as writing,
        ):
            writing.execute("PRAGMA journal_mode = OFF")  # one that is not finished is thrown away
            writing.execute("PRAGMA synchronous = OFF")
            reading.execute("BEGIN")
            (page_bytes,) = reading.execute("PRAGMA page_size").fetchone()
            reading.execute("SELECT count(*) FROM sqlite_schema").fetchone()
            reading.backup(writing, pages=_PAGES_AT_ONCE, progress=_in_bytes(copied, page_bytes))
    except sqlite3.Error as error:
        raise _trouble(error, source, target) from error
    sync(target)


def dump_postgres(url: URL, target: Path) -> None:
    """Run `pg_dump` in its custom format, which takes one snapshot."""
    make_private(target)
    plain = url.set(drivername="postgresql", password=None).render_as_string()
    secret = {} if url.password is None else {"PGPASSWORD": str(url.password)}  # other users can see arguments
    command = ["pg_dump", "--format=custom", "--no-owner", "--no-privileges", f"--file={target}", f"--dbname={plain}"]
    try:
        done = subprocess.run(command, env={**os.environ, **secret}, capture_output=True, text=True)  # noqa: S603
    except FileNotFoundError:
        raise Fatal(
            "pg_dump was not found. Install PostgreSQL's client programs, or dump the database by other means first "
            "and copy the rest with `--without-database`."
        ) from None
    if done.returncode != 0:
        said = " ".join(clean(done.stderr).split())[-500:]
        raise Fatal(f"pg_dump failed: {said or f'exit code {done.returncode}'}")
    sync(target)


def make_private(path: Path) -> None:
    """An empty file that only its owner can read; one that is there is left alone."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise Fatal(f"{path} cannot be made: {error.strerror}.") from error


def sync(path: Path) -> None:
    """On disk when this returns: a file, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _connect(uri: str) -> sqlite3.Connection:
    return sqlite3.connect(uri, uri=True, isolation_level=None, timeout=_BUSY_TIMEOUT_S)


def _in_bytes(copied: Copied, page_bytes: int) -> Callable[[int, int, int], object]:
    before = 0

    def report(status: int, remaining: int, total: int) -> None:
        nonlocal before
        now = (total - remaining) * page_bytes
        copied(now - before)
        before = now

    return report


def _trouble(error: sqlite3.Error, source: Path, target: Path) -> PostroomError:
    match getattr(error, "sqlite_errorcode", 0) & 0xFF:
        case sqlite3.SQLITE_FULL:
            return Retryable(f"The disk that holds {target.parent} is full.")
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return Retryable(f"{source} is locked by another process.")
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return Fatal(f"{source} is damaged ({error}), so it was not copied. Run `postroom verify`.")
        case _:
            return Fatal(f"{source} could not be copied to {target}: {error}")

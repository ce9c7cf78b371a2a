"""Opening one shard, for reading or for writing, and refusing one that this code does not understand."""

from __future__ import annotations

import os
import sqlite3
from datetime import UTC, datetime
from pathlib import Path

from postroom.archive.layout import ShardName
from postroom.archive.shard_schema import APPLICATION_ID, TABLES, VERSION
from postroom.domain.errors import Fatal, NewerSchema, Retryable

_BUSY_TIMEOUT_S = 30.0
_FOR_WRITING = (
    "journal_mode = WAL",
    "synchronous = FULL",
    "foreign_keys = ON",
    "temp_store = MEMORY",
    "cache_size = -4096",  # KiB, for each shard that is being written: a long import has one for every year
)


def open_for_writing(path: Path, name: ShardName) -> sqlite3.Connection:
    """The shard, made if it is missing. FULL: every commit is on disk before anybody is told."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not path.exists():
        _make(path, name)
    connection = _connect(path, f"file:{uri_path(path)}?mode=rw")
    try:
        for pragma in _FOR_WRITING:
            connection.execute(f"PRAGMA {pragma}")
    except sqlite3.Error as error:
        connection.close()
        raise storage_error(error, str(path)) from error
    _check(connection, path)
    return connection


def open_for_reading(path: Path) -> sqlite3.Connection:
    """A reader of its own: it never waits for the writer, and can change nothing."""
    immutable = "&immutable=1" if _cannot_change(path) else ""
    connection = _connect(path, f"file:{uri_path(path)}?mode=ro{immutable}")
    connection.execute("PRAGMA query_only = ON")
    _check(connection, path)
    return connection


def storage_error(error: sqlite3.Error, what: str) -> Retryable | Fatal:
    """The one place where SQLite's complaints about a shard become ours."""
    match getattr(error, "sqlite_errorcode", 0) & 0xFF:
        case sqlite3.SQLITE_FULL:
            return Retryable(f"The disk that holds {what} is full. Nothing is half stored; free some space and go on.")
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return Retryable(f"{what} is locked by another process.")
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM:
            return Fatal(f"{what} cannot be used ({error}): check that it is there, and who owns it and its folder.")
        case _:
            return Fatal(
                f"{what} is damaged ({error}). Run `postroom verify`: it tells what is lost and rebuilds the rest."
            )


def _connect(path: Path, uri: str) -> sqlite3.Connection:
    try:
        return sqlite3.connect(uri, uri=True, isolation_level=None, timeout=_BUSY_TIMEOUT_S, check_same_thread=False)
    except sqlite3.Error as error:
        raise storage_error(error, str(path)) from error


def _cannot_change(path: Path) -> bool:
    """On a medium that takes no writing SQLite cannot make the files that readers share with a writer; if nothing
    waits in a log there, it need not."""
    try:
        is_read_only = os.statvfs(path).f_flag & os.ST_RDONLY
    except OSError:
        return False
    return bool(is_read_only) and not path.with_name(f"{path.name}-wal").exists()


def uri_path(path: Path) -> str:
    return str(path.absolute()).replace("%", "%25").replace("?", "%3f").replace("#", "%23")


def _make(path: Path, name: ShardName) -> None:
    """A new shard gets its name when it is complete: neither a reader nor a kill finds one that is half made."""
    unborn = path.with_name(f".{path.name}.new")
    for leftover in (unborn, unborn.with_name(f"{unborn.name}-journal")):
        leftover.unlink(missing_ok=True)
    connection = _connect(unborn, f"file:{uri_path(unborn)}?mode=rwc")
    try:
        _create(connection, name)
    except sqlite3.Error as error:
        raise storage_error(error, str(path)) from error
    finally:
        connection.close()
    unborn.rename(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _create(connection: sqlite3.Connection, name: ShardName) -> None:
    made = datetime.now(UTC).isoformat(timespec="seconds")
    connection.execute("BEGIN IMMEDIATE")
    for statement in _statements():
        connection.execute(statement)
    facts = {"account": name.account, "period": str(name.year), "part": str(name.part), "created_at": made}
    connection.executemany("INSERT INTO shard (key, value) VALUES (?, ?)", facts.items())
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {VERSION}")
    connection.execute("COMMIT")


def _statements() -> list[str]:
    """One by one: `executescript` would commit by itself between them."""
    found, text = [], ""
    for line in TABLES.splitlines():
        text += line + "\n"
        if sqlite3.complete_statement(text):
            found.append(text)
            text = ""
    return found


def _check(connection: sqlite3.Connection, path: Path) -> None:
    try:
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        version = connection.execute("PRAGMA user_version").fetchone()[0]
    except sqlite3.Error as error:
        connection.close()
        raise storage_error(error, str(path)) from error
    if application != APPLICATION_ID:
        connection.close()
        raise Fatal(f"{path} is not a shard of a Postroom archive; move it elsewhere.")
    if version > VERSION:
        connection.close()
        raise NewerSchema(f"{path} was written by a newer Postroom (shard version {version}). Upgrade Postroom.")

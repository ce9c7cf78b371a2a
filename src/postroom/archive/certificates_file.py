"""The file `certificates.db`: what was removed at the source, and the proof that it is here. No row of it ever changes.

sqlite3 certificates.db "SELECT gmail_id, action, label, sha256, result, result_at FROM ledger"
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from postroom.archive.shard import storage_error, uri_path
from postroom.domain.errors import Fatal, NewerSchema

APPLICATION_ID = 0x506F7343  # "PosC"
VERSION = 1
_BUSY_TIMEOUT_S = 30.0

_TABLES = (
    """
    CREATE TABLE certificates (
        certificate INTEGER PRIMARY KEY,
        batch TEXT NOT NULL,
        gmail_id TEXT NOT NULL,
        action TEXT NOT NULL,               -- label, trash or delete
        label TEXT NOT NULL,                -- the name of the label that is taken away; else empty
        key TEXT NOT NULL,
        sha256 TEXT NOT NULL,               -- of the bytes as they were read back from disk
        size INTEGER NOT NULL,
        shard TEXT NOT NULL,
        row_id INTEGER NOT NULL,
        provenance TEXT NOT NULL,
        watermark INTEGER NOT NULL,         -- seconds since 1970, as read for this batch
        certified_at TEXT NOT NULL,
        UNIQUE (gmail_id, action, label, sha256)
    )""",
    """
    CREATE TABLE outcomes (                 -- the last one of a certificate is how it stands
        outcome INTEGER PRIMARY KEY,
        certificate INTEGER NOT NULL REFERENCES certificates (certificate),
        result TEXT NOT NULL CHECK (result IN ('intended', 'removed', 'gone', 'left')),
        detail TEXT NOT NULL,
        recorded_at TEXT NOT NULL
    )""",
    "CREATE INDEX outcomes_of_certificate ON outcomes (certificate, outcome)",
    """
    CREATE VIEW ledger AS
    SELECT c.*, o.result, o.detail, o.recorded_at AS result_at
    FROM certificates c JOIN outcomes o
        ON o.outcome = (SELECT max(outcome) FROM outcomes WHERE certificate = c.certificate)
    """,
    *(
        f"CREATE TRIGGER {table}_no_{verb} BEFORE {verb} ON {table} "
        f"BEGIN SELECT RAISE(ABORT, '{table} are never changed'); END"
        for table in ("certificates", "outcomes")
        for verb in ("update", "delete")
    ),
    # INSERT OR REPLACE takes rows away without asking the triggers above.
    """
    CREATE TRIGGER certificates_no_replace BEFORE INSERT ON certificates
    WHEN EXISTS (SELECT 1 FROM certificates WHERE certificate = NEW.certificate OR (
        gmail_id = NEW.gmail_id AND action = NEW.action AND label = NEW.label AND sha256 = NEW.sha256))
    BEGIN SELECT RAISE(ABORT, 'certificates are never changed'); END
    """,
    """
    CREATE TRIGGER outcomes_no_replace BEFORE INSERT ON outcomes
    WHEN EXISTS (SELECT 1 FROM outcomes WHERE outcome = NEW.outcome)
    BEGIN SELECT RAISE(ABORT, 'outcomes are never changed'); END
    """,
)


def open_or_make(path: Path) -> sqlite3.Connection:
    """For writing. WAL and FULL: a commit is on disk before anybody is told, whatever happens to the power."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        connection = _connect(path, "rwc")
        try:
            _prepare(connection, path)
        except BaseException:
            connection.close()
            raise
    except sqlite3.Error as error:
        raise storage_error(error, str(path)) from error
    return connection


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
        connection.execute(f"PRAGMA {pragma}")
    connection.execute("BEGIN IMMEDIATE")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version == 0:
        for statement in _TABLES:
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {VERSION}")
    connection.execute("COMMIT")
    if version == 0:
        _sync_folder(path.parent)
    if version > VERSION:
        raise NewerSchema(f"{path} was written by a newer Postroom (version {version}). Upgrade Postroom.")
    if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise Fatal(f"{path} does not hold Postroom's certificates; move it elsewhere.")


def _sync_folder(folder: Path) -> None:
    """A file that was just made has to be found again after the power fails, and so has its name to be on disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def open_to_read(path: Path) -> sqlite3.Connection | None:
    """None where nothing was ever certified, or where the first to do so was killed before it could."""
    if not path.exists():
        return None
    connection = _connect(path, "ro")
    try:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
    except sqlite3.Error:
        connection.close()
        raise
    if version == 0:
        connection.close()
        return None
    return connection


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    return sqlite3.connect(
        f"file:{uri_path(path)}?mode={mode}",
        uri=True,
        isolation_level=None,
        timeout=_BUSY_TIMEOUT_S,
        check_same_thread=False,
    )

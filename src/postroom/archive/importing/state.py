"""How far an unfinished import is, so that the same command goes on there after a crash.

It is written after the archive's own commit, and so is behind the disk or level with it, never ahead; what it has not
heard of is read again and recognised. It is forgotten when the import is complete: the next one reads everything.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

from postroom.archive.importing.model import readable
from postroom.archive.shard import storage_error
from postroom.domain.errors import Fatal

COMPLETE = -1
_TABLE = """
    CREATE TABLE IF NOT EXISTS positions (
        source TEXT NOT NULL,       -- account, format and path of the import
        file TEXT NOT NULL,
        identity TEXT NOT NULL,     -- of the file when it was read
        position INTEGER NOT NULL,  -- all before this byte is in the archive; -1: all of it
        PRIMARY KEY (source, file)
    ) WITHOUT ROWID
"""


class Mark(NamedTuple):
    """A file is done up to here."""

    identity: str
    position: int


class Positions(Protocol):
    def position(self, file: str, identity: str) -> int:
        """Where to go on in this file; a file that is not what it was is read from its start."""

    def remember(self, marks: Mapping[str, Mark]) -> None:
        """All before these positions is in the archive."""

    def forget(self) -> None:
        """The import is complete."""

    def close(self) -> None: ...


class ImportState:
    """Kept in a file beside the shards."""

    def __init__(self, root: Path, source: str) -> None:
        self._file = root / "imports.db"
        self._source = source
        with self._errors_told():
            self._db = sqlite3.connect(self._file, isolation_level=None, timeout=30)
            try:
                self._is_resumed = self._prepare()
            except sqlite3.Error:
                self._db.close()
                raise

    def _prepare(self) -> bool:
        """Whether an earlier run of this import left something to go on from."""
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = NORMAL")  # a lost last position only means to read a little again
        self._db.execute(_TABLE)
        exists = "SELECT EXISTS (SELECT 1 FROM positions WHERE source = ?)"
        return bool(self._db.execute(exists, (self._source,)).fetchone()[0])

    def position(self, file: str, identity: str) -> int:
        """Where to go on in this file; a file that is not what it was is read from its start."""
        if not self._is_resumed:  # a Maildir asks for every message
            return 0
        with self._errors_told():
            row = self._db.execute(
                "SELECT position FROM positions WHERE source = ? AND file = ? AND identity = ?",
                (self._source, readable(file), identity),
            ).fetchone()
        return int(row[0]) if row else 0

    def remember(self, marks: Mapping[str, Mark]) -> None:
        rows = [(self._source, readable(file), *mark) for file, mark in marks.items()]
        with self._errors_told():
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany("INSERT OR REPLACE INTO positions VALUES (?, ?, ?, ?)", rows)
            self._db.execute("COMMIT")

    def forget(self) -> None:
        with self._errors_told():
            self._db.execute("DELETE FROM positions WHERE source = ?", (self._source,))

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def _errors_told(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
                raise Fatal(f"{self._file} is damaged. Delete it: it only says how far imports were.") from error
            raise storage_error(error, str(self._file)) from error

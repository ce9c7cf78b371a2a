"""What an import finds, what it reports, and how far it is.

A position is written after the archive's own commit, so it is never ahead of the disk; mail it does not cover is read
again and recognised. Positions are deleted when the import is complete.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from postroom.archive.messages import IncomingMail
from postroom.archive.shards.shard_file import is_damage, storage_error
from postroom.domain.errors import Fatal

HEAD_OF_MESSAGE = 64 << 10
LARGEST_MESSAGE = 128 << 20  # larger than any mail service takes; what is larger is a damaged file


class FoundMessage(NamedTuple):
    """A message in a file. `end` is where the file goes on after it."""

    raw: bytes
    end: int
    from_line: bytes = b""
    labels: frozenset[str] | None = None
    delivered: datetime | None = None  # what the container says; counts only where the message itself has no date


@dataclass(frozen=True, slots=True)
class RefusedMessage:
    """A message that cannot be taken, while those after it can."""

    where: str
    problem: str
    end: int
    is_mail: bool = True


NOT_A_MESSAGE = "is not a message: its first lines have none of the headers of mail, such as From, Date or Subject"


def readable(name: str) -> str:
    """A file name is bytes; those that are no text get a form that can be stored and shown."""
    return name.encode("utf-8", "backslashreplace").decode()


ImportFinding = FoundMessage | RefusedMessage
Interpretation = Callable[[FoundMessage], IncomingMail]


@dataclass(frozen=True, slots=True)
class MailFile:
    """One file of a source. `identity` changes when what stands in it may have changed."""

    name: str
    size: int | None
    identity: Callable[[], str]
    read: Callable[[int], Iterator[ImportFinding]]  # the messages from this offset on


@dataclass(frozen=True, slots=True)
class ImportSource:
    """What a person asked to import. `interpret` is a function of a module: it also runs in other processes."""

    format: str
    path: Path
    files: Callable[[], Iterator[MailFile]]
    interpret: Interpretation
    total_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Unreadable:
    where: str
    problem: str
    kept: bool  # its bytes are in the archive all the same
    is_mail: bool = True


_COUNTED = ("found", "stored", "duplicates", "with_problems", "bytes", "seconds", "unreadable_count")


@dataclass(slots=True)
class ImportReport:
    """Of the whole import, with what runs before it counted where it goes on from them. What was stored right before a
    kill, and not remembered yet, is found again and counts as a duplicate."""

    found: int = 0
    stored: int = 0
    duplicates: int = 0
    with_problems: int = 0  # stored, though something in them could not be read
    bytes: int = 0
    seconds: float = 0.0
    resumed_from: str | None = None
    stopped: bool = False
    unreadable_count: int = 0
    not_mail: int = 0  # files that were skipped, since they are no messages
    unreadable: list[Unreadable] = field(default_factory=list)  # the first of both
    troubled: dict[str, str] = field(default_factory=dict)  # of those that are kept: by archive key, why

    def add(self, earlier: Mapping[str, float]) -> None:
        """Go on from what an earlier run counted (`counts`)."""
        for name in _COUNTED:
            setattr(self, name, getattr(self, name) + earlier.get(name, 0))

    def counts(self) -> dict[str, float]:
        return {name: getattr(self, name) for name in _COUNTED}

    @property
    def rate(self) -> float:
        return self.found / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class ImportProgress:
    """How far an import is: what it counts is on disk."""

    bytes_done: int
    bytes_total: int | None
    report: ImportReport

    @property
    def seconds_left(self) -> float | None:
        """At the speed so far; None if the total is unknown."""
        if self.bytes_total is None or not self.report.bytes:
            return None
        return max(0, self.bytes_total - self.bytes_done) * self.report.seconds / self.report.bytes


ShowProgress = Callable[[ImportProgress], None]


COMPLETE = -1


class ImportPosition(NamedTuple):
    """How far a file has been imported."""

    identity: str
    position: int


COUNTS_ROW = ""
"""In place of a file's name, which is never empty."""


def counts_mark(counts: Mapping[str, float]) -> ImportPosition:
    """How counts stand among the positions, in the row of the file without a name (`COUNTS_ROW`)."""
    return ImportPosition(json.dumps(dict(counts)), 0)


def counts_in(identity: object) -> dict[str, float]:
    """What that row says; nothing where there is none, or it cannot be read."""
    try:
        found = json.loads(identity) if isinstance(identity, str) else {}
    except ValueError:
        return {}
    return {name: value for name, value in found.items() if isinstance(value, int | float)}


_TABLE = """
    CREATE TABLE IF NOT EXISTS positions (
        source TEXT NOT NULL,       -- account, format and path of the import
        file TEXT NOT NULL,
        identity TEXT NOT NULL,     -- of the file when it was read
        position INTEGER NOT NULL,  -- all before this byte is in the archive; -1: all of it
        PRIMARY KEY (source, file)
    ) WITHOUT ROWID
"""


class ImportState:
    """Kept in a file beside the shards."""

    def __init__(self, root: Path, source: str) -> None:
        self._file = root / "imports.db"
        self._source = source
        with self._errors_mapped():
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
        with self._errors_mapped():
            row = self._db.execute(
                "SELECT position FROM positions WHERE source = ? AND file = ? AND identity = ?",
                (self._source, readable(file), identity),
            ).fetchone()
        return int(row[0]) if row else 0

    def counts(self) -> dict[str, float]:
        if not self._is_resumed:
            return {}
        with self._errors_mapped():
            query = "SELECT identity FROM positions WHERE source = ? AND file = ?"
            row = self._db.execute(query, (self._source, COUNTS_ROW)).fetchone()
        return counts_in(row[0]) if row else {}

    def remember(self, marks: Mapping[str, ImportPosition], counts: Mapping[str, float]) -> None:
        rows = [(self._source, readable(file), *mark) for file, mark in marks.items()]
        rows.append((self._source, COUNTS_ROW, *counts_mark(counts)))
        with self._errors_mapped():
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany("INSERT OR REPLACE INTO positions VALUES (?, ?, ?, ?)", rows)
            self._db.execute("COMMIT")

    def forget(self) -> None:
        with self._errors_mapped():
            self._db.execute("DELETE FROM positions WHERE source = ?", (self._source,))

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def _errors_mapped(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            if is_damage(error):
                raise Fatal(f"{self._file} is damaged. Delete it: it only says how far imports were.") from error
            raise storage_error(error, str(self._file)) from error

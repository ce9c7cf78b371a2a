"""A shard as a search reads it, and the pool of such readers, each lent to one thread at a time."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from postroom.archive.folding import LabelIndex
from postroom.archive.messages import ShardName, account_name
from postroom.archive.shards.conversations import CONVERSATIONS_FILE, SCHEMA, attach
from postroom.archive.shards.reader import ShardReader, shards_on_disk
from postroom.archive.shards.selecting import THIS_SHARD, SizeIndex
from postroom.domain.errors import BadInput, PostroomError, Retryable

_MOST_IDLE = 128  # each holds a few open files
_CACHE_KIB = 4_096
_RARE = 1_024
_SHORT = 16_384  # to merge so many with the list of a word takes about half a millisecond
_STEPS = 10_000


def _never() -> bool:
    return False


class SearchReader(ShardReader):
    """A shard as a search reads it."""

    def __init__(self, root: Path, name: ShardName) -> None:
        super().__init__(root, name)
        self._root = root
        self._file_name = os.fspath(self._path)
        self._file = _identity(self._file_name)
        self._attached: tuple[int, int] | None = None
        self._has_conversations = False
        self._connection.create_function(THIS_SHARD, 0, lambda: str(name), deterministic=True)
        self._connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        self._labels = LabelIndex(())
        self._size_indexes: list[tuple[int, str]] | None = None
        self._short: dict[str, bool] = {}
        self._data_version: object = None
        self._has_vocabulary = False
        self.seen_version = 0
        """Of the shard; as of the last call of `labels`."""
        self._is_late: Callable[[], bool] = _never
        self._connection.set_progress_handler(lambda: self._is_late(), _STEPS)

    def is_of_this_file(self) -> bool:
        """False: another file stands under the shard's name now, because it was rebuilt."""
        return self._file == _identity(self._file_name)

    def has_conversations(self) -> bool:
        """Whether queries can use the index of conversations, as the file stands there now. Attached when the first
        query asks, because few do."""
        now = _identity(os.fspath(self._root / CONVERSATIONS_FILE))
        if now != self._attached:
            if any(schema == SCHEMA for _, schema, _ in self.query("PRAGMA database_list")):
                self.query(f"DETACH {SCHEMA}")
            self._attached, self._has_conversations = now, attach(self, self._root)
        return self._has_conversations

    def give_up_when(self, is_late: Callable[[], bool]) -> None:
        """Break a query off as soon as this says so."""
        self._is_late = is_late

    def _error(self, error: sqlite3.Error) -> PostroomError:
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_INTERRUPT:
            return BadInput("query", "this takes too long; narrow it, with dates for example")
        return super()._error(error)

    def labels(self) -> LabelIndex:
        """The shard's labels; read again only after the shard was written to."""
        [(data_version,)] = self.query("PRAGMA data_version")
        if data_version != self._data_version:
            self._labels = LabelIndex(self.query("SELECT label, name FROM labels"), self._is_rare)
            self._size_indexes, self._short = None, {}
            self._data_version = data_version
            self.seen_version = self.version()
        return self._labels

    def vocabulary(self, sql: str, values: Sequence[Any]) -> dict[str, int]:
        """An answer from `temp.vocabulary`: the words of the index, each with the number of messages that have it."""
        if not self._has_vocabulary:
            self._connection.execute("PRAGMA query_only = OFF")  # what is made is this connection's own
            self._connection.execute("CREATE VIRTUAL TABLE temp.vocabulary USING fts5vocab (main, search, row)")
            self._connection.execute("PRAGMA query_only = ON")
            self._has_vocabulary = True
        return dict(self.query(sql, values))

    def indexes_of(self, larger: Iterable[int]) -> tuple[SizeIndex, ...]:
        """For each of these sizes the shortest index that has all larger messages; as of the last call of `labels`."""
        if self._size_indexes is None:
            self._size_indexes = self.size_indexes()
        fitting = {
            one for size in larger for one in islice((one for one in self._size_indexes if one[0] <= size + 1), 1)
        }
        return tuple(SizeIndex(name, least, self._is_short(name, least)) for least, name in sorted(fitting))

    def _is_short(self, name: str, least: int) -> bool:
        if name not in self._short:
            beyond = f"SELECT 1 FROM messages INDEXED BY {name} WHERE size >= {least} LIMIT 1 OFFSET ?"
            self._short[name] = not self.query(beyond, (_SHORT,))
        return self._short[name]

    def _is_rare(self, label: int) -> bool:
        found = self.query("SELECT 1 FROM message_labels WHERE label = ? LIMIT ?", (label, _RARE + 1))
        return len(found) <= _RARE


class Shards(Protocol):
    def names(self, accounts: Sequence[str] | None) -> list[ShardName]:
        """The shards of these accounts, or of all."""

    def reader(self, name: ShardName) -> AbstractContextManager[SearchReader]:
        """A reader for one thread, to be given back soon."""

    def close(self) -> None:
        """Close every reader."""


class ShardFolder:
    """The shards below the archive's folder. Readers stay open between searches and go from thread to thread."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._idle: dict[ShardName, list[SearchReader]] = {}  # the shard used last is last
        self._idle_count = 0
        self._lock = threading.Lock()
        self._is_closed = False

    def names(self, accounts: Sequence[str] | None) -> list[ShardName]:
        if self._is_closed:
            raise Retryable("The search is being closed.")
        if accounts is None:
            return shards_on_disk(self._root)
        wanted = {account_name(account) for account in accounts}
        return [name for account in sorted(wanted) for name in shards_on_disk(self._root, account)]

    def reader(self, name: ShardName) -> AbstractContextManager[SearchReader]:
        return _Lent(self, self._take(name))

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, {}
        for readers in idle.values():
            for reader in readers:
                reader.close()

    def _take(self, name: ShardName) -> SearchReader:
        reader = self._idle_one(name)
        if reader is not None and reader.is_of_this_file():
            return reader
        if reader is not None:
            reader.close()
        return SearchReader(self._root, name)

    def _idle_one(self, name: ShardName) -> SearchReader | None:
        with self._lock:
            idle = self._idle.get(name)
            if not idle:
                return None
            self._idle_count -= 1
            return idle.pop()

    def give_back(self, reader: SearchReader) -> None:
        """Keep it for the next search, and let go of what has been idle for the longest time."""
        with self._lock:
            idle = self._idle.pop(reader.name, [])
            idle.append(reader)
            self._idle[reader.name] = idle
            self._idle_count += 1
            surplus = self._idle_count - (0 if self._is_closed else _MOST_IDLE)
            released = [self._oldest() for _ in range(surplus)] if surplus > 0 else ()
        for old in released:
            old.close()

    def _oldest(self) -> SearchReader:
        name = next(name for name, readers in self._idle.items() if readers)
        self._idle_count -= 1
        return self._idle[name].pop(0)


class _Lent:
    """A reader on loan; one that failed is closed and not given back."""

    __slots__ = ("_folder", "_reader")

    def __init__(self, folder: ShardFolder, reader: SearchReader) -> None:
        self._folder = folder
        self._reader = reader

    def __enter__(self) -> SearchReader:
        return self._reader

    def __exit__(self, kind: type[BaseException] | None, *details: object) -> None:
        if kind is not None:
            self._reader.close()
        else:
            self._folder.give_back(self._reader)


def _identity(path: str) -> tuple[int, int] | None:
    """Which file stands under a path; None if there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino

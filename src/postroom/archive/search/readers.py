"""The shards that a search may ask, and a pool of readers, each lent to one thread at a time."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

from postroom.archive.layout import ShardName, account_name
from postroom.archive.search.folding import LabelIndex
from postroom.archive.shards.reader import ShardReader, shards_on_disk
from postroom.domain.errors import BadInput, PostroomError, Retryable

_MOST_IDLE = 128  # each holds a few open files
_CACHE_KIB = 4_096
_RARE = 256
_STEPS = 10_000


def _never() -> bool:
    return False


class SearchReader(ShardReader):
    """A shard as a search reads it."""

    def __init__(self, root: Path, name: ShardName) -> None:
        super().__init__(root, name)
        self._file = _identity(self._path)
        self._connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        self._labels = LabelIndex(())
        self._version: object = None
        self._is_late: Callable[[], bool] = _never
        self._connection.set_progress_handler(lambda: self._is_late(), _STEPS)

    def is_of_this_file(self) -> bool:
        """False: another file stands under the shard's name now, because it was rebuilt."""
        return self._file == _identity(self._path)

    def give_up_when(self, is_late: Callable[[], bool]) -> None:
        """Break a query off as soon as this says so."""
        self._is_late = is_late

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        try:
            return super().query(sql, parameters)
        except PostroomError as error:
            if getattr(error.__cause__, "sqlite_errorcode", None) == sqlite3.SQLITE_INTERRUPT:
                raise BadInput("query", "this takes too long; narrow it, with dates for example") from None
            raise

    def labels(self) -> LabelIndex:
        """The shard's labels; read again only after the shard was written to."""
        version = self.query("PRAGMA data_version")
        if version != self._version:
            self._labels = LabelIndex(self.query("SELECT label, name FROM labels"), self._is_rare)
            self._version = version
        return self._labels

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

    @contextmanager
    def reader(self, name: ShardName) -> Iterator[SearchReader]:
        reader = self._take(name)
        try:
            yield reader
        except BaseException:
            reader.close()
            raise
        self._give_back(reader)

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

    def _give_back(self, reader: SearchReader) -> None:
        """Keep it for the next search, and let go of what has been idle for the longest time."""
        with self._lock:
            self._idle[reader.name] = [*self._idle.pop(reader.name, ()), reader]
            self._idle_count += 1
            surplus = [self._oldest() for _ in range(self._idle_count - (0 if self._is_closed else _MOST_IDLE))]
        for old in surplus:
            old.close()

    def _oldest(self) -> SearchReader:
        name = next(name for name, readers in self._idle.items() if readers)
        self._idle_count -= 1
        return self._idle[name].pop(0)


def _identity(path: Path) -> tuple[int, int] | None:
    """Which file stands under a path; None if there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino

"""What an archive must offer to be put through the contract in `tests/integration/archive/test_store.py`.

A new backend joins by an entry in `BACKENDS`: a function that is given an empty folder of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

from postroom.archive.model import ArchivedMessage, IncomingMail, Stored
from postroom.archive.reading import ArchiveReader
from postroom.archive.search import Count, Page, Search
from postroom.archive.store import Archive


class Storing(Protocol):
    """The way in. `Archive` says what each of these promises."""

    def store(self, email: str, mails: Sequence[IncomingMail]) -> list[Stored]: ...

    def known_gmail_ids(self, email: str, gmail_ids: Sequence[str]) -> set[str]: ...

    def set_labels(self, email: str, labels: Mapping[str, frozenset[str]]) -> set[str]: ...

    def mark_deleted(self, email: str, gmail_ids: Sequence[str], when: datetime) -> set[str]: ...


class Reading(Protocol):
    """The way out: `ArchiveReader`."""

    def message(self, email: str, key: str) -> ArchivedMessage | None: ...

    def raw(self, email: str, key: str) -> bytes | None: ...

    def count(self, email: str | None = None) -> int: ...


class Searching(Protocol):
    """`Search`, as far as the contract asks."""

    def search(self, query: str, *, accounts: Sequence[str] | None = None, limit: int = 20) -> Page: ...

    def count(self, query: str, *, accounts: Sequence[str] | None = None) -> Count: ...


class Backend(Protocol):
    """One archive, which can be opened again and again, and be read while it is open for writing."""

    def open(self) -> AbstractContextManager[Storing]: ...

    def read(self) -> AbstractContextManager[Reading]: ...

    def search(self) -> AbstractContextManager[Searching]: ...


@dataclass(frozen=True, slots=True)
class SqliteShards:
    root: Path

    def open(self) -> Archive:
        return Archive(self.root)

    def read(self) -> ArchiveReader:
        return ArchiveReader(self.root)

    def search(self) -> Search:
        return Search(self.root)


BACKENDS: Mapping[str, Callable[[Path], Backend]] = {"sqlite": SqliteShards}

"""The list of shards that should exist, kept apart from them so that a missing shard is noticed, and the shards on
disk.

Counts are written after the shard's own commit, so they never claim more than is on disk.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from postroom.archive.messages import ShardName, path_of
from postroom.archive.shards.reader import ShardReader, shards_on_disk
from postroom.archive.shards.shard_file import is_damage, storage_error
from postroom.archive.status import ShardInfo
from postroom.domain.errors import Fatal, PostroomError

_TABLES = """
    CREATE TABLE IF NOT EXISTS shards (
        account TEXT NOT NULL,
        year INTEGER NOT NULL,
        part INTEGER NOT NULL,
        messages INTEGER NOT NULL DEFAULT 0,    -- at least so many are in it
        lost INTEGER NOT NULL DEFAULT 0,        -- known to have been in it, and not recovered
        PRIMARY KEY (account, year, part)
    ) WITHOUT ROWID
"""


@dataclass(frozen=True, slots=True)
class ShardRecord:
    name: ShardName
    messages: int
    lost: int


class ShardCatalogue:
    def __init__(self, root: Path) -> None:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._file = root / "catalogue.db"
        with self._errors_mapped():
            self._connection = sqlite3.connect(self._file, isolation_level=None, timeout=30, check_same_thread=False)
        try:
            for statement in ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL", _TABLES):
                self._execute(statement)
        except BaseException:
            self._connection.close()
            raise

    def register(self, name: ShardName) -> None:
        self._execute(
            "INSERT OR IGNORE INTO shards (account, year, part) VALUES (?, ?, ?)", (name.account, name.year, name.part)
        )

    def counted(self, name: ShardName, messages: int, expected: int = 0) -> None:
        """Record how many messages a shard holds. Fewer than before, or than expected, is a loss and stays recorded."""
        self.register(name)
        self._execute(
            "UPDATE shards SET lost = lost + max(max(messages, ?) - ?, 0), messages = ? "
            "WHERE account = ? AND year = ? AND part = ?",
            (expected, messages, messages, name.account, name.year, name.part),
        )

    def settle_lost(self, account: str) -> None:
        self._execute("UPDATE shards SET lost = 0 WHERE account = ? AND lost > 0", (account,))

    def record(self, name: ShardName) -> ShardRecord:
        return next((known for known in self.shards(name.account) if known.name == name), ShardRecord(name, 0, 0))

    def shards(self, account: str | None = None) -> Iterator[ShardRecord]:
        """All shards that should exist, by account and date."""
        rows = self._execute(
            "SELECT account, year, part, messages, lost FROM shards WHERE ? IS NULL OR account = ? "
            "ORDER BY account, year, part",
            (account, account),
        )
        for owner, year, part, messages, lost in rows:
            yield ShardRecord(ShardName(owner, year, part), messages, lost)

    def close(self) -> None:
        self._connection.close()

    def _execute(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        with self._errors_mapped():
            return self._connection.execute(sql, values).fetchall()

    @contextmanager
    def _errors_mapped(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            if is_damage(error):
                raise Fatal(
                    f"{self._file} is damaged ({error}). Move it away: a new one is made of the shards that are there. "
                    "Shards that are gone it cannot miss."
                ) from error
            raise storage_error(error, str(self._file)) from error


def settle_lost(root: Path, account: str) -> None:
    """Everything that the source has is stored again."""
    catalogue = ShardCatalogue(root)
    try:
        catalogue.settle_lost(account)
    finally:
        catalogue.close()


def shards_of(root: Path, account: str) -> list[ShardInfo]:
    """Those that should be there and those that are, newest first."""
    catalogue = ShardCatalogue(root)
    try:
        known = {record.name: record for record in catalogue.shards(account)}
    finally:
        catalogue.close()
    names = sorted({*known, *shards_on_disk(root, account)}, reverse=True)
    return [_shard(root, name, known[name].lost if name in known else 0) for name in names]


def _shard(root: Path, name: ShardName, lost: int) -> ShardInfo:
    """One that cannot be read is shown as such, and hides no other."""
    size = _size(path_of(root, name))
    if size is None:
        return ShardInfo(name.filename, name.year, 0, lost, None, "The file is missing. Restore it from a backup.")
    try:
        return ShardInfo(name.filename, name.year, _count(root, name), lost, size, None)
    except PostroomError as error:
        return ShardInfo(name.filename, name.year, 0, lost, size, error.message)


def _count(root: Path, name: ShardName) -> int:
    shard = ShardReader(root, name)
    try:
        return int(shard.query("SELECT count(*) FROM messages")[0][0])
    finally:
        shard.close()


def _size(path: Path) -> int | None:
    try:
        journal = path.with_name(path.name + "-wal")
        return path.stat().st_size + (journal.stat().st_size if journal.exists() else 0)
    except FileNotFoundError:
        return None

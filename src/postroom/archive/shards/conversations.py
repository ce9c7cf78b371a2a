"""The index of conversations of a file archive: `conversations.db` beside the catalogue. It is made from the shards, so
a missing, damaged or older file is made anew, and no copy of it is kept in backups.

Any process may write to it, since it holds nothing that the shards do not. A shard whose file has not changed since it
was indexed whole is not looked at.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

from postroom.archive.conversations.facts import ConversationFacts, StoredHead, facts_of, head_of
from postroom.archive.conversations.forest import TABLES, ConversationCounts, ConversationForest
from postroom.archive.messages import ShardName, path_of
from postroom.archive.shards.reader import ShardReader, shards_on_disk
from postroom.archive.shards.shard_file import is_damage, storage_error, uri_path
from postroom.domain.errors import Fatal, PostroomError, Retryable
from postroom.telemetry import logs

log = logs.get(__name__)
T = TypeVar("T")

CONVERSATIONS_FILE = "conversations.db"
SCHEMA = "conversations"
"""Under which a shard's reader sees the index."""
_APPLICATION_ID = 0x506F7343  # "PosC"
_VERSION = 1
_BUSY_TIMEOUT_S = 30.0
_WAITING = f"""
    SELECT m.id, m.thread_id, m.date_ms, m.sha256, raw.codec, raw.data,
        (SELECT json_group_array(l.name) FROM message_labels ml JOIN labels l USING (label) WHERE ml.id = m.id)
    FROM messages m LEFT JOIN raw ON raw.id = m.id
    LEFT JOIN {SCHEMA}.members c ON c.place = ? AND c.id = m.id
    WHERE m.id > ? AND (c.id IS NULL OR c.thread <> m.thread_id OR c.sha256 <> m.sha256)
    ORDER BY m.id LIMIT ?
"""


class DamagedIndex(Retryable):
    """The index of conversations is damaged. It is made anew from the archive, which takes a while."""


class _ForestFile:
    """`ForestTables` over a connection."""

    prefix = ""
    mark = "?"

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self._path = path

    def query(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        try:
            return self._connection.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            raise self._error(error) from error

    def many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        try:
            self._connection.executemany(sql, rows)
        except sqlite3.Error as error:
            raise self._error(error) from error

    def is_whole(self) -> bool:
        return self.query("PRAGMA quick_check(1)") == [("ok",)]

    def _error(self, error: sqlite3.Error) -> PostroomError:
        if is_damage(error):
            return DamagedIndex(f"{self._path} is damaged ({error}). It is made anew from the archive.")
        return storage_error(error, str(self._path))


class FileConversationIndex:
    """The index, for adding to it. Use from one thread."""

    def __init__(self, root: Path) -> None:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._root = root
        self._path = root / CONVERSATIONS_FILE
        self._connection = _opened(self._path)
        self._file = _ForestFile(self._connection, self._path)
        self._forest = ConversationForest(self._file)

    def waiting(self, limit: int) -> Iterator[list[ConversationFacts]]:
        """Messages that are not indexed as they are now, so many at a time; the newest years of each account first."""
        for name in reversed(shards_on_disk(self._root)):
            stamp = _stamp(path_of(self._root, name))
            if self._forest.stamp(str(name)) == stamp:
                continue
            try:
                yield from self._waiting_in(name, limit)
            except Fatal as error:
                if not self._file.is_whole():
                    raise DamagedIndex(f"{self._path} is damaged. It is made anew from the archive.") from error
                log.warning("conversations.shard_left_out", shard=str(name), problem=error.message)
                continue
            self._forest.set_stamp(str(name), stamp)

    def _waiting_in(self, name: ShardName, limit: int) -> Iterator[list[ConversationFacts]]:
        with closing(ShardReader(self._root, name)) as shard:
            attach(shard, self._root)
            last = -1
            while rows := shard.query(_WAITING, (str(name), last, limit)):
                yield [facts_of(_stored(name, row)) for row in rows]
                last = rows[-1][0]

    def add(self, messages: Sequence[ConversationFacts]) -> int:
        self._file.query("BEGIN IMMEDIATE")
        try:
            added = self._forest.add(messages)
            self._file.query("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise
        return added

    def counts(self) -> ConversationCounts:
        return self._forest.counts()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._connection.close()
        if error[0] is DamagedIndex:
            _remove(self._path)  # the next to open it makes it anew


@contextmanager
def _opened_forest(root: Path) -> Iterator[ConversationForest | None]:
    """For reading; None while there is no usable index."""
    path = root / CONVERSATIONS_FILE
    try:
        connection = sqlite3.connect(
            f"file:{uri_path(path)}?mode=ro", uri=True, isolation_level=None, timeout=_BUSY_TIMEOUT_S
        )
    except sqlite3.Error:
        yield None
        return
    with closing(connection):
        yield ConversationForest(_ForestFile(connection, path)) if _is_usable(connection) else None


def asked_index(root: Path, ask: Callable[[ConversationForest], T], otherwise: T) -> T:
    """What the index answers; a missing or damaged one is no reason to fail, since the next run makes it anew."""
    with _opened_forest(root) as forest:
        if forest is None:
            return otherwise
        try:
            return ask(forest)
        except DamagedIndex as error:
            log.warning("conversations.damaged", problem=error.message)
            return otherwise


def attach(shard: ShardReader, root: Path) -> bool:
    """Let a shard's queries use the index. False while there is no usable one."""
    path = root / CONVERSATIONS_FILE
    if not path.exists():
        return False
    try:
        shard.query(f"ATTACH ? AS {SCHEMA}", (f"file:{uri_path(path)}?mode=ro",))
        rows = shard.query(f"PRAGMA {SCHEMA}.user_version")
        return rows == [(_VERSION,)] and shard.query(f"PRAGMA {SCHEMA}.application_id") == [(_APPLICATION_ID,)]
    except Fatal:
        return False


def _stored(name: ShardName, row: Sequence[Any]) -> StoredHead:
    row_id, thread, date_ms, sha256, codec, data, labels = row
    head = b"" if codec is None else head_of(codec, data)
    return StoredHead(str(name), row_id, name.account, thread, date_ms, sha256, head, json.loads(labels))


def _opened(path: Path) -> sqlite3.Connection:
    """The file with its tables. One that is damaged, or of another version, is removed first: all of it can be had
    from the shards again."""
    for _ in range(2):
        connection: sqlite3.Connection | None = None
        try:
            connection = sqlite3.connect(path, isolation_level=None, timeout=_BUSY_TIMEOUT_S, check_same_thread=False)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")  # what a power failure takes is indexed again
            if not _is_empty(connection) and not _is_usable(connection):
                raise sqlite3.DatabaseError("of another version")
            _make_tables(connection)
            return connection
        except sqlite3.Error as error:
            if connection is not None:
                connection.close()
            if not is_damage(error) and type(error) is not sqlite3.DatabaseError:
                raise storage_error(error, str(path)) from error
        _remove(path)
    raise Fatal(f"{path} cannot be made; check who owns its folder.")


def _remove(path: Path) -> None:
    for file in (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
        file.unlink(missing_ok=True)


def _make_tables(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    for statement in TABLES.format(t="", i="", bytes="BLOB").split(";\n"):
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {_VERSION}")
    connection.execute("COMMIT")


def _is_empty(connection: sqlite3.Connection) -> bool:
    return connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone() is None


def _is_usable(connection: sqlite3.Connection) -> bool:
    try:
        facts = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("user_version", "application_id")]
    except sqlite3.Error:
        return False
    return facts == [_VERSION, _APPLICATION_ID]


def _stamp(path: Path) -> str:
    """Of a shard's file and its log, taken before it is read: a change meanwhile is found the next time."""
    parts = []
    for file in (path, path.with_name(f"{path.name}-wal")):
        try:
            found = file.stat()
        except FileNotFoundError:
            parts.append("none")
        else:
            parts.append(f"{found.st_mtime_ns:x}.{found.st_size:x}" if found.st_size else "none")
    return "-".join(parts)

"""Writes to the file archive: mail is prepared, sent to the shard where it belongs, and reported when it is on disk.

Each shard has one writer on a thread of its own, with a bounded queue before it: a full queue makes the caller wait,
which keeps memory flat. A transaction holds up to 100 messages or 16 MB, of an import up to 200.
"""

from __future__ import annotations

import json
import queue
import sqlite3
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from postroom.archive.coverage import MessageReadings
from postroom.archive.importing.state import ImportState
from postroom.archive.messages import (
    IncomingMail,
    Relabelling,
    ShardName,
    StoredMessage,
    Submission,
    account_name,
    parse_name,
    path_of,
    year_of,
)
from postroom.archive.preparing import PreparedMail, prepare
from postroom.archive.shards.attachment_texts import record_readings
from postroom.archive.shards.catalogue import ShardCatalogue
from postroom.archive.shards.insertion import ShardInsertion
from postroom.archive.shards.name_filter import NameFilter
from postroom.archive.shards.ownership import Ownership
from postroom.archive.shards.reader import ShardReader, shards_on_disk
from postroom.archive.shards.shard_file import (
    is_scattered,
    merge_late,
    merge_segments,
    merges_late,
    open_for_writing,
    storage_error,
    upgrade,
)
from postroom.settings import ArchiveSettings

MESSAGES_PER_COMMIT = 100
MESSAGES_PER_BULK_COMMIT = 200
"""Every commit writes the leaves of the indexes anew that its messages belong to: twice the messages, a quarter fewer
pages. A kill takes back no message that was reported as stored, only work that an import does again."""
BYTES_PER_COMMIT = 16 << 20
_BATCHES_WAITING = 4
_NAMES_AT_ONCE = 10_000
_ROWS_A_LOOKUP = 8
"""To look a message up in all shards costs about as much as to read so many rows of their indexes."""
_IDLE_AFTER_S = 1.0

T = TypeVar("T")
Change = Callable[[sqlite3.Connection, ShardInsertion], T]


class ShardWriter:
    def __init__(self, path: Path, name: ShardName) -> None:
        self.name = name
        self.path = path
        self._connection = open_for_writing(path, name)
        self._insertion = ShardInsertion(self._connection, str(name))
        self._merges_late = merges_late(self._connection)
        self._waiting: queue.Queue[Callable[[], None] | None] = queue.Queue(_BATCHES_WAITING)
        self._thread = threading.Thread(target=self._serve, name=f"shard {name}", daemon=True)
        self._thread.start()

    def store(self, mails: Sequence[PreparedMail], *, bulk: bool = False) -> Future[list[StoredMessage]]:
        """Store these in one transaction (see `portions`); blocks while the queue is full."""
        return self.change(lambda connection, insertion: insertion.put_all(mails), bulk=bulk)

    def change(self, change: Change[T], *, bulk: bool = False) -> Future[T]:
        """Run a change in a transaction of its own; blocks while the queue is full. `bulk`: many more will follow, and
        the index is merged after them."""
        future: Future[T] = Future()
        self._waiting.put(lambda: self._settle(future, lambda: self._in_transaction(change, bulk)))
        return future

    def checkpoint(self) -> None:
        """Move everything from the log into the shard itself, and sync it."""
        future: Future[object] = Future()
        pragma = "PRAGMA wal_checkpoint(TRUNCATE)"
        self._waiting.put(lambda: self._settle(future, lambda: self._connection.execute(pragma).fetchone()))
        future.result()

    def close(self) -> None:
        """Finish what is waiting, then close the file."""
        self._waiting.put(None)
        self._thread.join()

    def _serve(self) -> None:
        while (task := self._next()) is not None:
            task()
        self._connection.close()

    def _next(self) -> Callable[[], None] | None:
        try:
            return self._waiting.get(timeout=_IDLE_AFTER_S)
        except queue.Empty:
            self._connection.execute("PRAGMA shrink_memory")  # an import goes on in other years, and has their caches
            return self._waiting.get()

    def _settle(self, future: Future[T], work: Callable[[], T]) -> None:
        """The caller gets the result or the error; the writer continues with the next request."""
        try:
            future.set_result(work())
        except sqlite3.Error as error:
            future.set_exception(storage_error(error, str(self.path)))
        except Exception as error:
            future.set_exception(error)

    def _in_transaction(self, change: Change[T], bulk: bool) -> T:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            if self._merges_late is not bulk:
                merge_late(self._connection, bulk)
            value = change(self._connection, self._insertion)
            self._connection.execute("COMMIT")
            self._merges_late = bulk
        except BaseException:
            self._insertion.forget()
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise
        return value


def portions(mails: Sequence[PreparedMail], *, bulk: bool = False) -> list[list[PreparedMail]]:
    """Cut into transactions: at most so many messages, and no more bytes unless one message alone has them."""
    most = MESSAGES_PER_BULK_COMMIT if bulk else MESSAGES_PER_COMMIT
    cut: list[list[PreparedMail]] = []
    weight = 0
    for mail in mails:
        adds = mail.weight
        if not cut or len(cut[-1]) >= most or weight + adds > BYTES_PER_COMMIT:
            cut.append([])
            weight = 0
        cut[-1].append(mail)
        weight += adds
    return cut


class KeyedChange(Protocol):
    def __call__(self, connection: sqlite3.Connection, insertion: ShardInsertion, keys: Iterable[str]) -> None: ...


class FileArchiveWriter:
    """The archive below `root`, with the right to write to it. Use from one thread at a time."""

    def __init__(self, root: Path, settings: ArchiveSettings | None = None, purpose: str = "postroom") -> None:
        self.root = root
        self._settings = settings or ArchiveSettings()
        self._ownership = Ownership(root, purpose)
        try:
            self._catalogue = ShardCatalogue(root)
        except BaseException:
            self._ownership.release()
            raise
        for name in shards_on_disk(root):  # one may have been copied here, or be older than the catalogue
            self._catalogue.register(name)
        self._writers: dict[ShardName, ShardWriter] = {}
        self._readers: dict[ShardName, ShardReader] = {}
        self._filters: dict[str, NameFilter] = {}
        self._imported: Counter[str] = Counter()

    def store(self, email: str, mails: Sequence[IncomingMail]) -> list[StoredMessage]:
        """Store messages; when this returns they are on disk. The answers stand in the order of the mail."""
        return self.submit(email, [prepare(mail) for mail in mails]).result()

    def submit(self, email: str, mails: Sequence[PreparedMail], *, bulk: bool = False) -> Submission:
        """Hand mail to the writers without waiting for the disk. Blocks while they are behind."""
        account = account_name(email)
        if bulk and account not in self._filters:
            self._expect_more(account, len(mails))
        by_shard: dict[ShardName, list[int]] = defaultdict(list)
        for number, home in enumerate(self._homes(account, mails)):
            by_shard[home].append(number)
        parts: list[tuple[list[int], Future[list[StoredMessage]]]] = []
        for name, numbers in by_shard.items():
            writer = self._writer(name)
            start = 0
            for portion in portions([mails[number] for number in numbers], bulk=bulk):
                parts.append((numbers[start : start + len(portion)], writer.store(portion, bulk=bulk)))
                start += len(portion)
        return Submission(len(mails), parts)

    def known_gmail_ids(self, email: str, gmail_ids: Sequence[str]) -> set[str]:
        """Which of these are in the archive already, and need not be fetched."""
        return set(self._locate(account_name(email), "key", gmail_ids))

    def some_gmail_ids(self, email: str, count: int) -> list[str]:
        """Of the newest mail that is not marked as deleted at the source."""
        query = (
            "SELECT gmail_id FROM messages WHERE gmail_id IS NOT NULL AND deleted_at_source IS NULL "
            "ORDER BY id DESC LIMIT ?"
        )
        found: list[str] = []
        for name in reversed(shards_on_disk(self.root, account_name(email))):
            found += [gmail_id for (gmail_id,) in self._reader(name).query(query, (count - len(found),))]
            if len(found) >= count:
                break
        return found

    def set_labels(self, email: str, labels: Mapping[str, frozenset[str]]) -> set[str]:
        """Record the labels that messages now have at the source; returns the Gmail ids that are not in the archive."""

        def relabel(connection: sqlite3.Connection, insertion: ShardInsertion, keys: Iterable[str]) -> None:
            for key in keys:
                insertion.set_labels(_row_id(connection, key), labels[key])

        return self._change(account_name(email), list(labels), relabel)

    def change_labels(self, email: str, changes: Sequence[Relabelling]) -> set[str]:
        """Apply what the source says was given and taken, in this order; returns the ids that are not in the archive.

        Done again, it changes nothing.
        """
        by_key: dict[str, list[Relabelling]] = defaultdict(list)
        for each in changes:
            by_key[each.gmail_id].append(each)

        def relabel(connection: sqlite3.Connection, insertion: ShardInsertion, keys: Iterable[str]) -> None:
            for key in keys:
                row_id = _row_id(connection, key)
                for each in by_key[key]:
                    insertion.change_labels(row_id, each.add, each.remove)

        return self._change(account_name(email), list(by_key), relabel)

    def rename_label(self, email: str, old: str, new: str) -> None:
        """Whatever has the old label has the new one instead, in every shard."""
        if old == new:
            return
        futures = [
            self._writer(name).change(lambda connection, insertion: insertion.rename_label(old, new))
            for name in shards_on_disk(self.root, account_name(email))
            if self._reader(name).query("SELECT 1 FROM labels WHERE name = ?", (old,))
        ]
        for future in futures:
            future.result()

    def label_names(self, email: str) -> set[str]:
        """Every label that some message of the account has or had."""
        names = shards_on_disk(self.root, account_name(email))
        return {label for name in names for (label,) in self._reader(name).query("SELECT name FROM labels")}

    def label_members(self, email: str, label: str) -> set[str]:
        """The Gmail ids that have this label, without those that are deleted at the source."""
        query = (
            "SELECT gmail_id FROM messages JOIN message_labels USING (id) JOIN labels USING (label) "
            "WHERE name = ? AND gmail_id IS NOT NULL AND deleted_at_source IS NULL"
        )
        names = shards_on_disk(self.root, account_name(email))
        return {gmail_id for name in names for (gmail_id,) in self._reader(name).query(query, (label,))}

    def mark_deleted(self, email: str, gmail_ids: Sequence[str], when: datetime) -> set[str]:
        """Record that messages were deleted at the source. A mark: nothing is removed here. Returns unknown ids.

        Who is marked already keeps the time of the first mark.
        """

        def mark(connection: sqlite3.Connection, insertion: ShardInsertion, keys: Iterable[str]) -> None:
            connection.executemany(
                "UPDATE messages SET deleted_at_source = coalesce(deleted_at_source, ?) WHERE key = ?",
                [(when.isoformat(), key) for key in keys],
            )

        return self._change(account_name(email), gmail_ids, mark)

    def unmark_deleted(self, email: str, gmail_ids: Sequence[str]) -> set[str]:
        """They are at the source after all. Returns unknown ids."""

        def unmark(connection: sqlite3.Connection, insertion: ShardInsertion, keys: Iterable[str]) -> None:
            connection.executemany(
                "UPDATE messages SET deleted_at_source = NULL WHERE key = ?", [(key,) for key in keys]
            )

        return self._change(account_name(email), gmail_ids, unmark)

    def record_readings(self, email: str, messages: Sequence[MessageReadings]) -> None:
        """Index what was read of attachments, a transaction for each shard."""
        by_shard: dict[ShardName, list[MessageReadings]] = defaultdict(list)
        for each in messages:
            by_shard[parse_name(each.message.shard)].append(each)
        futures = [
            self._writer(name).change(partial(_record, messages=some))
            for name, some in by_shard.items()
            if path_of(self.root, name).exists()
        ]
        for future in futures:
            future.result()

    def improve_index(self, email: str) -> bool:
        """One shard, in one transaction; writing to it waits meanwhile."""
        names = list(reversed(shards_on_disk(self.root, account_name(email))))
        old = [name for name in names if not self._reader(name).is_current()]
        scattered = [name for name in names if name not in old and is_scattered(self._reader(name).segments())]
        if old:
            self._writer(old[0]).change(lambda connection, insertion: upgrade(connection)).result()
        elif scattered:
            self._writer(scattered[0]).change(_merge).result()
        return len(old) + len(scattered) > 1

    def merge_index(self, email: str) -> None:
        """All of the account's shards for which it is time at once, each by its own thread."""
        names = shards_on_disk(self.root, account_name(email))
        merges = [self._writer(name).change(_merge) for name in names if is_scattered(self._reader(name).segments())]
        for merge in merges:
            merge.result()

    def import_positions(self, source: str) -> ImportState:
        return ImportState(self.root, source)

    def checkpoint(self) -> None:
        """Everything stored so far stands in the shards themselves, and the catalogue knows how much that is.

        Only shards with something in their log are touched, among them those that an earlier process left so.
        """
        for name in shards_on_disk(self.root):
            if not _has_log(path_of(self.root, name)):
                continue
            self._writer(name).checkpoint()
            [(count,)] = self._reader(name).query("SELECT count(*) FROM messages")
            self._catalogue.counted(name, count)

    def without(self, name: ShardName, work: Callable[[ShardCatalogue], T]) -> T:
        """Do something with a shard's file that must not be open meanwhile. The next use opens it again."""
        self._filters.pop(name.account, None)
        if (reader := self._readers.pop(name, None)) is not None:
            reader.close()
        if (writer := self._writers.pop(name, None)) is not None:
            writer.close()
        return work(self._catalogue)

    def close(self) -> None:
        """Whatever the last checkpoint says: what was stored is in the log, and the archive is free for the next."""
        try:
            self.checkpoint()
        finally:
            for reader in self._readers.values():
                reader.close()
            for writer in self._writers.values():  # last, so that a shard is one file again
                writer.close()
            self._catalogue.close()
            self._ownership.release()

    def __enter__(self) -> FileArchiveWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _homes(self, account: str, mails: Sequence[PreparedMail]) -> list[ShardName]:
        """Where each message belongs: where it is already, else the shard of its year.

        A Message-ID counts only together with equal bytes: else a sender could file new mail among the old.
        """
        keys, message_ids = [mail.key for mail in mails], [mail.message_id for mail in mails]
        by_key = self._locate(account, "key", self._possible(account, keys))
        twins = self._locate_twins(account, self._possible(account, message_ids))
        years = [year_of(mail.date) for mail in mails]
        open_parts = {year: self._open_part(account, year) for year in set(years)}
        return [
            by_key.get(mail.key) or twins.get((mail.message_id, mail.sha256)) or open_parts[year]
            for mail, year in zip(mails, years, strict=True)
        ]

    def _possible(self, account: str, names: Sequence[str]) -> Sequence[str]:
        """Those of these keys or Message-IDs that shards of the account may have. It will soon have the others too."""
        return self._filters[account].add(names) if account in self._filters else names

    def _expect_more(self, account: str, count: int) -> None:
        """Once an import has cost about as much as reading all names, read them, and ask the shards no more about new
        mail."""
        self._imported[account] += count
        stored = sum(record.messages for record in self._catalogue.shards(account))
        if self._imported[account] * _ROWS_A_LOOKUP < stored:
            return
        for name, writer in self._writers.items():
            if name.account == account:
                writer.change(lambda connection, insertion: None).result()  # what was submitted before is in the shard
        names = NameFilter()
        for name in shards_on_disk(self.root, account):
            for column in ("key", "message_id"):
                names.add(self._all_names(self._reader(name), column))
        self._filters[account] = names

    def _all_names(self, reader: ShardReader, column: str) -> Iterator[str]:
        last = ""
        query = f"SELECT {column} FROM messages WHERE {column} > ? ORDER BY {column} LIMIT {_NAMES_AT_ONCE}"
        while rows := reader.query(query, (last,)):
            yield from (name for (name,) in rows)
            last = rows[-1][0]

    def _locate(self, account: str, column: str, values: Sequence[str]) -> dict[str, ShardName]:
        rows = self._rows(account, column, column, values)
        return {value: name for name, (value,) in rows}

    def _locate_twins(self, account: str, message_ids: Sequence[str]) -> dict[tuple[str, bytes], ShardName]:
        rows = self._rows(account, "message_id, sha256", "message_id", message_ids)
        return {(message_id, sha256): name for name, (message_id, sha256) in rows}

    def _rows(
        self, account: str, columns: str, column: str, values: Sequence[str]
    ) -> Iterator[tuple[ShardName, tuple[Any, ...]]]:
        """From every shard of the account, these columns of the messages whose `column` is among the values."""
        if not values:
            return
        wanted = json.dumps(list(values))
        query = f"SELECT {columns} FROM messages WHERE {column} IN (SELECT value FROM json_each(?))"
        for name in shards_on_disk(self.root, account):
            for row in self._reader(name).query(query, (wanted,)):
                yield name, row

    def _change(self, account: str, keys: Sequence[str], change: KeyedChange) -> set[str]:
        """Apply a change to the messages of these keys, shard by shard; returns the keys that no shard has."""
        homes = self._locate(account, "key", keys)
        by_shard: dict[ShardName, list[str]] = defaultdict(list)
        for key, name in homes.items():
            by_shard[name].append(key)
        futures = [self._writer(name).change(partial(change, keys=some)) for name, some in by_shard.items()]
        for future in futures:
            future.result()
        return set(keys) - set(homes)

    def _open_part(self, account: str, year: int) -> ShardName:
        """The part of a year that still takes mail: the last one, or a new one if that is full."""
        parts = [name for name in shards_on_disk(self.root, account) if name.year == year]
        last = parts[-1] if parts else ShardName(account, year)
        path = path_of(self.root, last)
        if path.exists() and path.stat().st_size >= self._settings.shard_bytes:
            return ShardName(account, year, last.part + 1)
        return last

    def _writer(self, name: ShardName) -> ShardWriter:
        if name not in self._writers:
            self._writers[name] = ShardWriter(path_of(self.root, name), name)
            self._catalogue.register(name)
        return self._writers[name]

    def _reader(self, name: ShardName) -> ShardReader:
        if name not in self._readers:
            self._readers[name] = ShardReader(self.root, name)
        return self._readers[name]


def _merge(connection: sqlite3.Connection, insertion: ShardInsertion) -> None:
    merge_segments(connection)


def _record(connection: sqlite3.Connection, insertion: ShardInsertion, messages: Sequence[MessageReadings]) -> None:
    record_readings(connection, messages)


def _row_id(connection: sqlite3.Connection, key: str) -> int:
    return int(connection.execute("SELECT id FROM messages WHERE key = ?", (key,)).fetchone()[0])


def _has_log(shard: Path) -> bool:
    try:
        return shard.with_name(f"{shard.name}-wal").stat().st_size > 0
    except FileNotFoundError:
        return False

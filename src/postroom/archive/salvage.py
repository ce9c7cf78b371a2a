"""Rebuilds a damaged shard from what is left of it, and keeps count of what is not.

The damaged file is moved aside whole, never changed. Every message whose bytes still match their hash is stored again,
through the same code that stores new mail; the catalogue remembers how many could not be.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from postroom.archive.catalogue import Catalogue
from postroom.archive.layout import ShardName, parse_name, path_of
from postroom.archive.model import ArchivedMessage, IncomingMail
from postroom.archive.ownership import Ownership
from postroom.archive.preparing import prepare
from postroom.archive.reading import ShardReader, shards_on_disk
from postroom.archive.shard import uri_path
from postroom.archive.sync_mark import forget_mark
from postroom.archive.verify import Flaw, Report
from postroom.archive.writer import ShardWriter, portions
from postroom.domain.errors import PostroomError

_AT_ONCE = 100
_LARGEST_ID = (1 << 63) - 1
_REBUILT_AWAY = (Flaw.SHARD_DAMAGED, Flaw.BYTES_WRONG, Flaw.INDEX_WRONG)
_LOST = (Flaw.SHARD_MISSING, Flaw.SHARD_SHORT)


@dataclass(frozen=True, slots=True)
class Salvaged:
    shard: str
    recovered: int
    lost: int
    quarantine: Path


@dataclass(frozen=True, slots=True)
class Repair:
    """What a repair did."""

    rebuilt: list[Salvaged]
    to_sync: list[str]
    """Accounts that lost mail: their next sync lists everything again, and fetches what is missing."""


@dataclass(frozen=True, slots=True)
class _Found:
    """A message of the damaged shard whose bytes are sound."""

    message: ArchivedMessage
    raw: bytes

    def incoming(self) -> IncomingMail:
        return IncomingMail(
            raw=self.raw,
            provenance=self.message.provenance,
            gmail_id=self.message.gmail_id,
            thread_id=self.message.thread_id,
            labels=frozenset(self.message.labels),
            received=self.message.date,
        )


def repair(root: Path, report: Report) -> Repair:
    """Rebuild every shard that a verification found damaged."""
    broken = {finding.shard for finding in report.findings if finding.flaw in _REBUILT_AWAY}
    salvaged = [rebuild(root, name) for name in shards_on_disk(root) if str(name) in broken]
    lacking = {finding.shard for finding in report.findings if finding.flaw in _LOST}
    lacking |= {rebuilt.shard for rebuilt in salvaged if rebuilt.lost}
    accounts = sorted({parse_name(shard).account for shard in lacking})
    return Repair(salvaged, [account for account in accounts if forget_mark(root, account)])


def rebuild(root: Path, name: ShardName) -> Salvaged:
    """Move the shard into quarantine and make a new one of everything that can still be read."""
    ownership = Ownership(root, f"postroom verify --repair ({name})")
    try:
        catalogue = Catalogue(root)
    except BaseException:
        ownership.release()
        raise
    try:
        before = catalogue.record(name).lost
        quarantine = _move_aside(root, name)
        recovered = _store_again(root, name, quarantine)
        catalogue.counted(name, recovered, expected=_count(quarantine))
        return Salvaged(str(name), recovered, catalogue.record(name).lost - before, quarantine)
    finally:
        catalogue.close()
        ownership.release()


def _move_aside(root: Path, name: ShardName) -> Path:
    moment = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
    folder = root / "quarantine" / f"{name.account}-{name.filename.removesuffix('.db')}-{moment}"
    folder.mkdir(mode=0o700, parents=True)
    path = path_of(root, name)
    for suffix in ("-wal", "-shm", ""):  # the shard itself last: until then a crash leaves it where it was
        part = path.with_name(path.name + suffix)
        if part.exists():
            shutil.move(part, folder / part.name)
    return folder / path.name


def _store_again(root: Path, name: ShardName, damaged: Path) -> int:
    writer = ShardWriter(path_of(root, name), name)
    try:
        recovered = 0
        batch: list[_Found] = []
        for found in _readable(damaged, name):
            batch.append(found)
            if len(batch) == _AT_ONCE:
                recovered += _flush(writer, batch)
        return recovered + _flush(writer, batch)
    finally:
        writer.checkpoint()
        writer.close()


def _flush(writer: ShardWriter, batch: list[_Found]) -> int:
    marks = [(found.message.deleted_at_source, found.message.key) for found in batch]
    deleted = [(when.isoformat(), key) for when, key in marks if when is not None]
    futures = [writer.store(portion) for portion in portions([prepare(found.incoming()) for found in batch])]
    batch.clear()
    recovered = sum(len(future.result()) for future in futures)
    statement = "UPDATE messages SET deleted_at_source = ? WHERE key = ?"
    writer.change(lambda connection, _: connection.executemany(statement, deleted)).result()
    return recovered


def _readable(damaged: Path, name: ShardName) -> Iterator[_Found]:
    """Every message whose bytes still match their hash. Nothing found in a damaged file is trusted without that."""
    try:
        reader = ShardReader(damaged.parent, name, damaged)
    except PostroomError:
        return
    try:
        for row_id in _row_ids(reader):
            try:
                [key] = reader.query("SELECT key FROM messages WHERE id = ?", (row_id,))[0]
                message, raw = reader.message(key), reader.raw(row_id)
            except (PostroomError, IndexError, ValueError, TypeError):
                continue  # it is counted as lost
            if message is not None:
                yield _Found(message, raw)
    finally:
        reader.close()


def _row_ids(reader: ShardReader) -> Iterator[int]:
    """From the oldest on to the first damage, then from the newest back to it."""
    seen: set[int] = set()
    for comparison, order, start in ((">", "ASC", -1), ("<", "DESC", _LARGEST_ID)):
        last = start
        while True:
            try:
                rows = reader.query(
                    f"SELECT id FROM messages WHERE id {comparison} ? ORDER BY id {order} LIMIT {_AT_ONCE}", (last,)
                )
            except PostroomError:
                break
            fresh = [row_id for (row_id,) in rows if row_id not in seen]
            yield from fresh
            seen.update(fresh)
            if not fresh:
                break
            last = rows[-1][0]


def _count(damaged: Path) -> int:
    """How many messages the damaged file itself admits to, by whichever of its trees can still be walked."""
    connection = sqlite3.connect(f"file:{uri_path(damaged)}?mode=ro", uri=True)
    counts = [0]
    for table in ("messages", "raw", "texts"):
        try:
            counts.append(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])
        except sqlite3.Error:
            counts.append(0)
    connection.close()
    return max(counts)

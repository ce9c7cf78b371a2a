"""Proves the file archive, and rebuilds damaged shards.

`verify` only reads, and may run beside the owner; it then leaves out the full-text index, whose check takes the
write lock. Each problem is a finding and none stops the run. `repair` moves a damaged file aside unchanged, and
stores every message whose bytes still match their hash again; the catalogue remembers how many were lost.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from postroom.archive.messages import (
    LARGEST_ID,
    ArchivedMessage,
    IncomingMail,
    ShardName,
    account_name,
    parse_name,
    path_of,
)
from postroom.archive.preparing import prepare
from postroom.archive.shards.catalogue import ShardCatalogue, ShardRecord
from postroom.archive.shards.ownership import Ownership, forget_mark
from postroom.archive.shards.reader import ShardReader, shards_on_disk
from postroom.archive.shards.shard_file import teach_segmenting, uri_path
from postroom.archive.shards.writer import FileArchiveWriter, ShardWriter, portions
from postroom.archive.status import (
    ArchiveFinding,
    ArchiveFlaw,
    OwnedElsewhere,
    Progress,
    Repair,
    Salvaged,
    VerifyReport,
)
from postroom.domain.errors import PostroomError

_CHECKED_AT_ONCE = 500


def verify(root: Path, email: str | None = None, progress: Progress = lambda done: None) -> VerifyReport:
    """Check everything; `progress` is called with the number of messages checked since its last call."""
    report = VerifyReport()
    try:
        ownership = Ownership(root, "postroom verify")
    except OwnedElsewhere as error:
        report.notes.append(
            f"Every byte is checked; the search index is left out, because {error.writer} has the archive open. "
            "That is as it should be. To have the index checked too, run this while Postroom is stopped."
        )
        _verify_all(root, email, report, progress, check_index=False)
        return report
    try:
        _verify_all(root, email, report, progress, check_index=True)
    finally:
        ownership.release()
    return report


def _verify_all(root: Path, email: str | None, report: VerifyReport, progress: Progress, *, check_index: bool) -> None:
    account = None if email is None else account_name(email)
    catalogued = _catalogued(root, account)
    on_disk = set(shards_on_disk(root, account))
    for name in sorted(on_disk | set(catalogued)):
        record = catalogued.get(name, ShardRecord(name, 0, 0))
        if name not in on_disk:
            detail = f"the file is gone, and with it at least {record.messages} messages"
            report.findings.append(ArchiveFinding(ArchiveFlaw.SHARD_MISSING, str(name), detail))
            continue
        report.shards += 1
        report.findings += _verify_shard(root, record, report, progress, check_index=check_index)


def is_damaged(root: Path, name: ShardName) -> str | None:
    """What SQLite itself finds wrong with a shard's file; None if nothing."""
    try:
        reader = ShardReader(root, name)
    except PostroomError as error:
        return error.message
    try:
        complaints = [str(line) for (line,) in reader.query("PRAGMA integrity_check(5)")]
    except PostroomError as error:
        return error.message
    finally:
        reader.close()
    return None if complaints == ["ok"] else "; ".join(" ".join(complaints).splitlines()[:3])


def _catalogued(root: Path, account: str | None) -> dict[ShardName, ShardRecord]:
    if not (root / "catalogue.db").exists():
        return {}
    catalogue = ShardCatalogue(root)
    try:
        return {record.name: record for record in catalogue.shards(account)}
    finally:
        catalogue.close()


def _verify_shard(
    root: Path, record: ShardRecord, report: VerifyReport, progress: Progress, *, check_index: bool
) -> Iterator[ArchiveFinding]:
    shard = str(record.name)
    if record.lost:
        detail = f"{record.lost} messages were lost when this shard was rebuilt; fetch them again from the source"
        yield ArchiveFinding(ArchiveFlaw.LOST_BEFORE, shard, detail)
    damage = is_damaged(root, record.name)
    if damage is not None:
        detail = f"{damage}; `postroom verify --repair` rebuilds it from what is left"
        yield ArchiveFinding(ArchiveFlaw.SHARD_DAMAGED, shard, detail)
        return
    reader = ShardReader(root, record.name)
    try:
        yield from _verify_messages(reader, report, progress)
        [(messages, indexed)] = reader.query("SELECT (SELECT count(*) FROM messages), (SELECT count(*) FROM texts)")
        if messages < record.messages:
            detail = f"{messages} messages are there, at least {record.messages} were stored"
            yield ArchiveFinding(ArchiveFlaw.SHARD_SHORT, shard, detail)
        if indexed != messages:
            yield ArchiveFinding(
                ArchiveFlaw.INDEX_WRONG, shard, f"{messages} messages, but texts of {indexed} in the search index"
            )
    finally:
        reader.close()
    if check_index and (complaint := _index_complaint(path_of(root, record.name))):
        yield ArchiveFinding(ArchiveFlaw.INDEX_WRONG, shard, complaint)


def _verify_messages(reader: ShardReader, report: VerifyReport, progress: Progress) -> Iterator[ArchiveFinding]:
    last = -1
    while rows := reader.query(
        "SELECT id, key, size FROM messages WHERE id > ? ORDER BY id LIMIT ?", (last, _CHECKED_AT_ONCE)
    ):
        for row_id, key, size in rows:
            try:
                reader.raw(row_id)
            except PostroomError as error:
                yield ArchiveFinding(ArchiveFlaw.BYTES_WRONG, str(reader.name), error.message, key)
            report.bytes += size
        report.messages += len(rows)
        progress(len(rows))
        last = rows[-1][0]


def _index_complaint(path: Path) -> str | None:
    """What FTS5 finds wrong with its index, compared with the texts that it was made from."""
    connection = sqlite3.connect(f"file:{uri_path(path)}?mode=rw", uri=True, isolation_level=None)
    teach_segmenting(connection)
    try:
        connection.execute("INSERT INTO search (search, rank) VALUES ('integrity-check', 1)")
    except sqlite3.Error as error:
        return f"the search index is damaged ({error}); `postroom verify --repair` makes it anew"
    finally:
        connection.close()
    return None


_STORED_AT_ONCE = 100
_REBUILT_AWAY = (ArchiveFlaw.SHARD_DAMAGED, ArchiveFlaw.BYTES_WRONG, ArchiveFlaw.INDEX_WRONG)
_LOST = (ArchiveFlaw.SHARD_MISSING, ArchiveFlaw.SHARD_SHORT)


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


def repair(root: Path, report: VerifyReport, owner: FileArchiveWriter | None = None) -> Repair:
    """Rebuild every shard that a verification found damaged. `owner` is the writer of this process, if it has one: it
    lets go of each shard while that is rebuilt."""
    broken = {finding.shard for finding in report.findings if finding.flaw in _REBUILT_AWAY}
    names = [name for name in shards_on_disk(root) if str(name) in broken]
    if owner is None:
        salvaged = [rebuild(root, name) for name in names]
    else:
        salvaged = [owner.without(name, partial(_rebuild, root, name)) for name in names]
    lacking = {finding.shard for finding in report.findings if finding.flaw in _LOST}
    lacking |= {rebuilt.shard for rebuilt in salvaged if rebuilt.lost}
    accounts = sorted({parse_name(shard).account for shard in lacking})
    return Repair(salvaged, [account for account in accounts if forget_mark(root, account)])


def rebuild(root: Path, name: ShardName) -> Salvaged:
    """Move the shard into quarantine and make a new one of everything that can still be read."""
    ownership = Ownership(root, f"postroom verify --repair ({name})")
    try:
        catalogue = ShardCatalogue(root)
    except BaseException:
        ownership.release()
        raise
    try:
        return _rebuild(root, name, catalogue)
    finally:
        catalogue.close()
        ownership.release()


def _rebuild(root: Path, name: ShardName, catalogue: ShardCatalogue) -> Salvaged:
    before = catalogue.record(name).lost
    quarantine = _move_aside(root, name)
    recovered = _store_again(root, name, quarantine)
    catalogue.counted(name, recovered, expected=_count(quarantine))
    return Salvaged(str(name), recovered, catalogue.record(name).lost - before, str(quarantine))


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
            if len(batch) == _STORED_AT_ONCE:
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
    for comparison, order, start in ((">", "ASC", -1), ("<", "DESC", LARGEST_ID)):
        last = start
        while True:
            try:
                rows = reader.query(
                    f"SELECT id FROM messages WHERE id {comparison} ? ORDER BY id {order} LIMIT {_STORED_AT_ONCE}",
                    (last,),
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

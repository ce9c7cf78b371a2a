"""Proves the archive: every byte against its hash, every shard against itself and against the catalogue.

Reads only, and so can run beside the owner of the writers; only the full-text index is left out then, because FTS5
checks itself through a command that takes the write lock. Whatever is wrong is a finding; none stops the run.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from postroom.archive.catalogue import Catalogue, ShardRecord
from postroom.archive.layout import ShardName, account_name, path_of
from postroom.archive.ownership import OwnedElsewhere, Ownership
from postroom.archive.reading import ShardReader, shards_on_disk
from postroom.archive.shard import uri_path
from postroom.domain.errors import PostroomError

_AT_ONCE = 500

Progress = Callable[[int], None]


class Flaw(StrEnum):
    SHARD_MISSING = "shard missing"
    SHARD_DAMAGED = "shard damaged"
    SHARD_SHORT = "messages missing"
    LOST_BEFORE = "lost before"
    BYTES_WRONG = "bytes wrong"
    INDEX_WRONG = "index wrong"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it should be, and where."""

    flaw: Flaw
    shard: str
    detail: str
    key: str | None = None


@dataclass(slots=True)
class Report:
    shards: int = 0
    messages: int = 0
    bytes: int = 0
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        return not self.findings


def verify(root: Path, email: str | None = None, progress: Progress = lambda done: None) -> Report:
    """Check everything; `progress` is told how many messages were checked since it was last told."""
    report = Report()
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


def _verify_all(root: Path, email: str | None, report: Report, progress: Progress, *, check_index: bool) -> None:
    account = None if email is None else account_name(email)
    catalogued = _catalogued(root, account)
    on_disk = set(shards_on_disk(root, account))
    for name in sorted(on_disk | set(catalogued)):
        record = catalogued.get(name, ShardRecord(name, 0, 0))
        if name not in on_disk:
            detail = f"the file is gone, and with it at least {record.messages} messages"
            report.findings.append(Finding(Flaw.SHARD_MISSING, str(name), detail))
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
    catalogue = Catalogue(root)
    try:
        return {record.name: record for record in catalogue.shards(account)}
    finally:
        catalogue.close()


def _verify_shard(
    root: Path, record: ShardRecord, report: Report, progress: Progress, *, check_index: bool
) -> Iterator[Finding]:
    shard = str(record.name)
    if record.lost:
        detail = f"{record.lost} messages were lost when this shard was rebuilt; fetch them again from the source"
        yield Finding(Flaw.LOST_BEFORE, shard, detail)
    damage = is_damaged(root, record.name)
    if damage is not None:
        detail = f"{damage}; `postroom verify --repair` rebuilds it from what is left"
        yield Finding(Flaw.SHARD_DAMAGED, shard, detail)
        return
    reader = ShardReader(root, record.name)
    try:
        yield from _verify_messages(reader, report, progress)
        [(messages, indexed)] = reader.query("SELECT (SELECT count(*) FROM messages), (SELECT count(*) FROM texts)")
        if messages < record.messages:
            detail = f"{messages} messages are there, at least {record.messages} were stored"
            yield Finding(Flaw.SHARD_SHORT, shard, detail)
        if indexed != messages:
            yield Finding(Flaw.INDEX_WRONG, shard, f"{messages} messages, but texts of {indexed} in the search index")
    finally:
        reader.close()
    if check_index and (complaint := _index_complaint(path_of(root, record.name))):
        yield Finding(Flaw.INDEX_WRONG, shard, complaint)


def _verify_messages(reader: ShardReader, report: Report, progress: Progress) -> Iterator[Finding]:
    last = -1
    while rows := reader.query("SELECT id, key, size FROM messages WHERE id > ? ORDER BY id LIMIT ?", (last, _AT_ONCE)):
        for row_id, key, size in rows:
            try:
                reader.raw(row_id)
            except PostroomError as error:
                yield Finding(Flaw.BYTES_WRONG, str(reader.name), error.message, key)
            report.bytes += size
        report.messages += len(rows)
        progress(len(rows))
        last = rows[-1][0]


def _index_complaint(path: Path) -> str | None:
    """What FTS5 finds wrong with its index, compared with the texts that it was made from."""
    connection = sqlite3.connect(f"file:{uri_path(path)}?mode=rw", uri=True, isolation_level=None)
    try:
        connection.execute("INSERT INTO search (search, rank) VALUES ('integrity-check', 1)")
    except sqlite3.Error as error:
        return f"the search index is damaged ({error}); `postroom verify --repair` makes it anew"
    finally:
        connection.close()
    return None

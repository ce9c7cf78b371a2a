"""What of an account lies on disk, file by file, as a person is shown it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from postroom.archive.catalogue import Catalogue
from postroom.archive.layout import ShardName, path_of
from postroom.archive.reading import ShardReader, shards_on_disk
from postroom.domain.errors import PostroomError


@dataclass(frozen=True, slots=True)
class Shard:
    name: str
    year: int
    messages: int
    lost: int
    """Known to have been in it, and not recovered."""
    bytes: int | None
    """On disk, with its journal; null: it is not there."""
    problem: str | None
    """Why it cannot be read."""


def shards_of(root: Path, account: str) -> list[Shard]:
    """Those that should be there and those that are, newest first."""
    catalogue = Catalogue(root)
    try:
        known = {record.name: record for record in catalogue.shards(account)}
    finally:
        catalogue.close()
    names = sorted({*known, *shards_on_disk(root, account)}, reverse=True)
    return [_shard(root, name, known[name].lost if name in known else 0) for name in names]


def _shard(root: Path, name: ShardName, lost: int) -> Shard:
    """One that cannot be read is shown as such, and hides no other."""
    size = _size(path_of(root, name))
    if size is None:
        return Shard(name.filename, name.year, 0, lost, None, "The file is missing. Restore it from a backup.")
    try:
        return Shard(name.filename, name.year, _count(root, name), lost, size, None)
    except PostroomError as error:
        return Shard(name.filename, name.year, 0, lost, size, error.message)


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

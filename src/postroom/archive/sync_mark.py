"""Which sync an account's part of the archive belongs to, written beside its shards.

A watermark stands in the control database and speaks of one archive. Before it is trusted, the archive is asked whether
it is the one: another disk, an emptied folder, or one whose losses a repair has found, is not.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from postroom.archive.layout import account_name, folder_of

FILE_NAME = "sync.json"


@dataclass(frozen=True, slots=True)
class SyncMark:
    """This archive has everything that the account's sync claims in this walk, and in those before it."""

    account_id: str
    walk: int


def read_mark(root: Path, email: str) -> SyncMark | None:
    """None where there is none, or none that can be read."""
    try:
        found = json.loads(_path(root, email).read_bytes())
        return SyncMark(str(found["account_id"]), int(found["walk"]))
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def write_mark(root: Path, email: str, mark: SyncMark) -> None:
    """On disk, whole, when this returns."""
    path = _path(root, email)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    unborn = path.with_name(f".{path.name}.new")
    with unborn.open("w") as file:
        json.dump(asdict(mark), file)
        file.flush()
        os.fsync(file.fileno())
    unborn.rename(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def forget_mark(root: Path, email: str) -> bool:
    """The archive lacks what it had: the next sync lists everything again. Whether there was one."""
    try:
        _path(root, email).unlink()
    except FileNotFoundError:
        return False
    return True


def _path(root: Path, email: str) -> Path:
    return folder_of(root, account_name(email)) / FILE_NAME

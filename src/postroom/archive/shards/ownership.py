"""Who an archive belongs to: the one process that may write to it, and the sync that filled an account's part.

The kernel releases the lock when its owner dies. The sync mark lies beside an account's shards; before a watermark in
the control database is trusted, the mark must show that this is the archive the watermark speaks of.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from postroom.archive.messages import account_name, folder_of
from postroom.archive.shards.shard_file import rename_durably
from postroom.archive.status import OwnedElsewhere, Owner, SyncMark
from postroom.domain.errors import Fatal


class Ownership:
    """The right to write to the archive below `root`, from construction to `release`."""

    def __init__(self, root: Path, purpose: str) -> None:
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._handle = os.open(root / "owner.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise Fatal(
                f"The archive cannot be written in {root}: {error.strerror}. Check the folder's owner."
            ) from error
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = _read(self._handle)
            os.close(self._handle)
            raise OwnedElsewhere(_message(root, owner), owner) from None
        mine = Owner(os.getpid(), socket.gethostname(), purpose, datetime.now(UTC).isoformat(timespec="seconds"))
        os.ftruncate(self._handle, 0)
        os.pwrite(self._handle, json.dumps({name: getattr(mine, name) for name in Owner.__slots__}).encode(), 0)

    def release(self) -> None:
        os.ftruncate(self._handle, 0)
        os.close(self._handle)


def owner_of(root: Path) -> Owner | None:
    """Who writes to the archive, as far as is known without touching its lock."""
    try:
        handle = os.open(root / "owner.lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        owner = _read(handle)
    finally:
        os.close(handle)
    return owner if owner and (owner.host != socket.gethostname() or _is_alive(owner.pid)) else None


def _is_alive(pid: int) -> bool:
    """Needed because a process that was killed leaves its name behind."""
    try:
        os.kill(pid, 0)
    except OSError as error:
        return isinstance(error, PermissionError)
    return True


def _read(handle: int) -> Owner | None:
    """Who holds the lock; None in the instant between its taking the lock and its writing its name."""
    try:
        return Owner(**json.loads(os.pread(handle, 10_000, 0)))
    except (ValueError, TypeError):
        return None


def _message(root: Path, owner: Owner | None) -> str:
    if owner is None:
        return f"Another process has just begun to write to the archive in {root}; try again."
    return (
        f"The archive in {root} is being written by {owner} since {owner.since}. Stop that one first, or wait until "
        "it ends."
    )


SYNC_MARK_FILE = "sync.json"


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
    rename_durably(unborn, path)


def forget_mark(root: Path, email: str) -> bool:
    """The archive lacks what it had: the next sync lists everything again. Whether there was one."""
    try:
        _path(root, email).unlink()
    except FileNotFoundError:
        return False
    return True


def _path(root: Path, email: str) -> Path:
    return folder_of(root, account_name(email)) / SYNC_MARK_FILE

"""One process at a time owns the writers. The kernel gives the lock back when its owner dies, however it dies."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from postroom.domain.errors import Fatal, Retryable

SWITCHBOARD = "postroom switchboard"
"""As an owner's purpose: it keeps the files for as long as it runs, and runs no jobs."""


class OwnedElsewhere(Retryable):
    """Another process writes to the archive."""

    def __init__(self, message: str, owner: Owner | None = None) -> None:
        super().__init__(message)
        self.writer = str(owner or "another process")


@dataclass(frozen=True, slots=True)
class Owner:
    pid: int
    host: str
    purpose: str
    since: str

    def __str__(self) -> str:
        return f"`{self.purpose}` (process {self.pid} on {self.host})"


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
    """Who writes to the archive, as far as can be told without touching its lock."""
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
    """Whoever is killed leaves its name behind."""
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

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


class OwnedElsewhere(Retryable):
    """Another process writes to the archive."""


@dataclass(frozen=True, slots=True)
class Owner:
    pid: int
    host: str
    purpose: str
    since: str


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
            raise OwnedElsewhere(_message(root, owner)) from None
        mine = Owner(os.getpid(), socket.gethostname(), purpose, datetime.now(UTC).isoformat(timespec="seconds"))
        os.ftruncate(self._handle, 0)
        os.pwrite(self._handle, json.dumps({name: getattr(mine, name) for name in Owner.__slots__}).encode(), 0)

    def release(self) -> None:
        os.ftruncate(self._handle, 0)
        os.close(self._handle)


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
        f"The archive in {root} is being written by `{owner.purpose}` (process {owner.pid} on {owner.host}, since "
        f"{owner.since}). Wait until it ends, or stop it."
    )

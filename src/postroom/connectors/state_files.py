"""The small files that a connector keeps in the home folder, written atomically and readable by their owner only, and
the lock that keeps a second connector for the same mailbox out.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from postroom.domain.errors import Fatal, Retryable
from postroom.domain.ids import new_id

FOLDER = "connectors"
LOCK = "connector.lock"


def folder_of(home: Path, connector_type: str, endpoint_identity: str) -> Path:
    """The folder of one connector. An address may hold anything, so the folder is named after its hash."""
    name = hashlib.sha256(endpoint_identity.encode()).hexdigest()[:16]
    return home / FOLDER / f"{connector_type}-{name}"


class FolderInUse(Fatal):
    """Another connector for this mailbox is running on this home folder. Stop it first."""


class FolderShared(Retryable):
    """A worker is busy with this mailbox, until its job is done."""


@contextmanager
def held(folder: Path, *, shared: bool = False) -> Iterator[None]:
    """Lock the folder against a second connector for the same mailbox; the kernel releases the lock however this
    process ends.

    Workers share it during a job: the queue runs one pass that writes there at a time.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Fatal(f"{folder} cannot be used: {error.strerror}. Check who owns the home folder.") from error
    try:
        _lock(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, kind: int) -> None:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        raise (FolderShared if _is_shared(descriptor) else FolderInUse)() from None


def _is_shared(descriptor: int) -> bool:
    """Whether the holders are workers; a connector shares with no one."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def write_json(path: Path, value: Any) -> None:
    """Replace the file as a whole; after a crash the old one or the new one is there, never half of one."""
    content = json.dumps(value, separators=(",", ":")).encode()
    temporary = path.with_name(f"{path.name}.{new_id()}.tmp")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        temporary.replace(path)
    except OSError as error:
        if temporary.exists():
            temporary.unlink()
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise Retryable(f"The disk that holds {path.parent} is full. Free some space.") from error
        raise Fatal(f"{path} cannot be written: {error.strerror}. Check who owns the home folder.") from error


def read_json(path: Path) -> Any:
    """What the file holds; None where there is none or it cannot be understood."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError):
        return None
    except OSError as error:
        raise Fatal(f"{path} cannot be read: {error.strerror}. Check who owns it.") from error

"""Small files of the home folder that Postroom writes itself: replaced as a whole, readable by their owner only."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from postroom.domain.errors import BadInput, Fatal, PostroomError, Retryable
from postroom.domain.ids import new_id

FORM_IS_OLD = "changed meanwhile, so nothing was saved. Look at what holds now, and make your change again"


def version_of(*contents: bytes) -> str:
    """Changes with any of the contents."""
    digest = hashlib.sha256()
    for content in contents:
        digest.update(len(content).to_bytes(8, "big") + content)
    return digest.hexdigest()[:16]


def read_bytes(path: Path) -> bytes:
    """Empty where there is no file."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise BadInput(str(path), f"cannot be read: {error.strerror}") from error


def file_stamp(path: Path) -> tuple[int, int, int] | None:
    """Changes with every write to a file, and with every file that takes its place; None where there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Excludes every other writer of this file, in this process and in others, for the block."""
    lock = path.with_name(f"{path.name}.lock")
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise not_written(lock, error) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def replace_file(path: Path, content: bytes) -> None:
    """The old file or the new one is there whenever the process dies, never half of one."""
    try:
        temporary = write_temporary(path, content)
        try:
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)
    except OSError as error:
        raise not_written(path, error) from error


def write_temporary(path: Path, content: bytes) -> Path:
    """A file beside it that is whole and on disk, to be put in its place; after an OSError there is none."""
    temporary = path.with_name(f"{path.name}.{new_id()}.tmp")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def not_written(path: Path, error: OSError) -> PostroomError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Retryable(f"The disk that holds {path.parent} is full, so nothing was changed. Free some space.")
    return Fatal(f"{path} cannot be written: {error.strerror}. Nothing was changed. Check who owns the home folder.")


def sync_folder(folder: Path) -> None:
    """So that a file's name is on disk too."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""Takeout as it is downloaded: the mbox files inside of a .zip or .tgz, read as a stream and never unpacked to disk."""

from __future__ import annotations

import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from postroom.archive.importing.mbox import ByteStream, MboxReader
from postroom.archive.importing.model import Finding, MailFile
from postroom.domain.errors import BadInput, PostroomError

PACKAGE_ENDINGS = (".zip", ".tgz", ".tar.gz")


def package_files(path: Path, name: str, identity: str) -> Iterator[MailFile]:
    """The mbox files of a package. Each is to be read before the next is asked for: a stream knows no way back."""
    members = _zip_members if path.name.lower().endswith(".zip") else _tar_members
    with _damage_is_told(path):
        for member, size, stream in members(path):
            yield MailFile(f"{name}/{member}", size, lambda: identity, partial(_read, path, member, stream))


def _read(path: Path, member: str, stream: ByteStream, offset: int) -> Iterator[Finding]:
    with _damage_is_told(path):
        yield from MboxReader(stream, f"{path}, {member}").messages(offset)


def _zip_members(path: Path) -> Iterator[tuple[str, int, ByteStream]]:
    with zipfile.ZipFile(path) as package:
        for member in package.infolist():
            if _is_mbox(member.filename) and not member.is_dir():
                with package.open(member) as stream:
                    yield member.filename, member.file_size, stream


def _tar_members(path: Path) -> Iterator[tuple[str, int, ByteStream]]:
    with tarfile.open(path, "r|gz") as package:
        for member in package:
            stream = package.extractfile(member) if member.isreg() and _is_mbox(member.name) else None
            if stream is not None:
                yield member.name, member.size, stream


def _is_mbox(name: str) -> bool:
    return name.lower().endswith(".mbox")


@contextmanager
def _damage_is_told(path: Path) -> Iterator[None]:
    """The libraries' errors as one that names the file; what was read before the damage is kept by the run.

    Damaged packages make them raise nearly anything: OSError for a place before the beginning, LZMAError, struct.error.
    """
    try:
        yield
    except (PostroomError, FileNotFoundError, PermissionError, MemoryError):
        raise
    except Exception as error:
        problem = str(error) or type(error).__name__
        raise BadInput("path", f"{path} is damaged or cut off ({problem}); download it again") from error

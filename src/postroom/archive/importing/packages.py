"""Mail in packages: the mbox and `.eml` files of a .zip or .tgz, streamed one after the other and never unpacked.

Nothing is written to disk, so a member's name leads nowhere. A package that unpacks to far more than mail would is
given up, as is one whose list of files alone is too long for memory.
"""

from __future__ import annotations

import io
import re
import tarfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from postroom.archive.importing.mbox import ByteStream, MboxReader
from postroom.archive.importing.state import (
    LARGEST_MESSAGE,
    FoundMessage,
    ImportFinding,
    MailFile,
    RefusedMessage,
    readable,
)
from postroom.domain.errors import BadInput, PostroomError

PACKAGE_ENDINGS = (".zip", ".tgz", ".tar.gz")
MOST_RATIO = 200
"""Text of mail is packed to a tenth, seldom to a fiftieth; deflate can make a thousandth of nothing but zeros."""
ALWAYS_ALLOWED = 256 << 20
LONGEST_LIST = 16 << 20
_HEAD = 1_000
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_FROM_LINE = re.compile(rb"[\r\n]*From [^\r\n]*\d{1,2}:\d\d")


class _MemberKind(StrEnum):
    MBOX = "mbox"
    EML = "eml"


class _Member(NamedTuple):
    name: str
    size: int
    stream: ByteStream


def package_files(path: Path, name: str, identity: str) -> Iterator[MailFile]:
    """The mail of a package. Each file is to be read before the next is asked for: a stream knows no way back."""
    members = _zip_members if path.name.lower().endswith(".zip") else _tar_members
    seen: Counter[str] = Counter()
    with _damage_as_bad_input(path):
        budget = _Budget(path, max(path.stat().st_size * MOST_RATIO, ALWAYS_ALLOWED))
        for member in members(path):
            stream = _Peeked(_Metered(member.stream, budget.spend))
            kind = _kind(member.name, stream.head)
            if kind is None:
                continue
            seen[member.name] += 1
            number = f" ({seen[member.name]})" if seen[member.name] > 1 else ""
            read = partial(_read_member, path, member.name, kind, stream)
            yield MailFile(f"{name}/{member.name}{number}", member.size, lambda: identity, read)


class _Budget:
    """How many bytes a package may still unpack to."""

    def __init__(self, path: Path, left: int) -> None:
        self._path = path
        self._left = left

    def spend(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            problem = (
                f"{self._path} unpacks to more than {MOST_RATIO} times its size, as no mail does; unpack it by hand"
            )
            raise BadInput("path", problem)


class _Metered:
    def __init__(self, stream: ByteStream, spend: Callable[[int], None]) -> None:
        self._stream = stream
        self._spend = spend

    def read(self, size: int, /) -> bytes:
        data = self._stream.read(size)
        self._spend(len(data))
        return data


class _Peeked:
    """A stream whose beginning is known, and is read all the same."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self.head = self._rest = stream.read(_HEAD)

    def read(self, size: int, /) -> bytes:
        if not self._rest:
            return self._stream.read(size)
        data, self._rest = self._rest[:size], self._rest[size:]
        return data


def _may_be_mail(name: str) -> bool:
    return PurePosixPath(name.lower()).suffix in (".mbox", ".mbx", ".eml", "")


def _kind(name: str, head: bytes) -> _MemberKind | None:
    """By its name, and by how it begins where the name does not say."""
    if name.lower().endswith((".mbox", ".mbx")) or _FROM_LINE.match(head):
        return _MemberKind.MBOX
    return _MemberKind.EML if name.lower().endswith(".eml") else None


def _read_member(
    path: Path, member: str, kind: _MemberKind, stream: ByteStream, offset: int
) -> Iterator[ImportFinding]:
    with _damage_as_bad_input(path):
        if kind is _MemberKind.MBOX:
            yield from MboxReader(stream, f"{path}, {member}").messages(offset)
        elif not offset:
            yield _single(stream, readable(f"{path}, {member}"))


def _single(stream: ByteStream, where: str) -> ImportFinding:
    pieces: list[bytes] = []
    size = 0
    while size <= LARGEST_MESSAGE and (piece := stream.read(1 << 20)):
        pieces.append(piece)
        size += len(piece)
    if size > LARGEST_MESSAGE:
        return RefusedMessage(where, f"is larger than the {LARGEST_MESSAGE:,} bytes that a message may have", 1)
    return FoundMessage(b"".join(pieces), max(1, size))


class _BoundedFile(io.BufferedReader):
    """`zipfile` reads the list of a package's files in one piece, however long the package says that it is."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > LONGEST_LIST:
            raise BadInput("path", f"{self.name} lists too many files; unpack it, and import the folder")
        return super().read(size)


def _zip_members(path: Path) -> Iterator[_Member]:
    with _BoundedFile(io.FileIO(path)) as file, zipfile.ZipFile(file) as package:
        for member in package.infolist():
            if member.is_dir() or not _may_be_mail(member.filename):
                continue
            if member.compress_type not in _METHODS:
                # The others unpack a whole block at once, whatever its size.
                raise BadInput("path", f"{path} is packed with a method that is not read here; pack it as a plain .zip")
            with package.open(member) as stream:
                yield _Member(readable(member.filename), member.file_size, stream)


def _tar_members(path: Path) -> Iterator[_Member]:
    with tarfile.open(path, "r|gz") as package:
        for member in package:
            stream = package.extractfile(member) if member.isreg() and _may_be_mail(member.name) else None
            if stream is not None:
                yield _Member(readable(member.name), member.size, stream)


@contextmanager
def _damage_as_bad_input(path: Path) -> Iterator[None]:
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

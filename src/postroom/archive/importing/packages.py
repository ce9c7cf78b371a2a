"""Mail in packages: the mbox and `.eml` files of a .zip, .tgz or .tar, streamed one after the other and never unpacked.

Nothing is written to disk, so a member's name leads nowhere. A package that unpacks to far more than mail would is
given up, as is one whose list of files alone is too long for memory.
"""

from __future__ import annotations

import gzip
import io
import re
import tarfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from enum import StrEnum
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple, cast

from postroom.archive.importing.mbox import ByteStream, MboxReader
from postroom.archive.importing.state import (
    HEAD_OF_MESSAGE,
    LARGEST_MESSAGE,
    NOT_A_MESSAGE,
    FoundMessage,
    ImportFinding,
    MailFile,
    RefusedMessage,
    readable,
)
from postroom.domain.errors import BadInput, PostroomError
from postroom.mail.headers import has_mail_headers

ZIP_MARK, GZIP_MARK = b"PK\x03\x04", b"\x1f\x8b"
MOST_RATIO = 200
"""Text of mail is packed to a tenth, seldom to a fiftieth; deflate can make a thousandth of nothing but zeros."""
ALWAYS_ALLOWED = 256 << 20
LONGEST_LIST = 16 << 20
_LONGEST_HEADER = 1 << 20
_HEAD = 1_000
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_FROM_LINE = re.compile(rb"[\r\n]*From [^\r\n]*\d{1,2}:\d\d")


class PackageKind(StrEnum):
    """By content; the value is the ending that says so."""

    ZIP = ".zip"
    TGZ = ".tgz"
    TAR = ".tar"

    @classmethod
    def of_name(cls, name: str) -> PackageKind | None:
        name = name.lower()
        kinds = {".zip": cls.ZIP, ".tgz": cls.TGZ, ".tar.gz": cls.TGZ, ".tar": cls.TAR}
        return next((kind for ending, kind in kinds.items() if name.endswith(ending)), None)

    @classmethod
    def of_content(cls, path: Path) -> PackageKind | None:
        """None for anything else: a gzip file that holds no tar is not a package."""
        with path.open("rb") as file:
            head = file.read(tarfile.BLOCKSIZE)
        if head.startswith(ZIP_MARK):
            return cls.ZIP
        if _is_tar_header(head):
            return cls.TAR
        return cls.TGZ if head.startswith(GZIP_MARK) and _is_tar_header(_unzipped_head(path)) else None


class _MemberKind(StrEnum):
    MBOX = "mbox"
    EML = "eml"


class _Member(NamedTuple):
    name: str
    size: int
    stream: ByteStream


def package_files(path: Path, name: str, identity: str) -> Iterator[MailFile]:
    """The mail of a package. Each file is to be read before the next is asked for: a stream knows no way back."""
    seen: Counter[str] = Counter()
    with _damage_as_bad_input(path):
        budget = _Budget.of(path)
        for member in _members(path):
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

    @classmethod
    def of(cls, path: Path) -> _Budget:
        return cls(path, max(path.stat().st_size * MOST_RATIO, ALWAYS_ALLOWED))

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
    if not has_mail_headers(pieces[0][:HEAD_OF_MESSAGE] if pieces else b""):
        return RefusedMessage(where, NOT_A_MESSAGE, 1, is_mail=False)
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


def _members(path: Path) -> Iterator[_Member]:
    kind = PackageKind.of_content(path) or PackageKind.of_name(path.name)
    match kind:
        case PackageKind.ZIP | None:
            return _zip_members(path)
        case PackageKind.TGZ | PackageKind.TAR:
            return _tar_members(path, is_packed=kind is PackageKind.TGZ)


class _TarStream:
    """A tar as it is unpacked. What stands before a file, such as its name, `tarfile` reads in one piece, however long
    it says that it is; so no more is given than up to a little after where that begins."""

    def __init__(self, path: Path, stream: ByteStream) -> None:
        self._path = path
        self._stream = stream
        self._spend = _Budget.of(path).spend
        self._position = 0
        self.next_header = 0

    def read(self, size: int, /) -> bytes:
        data = self._stream.read(size)
        self._spend(len(data))
        self._position += len(data)
        if self._position > self.next_header + _LONGEST_HEADER:
            problem = f"{self._path} has a file name that is too long; unpack it, and import the folder"
            raise BadInput("path", problem)
        return data


def _tar_members(path: Path, *, is_packed: bool) -> Iterator[_Member]:
    """What is not mail is unpacked as well, to get past it, and so counts towards the most that may be unpacked."""
    with path.open("rb") as file, gzip.GzipFile(fileobj=file) if is_packed else nullcontext(file) as unpacked:
        stream = _TarStream(path, cast(ByteStream, unpacked))
        with tarfile.open(fileobj=cast(IO[bytes], stream), mode="r|") as package:
            while (member := package.next()) is not None:
                stream.next_header = package.offset
                vars(package)["members"].clear()  # it would keep them all
                package.pax_headers = {}
                content = package.extractfile(member) if member.isreg() and _may_be_mail(member.name) else None
                if content is not None:
                    yield _Member(readable(member.name), member.size, content)


def _is_tar_header(head: bytes) -> bool:
    """By its checksum."""
    try:
        tarfile.TarInfo.frombuf(head, "utf-8", "surrogateescape")
    except tarfile.TarError:
        return False
    return True


def _unzipped_head(path: Path) -> bytes:
    try:
        with gzip.open(path) as file:
            return file.read(tarfile.BLOCKSIZE)
    except (OSError, EOFError, zlib.error):
        return b""


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

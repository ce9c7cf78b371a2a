"""What a person names on the command line, opened: mbox, Takeout (.zip, .tgz and .tar are streamed, not unpacked),
Maildir, `.eml`.

A path that cannot be the named format is refused at once. A single file that cannot be read is reported, and the
others are read.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import stat
from collections.abc import Iterator
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import NoReturn

from postroom.archive.importing import interpreting
from postroom.archive.importing.interpreting import label_of_folder
from postroom.archive.importing.mbox import MboxReader, starts_like_mbox
from postroom.archive.importing.packages import PackageKind, package_files
from postroom.archive.importing.state import (
    HEAD_OF_MESSAGE,
    LARGEST_MESSAGE,
    NOT_A_MESSAGE,
    FoundMessage,
    ImportFinding,
    ImportSource,
    MailFile,
    RefusedMessage,
    readable,
)
from postroom.domain.errors import BadInput
from postroom.mail.headers import has_mail_headers

_BASE64_RUN = re.compile(r"&([^-]*)-")


def maildir_files(root: Path) -> Iterator[MailFile]:
    """Every message of a Maildir and of the folders below it (Maildir++ or nested), folder by folder."""
    for folder in _maildirs(root):
        label = _label(root, folder)
        for kind in ("cur", "new"):
            below = os.path.relpath(folder / kind, root)
            for name in _names(folder / kind):
                labels = _flag_labels(name, is_new=kind == "new") | {label}
                yield from _file(root, f"{below}/{name}", labels)


_EXPORTED = re.compile(r"\d{4}-\d\d-\d\d (?:.* )?[0-9a-z]{16,}\b.*\.eml", re.DOTALL)
"""As `archive.exporting` names files."""


def eml_files(path: Path) -> Iterator[MailFile]:
    """One `.eml` file, or all of a folder and the folders below it."""
    if path.is_file():
        yield from _file(path.parent, path.name, None, is_checked=not _EXPORTED.fullmatch(path.name))
        return
    for folder, folders, names in os.walk(path, onerror=_fail):
        folders.sort()
        for name in sorted(names):
            if name.lower().endswith(".eml"):
                below = os.path.relpath(os.path.join(folder, name), path)
                yield from _file(path, below, None, is_checked=not _EXPORTED.fullmatch(name))


def is_maildir(folder: Path) -> bool:
    return (folder / "cur").is_dir() or (folder / "new").is_dir()


def _fail(error: OSError) -> NoReturn:
    raise BadInput("path", f"{error.filename} cannot be read: {error.strerror}") from error


def _maildirs(root: Path) -> Iterator[Path]:
    for folder, folders, _ in os.walk(root, onerror=_fail):
        if is_maildir(Path(folder)):
            yield Path(folder)
        folders[:] = sorted(set(folders) - {"cur", "new", "tmp"})


def _names(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    try:
        return sorted(name for name in os.listdir(folder) if not name.startswith("."))
    except OSError as error:
        _fail(error)


def _file(root: Path, name: str, labels: frozenset[str] | None, *, is_checked: bool = False) -> Iterator[MailFile]:
    """The file as one of a source; none if it is a folder. One that cannot be looked at is reported when it is read.

    A file of a Maildir, or of an export of ours, is a message whatever stands in it; others are checked for the headers
    of mail.
    """
    path = f"{root}/{name}"
    read = partial(_read_message, path, labels, is_checked=is_checked)
    try:
        facts = os.stat(path)
    except OSError:
        yield MailFile(name, 0, lambda: "unreadable", partial(read, None, 0))
        return
    if stat.S_ISREG(facts.st_mode):
        delivered = datetime.fromtimestamp(facts.st_mtime, UTC)
        identity = f"{facts.st_size}:{facts.st_mtime_ns}"
        yield MailFile(name, facts.st_size, lambda: identity, partial(read, delivered, facts.st_size))


def _read_message(
    path: str, labels: frozenset[str] | None, delivered: datetime | None, size: int, offset: int, *, is_checked: bool
) -> Iterator[ImportFinding]:
    if offset:
        return
    try:
        raw, size = _content(path, size)
    except OSError as error:
        yield RefusedMessage(readable(path), f"cannot be read: {error.strerror}", 1)
        return
    if raw is None:
        problem = f"{size:,} bytes are more than the {LARGEST_MESSAGE:,} that a message may have"
        yield RefusedMessage(readable(path), problem, 1)
        return
    if is_checked and not has_mail_headers(raw[:HEAD_OF_MESSAGE]):
        yield RefusedMessage(readable(path), NOT_A_MESSAGE, max(1, len(raw)), is_mail=False)
        return
    yield FoundMessage(raw, max(1, len(raw)), labels=labels, delivered=delivered)


def _content(path: str, expected: int) -> tuple[bytes | None, int]:
    """All of a file, and its size; None if that is too large for a message. In as few calls of the system as it takes,
    because a Maildir has a file for every message: one that has the expected size is read at once."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if expected <= LARGEST_MESSAGE:
            raw = os.read(file, expected + 1)
            if len(raw) == expected:
                return raw, expected
        size = os.fstat(file).st_size
        if size > LARGEST_MESSAGE:
            return None, size
        os.lseek(file, 0, os.SEEK_SET)
        with open(file, "rb", closefd=False) as whole:
            raw = whole.read()
        return raw, len(raw)
    finally:
        os.close(file)


def _flag_labels(name: str, *, is_new: bool) -> frozenset[str]:
    """`1700000000.M1P2.host:2,FS`: the letters after `2,` say what the owner did with the message."""
    flags = name.rpartition(":2,")[2] if ":2," in name else ""
    labels = {label for flag, label in (("F", "STARRED"), ("T", "TRASH"), ("D", "DRAFT")) if flag in flags}
    return frozenset(labels | ({"UNREAD"} if is_new or "S" not in flags else set()))


def _label(root: Path, folder: Path) -> str:
    """The folder itself is the inbox; `.Work.Projects` and `Work/Projects` below it are the label Work/Projects."""
    parts = [
        part
        for step in folder.relative_to(root).parts
        for part in (step[1:].split(".") if step.startswith(".") else [step])
    ]
    return label_of_folder("/".join(_decoded(part) for part in parts if part)) if parts else "INBOX"


def _decoded(part: str) -> str:
    """IMAP's own UTF-7 (RFC 3501 5.1.3), in which servers write folder names: `Entw&APw-rfe`. Else as it stands."""
    try:
        return _BASE64_RUN.sub(
            lambda run: f"+{run[1].replace(',', '/')}-".encode("ascii").decode("utf-7") if run[1] else "&", part
        )
    except UnicodeError:
        return part


class MailFormat(StrEnum):
    """What a person says that a path is."""

    MBOX = "mbox"
    TAKEOUT = "takeout"
    MAILDIR = "maildir"
    EML = "eml"


def open_source(format: MailFormat, path: Path, account: str, *, keep_quotes: bool = False) -> ImportSource:
    """What a person named, opened as what it is said to be. Something else is refused with the command for it."""
    _require(path)
    found = format_of(path, format)
    if found is not None and found is not format and (format, found) != _TAKEOUTS_OWN:
        command = f"postroom import {found} {shlex.quote(str(path))} --account {shlex.quote(account)}"
        raise BadInput("path", f"{path} is {_described(path, found)}; import it with `{command}`")
    match format:
        case MailFormat.MBOX:
            return open_mbox(path, unquote=not keep_quotes)
        case MailFormat.TAKEOUT:
            return open_takeout(path)
        case MailFormat.MAILDIR:
            return open_maildir(path)
        case MailFormat.EML:
            return open_eml(path)


def format_of(path: Path, expected: MailFormat | None = None) -> MailFormat | None:
    """What a path holds, by its content; None where that does not tell. A folder may hold several: it is what is
    expected if it can be."""
    if path.is_dir():
        formats = sorted(_FOLDERS, key=lambda format: format is not expected)
        return next((format for format in formats if _FOLDERS[format](path)), None)
    if not path.is_file():
        return None
    with path.open("rb") as file:
        head = file.read(HEAD_OF_MESSAGE)
    if PackageKind.of_content(path) is not None:
        return MailFormat.TAKEOUT
    if head.lstrip(b"\r\n").startswith(b"From "):
        return MailFormat.MBOX
    return MailFormat.EML if has_mail_headers(head) else None


def _described(path: Path, format: MailFormat) -> str:
    match format:
        case MailFormat.MBOX:
            return "an mbox file"
        case MailFormat.TAKEOUT:
            return "a folder of mbox files" if path.is_dir() else "a package (.zip, .tgz or .tar)"
        case MailFormat.MAILDIR:
            return "a Maildir"
        case MailFormat.EML:
            return "a folder of .eml files" if path.is_dir() else "a single message"


def _holds_takeout(path: Path) -> bool:
    return any(_is_takeout(file) for file in path.rglob("*"))


def _holds_eml(path: Path) -> bool:
    return next(eml_files(path), None) is not None


def _holds_maildir(path: Path) -> bool:
    return next(_maildirs(path), None) is not None


_TAKEOUTS_OWN = (MailFormat.TAKEOUT, MailFormat.MBOX)
"""A Takeout's mail is in an mbox."""
_FOLDERS = {
    MailFormat.MAILDIR: _holds_maildir,
    MailFormat.EML: _holds_eml,
    MailFormat.TAKEOUT: _holds_takeout,
}


def open_mbox(path: Path, *, unquote: bool = True, largest_message: int = LARGEST_MESSAGE) -> ImportSource:
    """An mbox file. `unquote=False` keeps `>From ` lines as they are, for files whose writer did not quote."""
    _require_file(path, "mbox")
    read = partial(_read_mbox, path, unquote, largest_message)
    file = MailFile(path.name, path.stat().st_size, partial(_identity, path), read)
    return ImportSource("mbox", path, lambda: iter([file]), interpreting.plain, file.size)


def open_takeout(path: Path) -> ImportSource:
    """A Takeout's mbox, its .zip, .tgz or .tar as downloaded, or the folder that it was unpacked to."""
    _require(path)
    paths = [path] if path.is_file() else sorted(file for file in path.rglob("*") if _is_takeout(file))
    if not paths:
        raise BadInput("path", f"{path} holds no .mbox, .zip, .tgz or .tar file")
    for file in paths:
        _require_file(file, None if _is_package(file) else "mbox")
    files = partial(_takeout_files, path, paths)
    # How much is inside of a package is known when it has been read.
    total = None if any(map(_is_package, paths)) else sum(file.stat().st_size for file in paths)
    return ImportSource("takeout", path, files, interpreting.takeout, total)


def open_maildir(path: Path) -> ImportSource:
    _require(path)
    if not path.is_dir():
        raise BadInput("path", f"{path} is a file; a Maildir is a folder with `cur` and `new` in it")
    if not is_maildir(path) and next(maildir_files(path), None) is None:
        raise BadInput("path", f"{path} is not a Maildir: neither it nor a folder below it has `cur` or `new`")
    return _of_files("maildir", path, partial(maildir_files, path))


def open_eml(path: Path) -> ImportSource:
    _require(path)
    if path.is_file() and format_of(path) is None:
        raise BadInput("path", f"{path} {NOT_A_MESSAGE}")
    return _of_files("eml", path, partial(eml_files, path))


def looks_like_takeout(path: Path) -> bool:
    """Whether an mbox carries Gmail's ids, which only an import as Takeout keeps."""
    with path.open("rb") as file:
        return b"@xxx " in file.readline(1_000)


def _of_files(format: str, path: Path, files: partial[Iterator[MailFile]]) -> ImportSource:
    return ImportSource(format, path, files, interpreting.plain, sum(file.size or 0 for file in files()))


def _takeout_files(root: Path, paths: list[Path]) -> Iterator[MailFile]:
    for path in paths:
        name = path.name if path == root else str(path.relative_to(root))
        if _is_package(path):
            yield from package_files(path, name, _identity(path))
        else:
            read = partial(_read_mbox, path, True, LARGEST_MESSAGE)
            yield MailFile(name, path.stat().st_size, partial(_identity, path), read)


def _is_takeout(path: Path) -> bool:
    name = path.name.lower()
    return path.is_file() and (name.endswith(".mbox") or PackageKind.of_name(name) is not None)


def _is_package(path: Path) -> bool:
    """By its name, or by its content where the name says nothing."""
    return PackageKind.of_name(path.name) is not None or (path.is_file() and PackageKind.of_content(path) is not None)


def _read_mbox(path: Path, unquote: bool, largest_message: int, offset: int) -> Iterator[ImportFinding]:
    with path.open("rb", buffering=0) as file:
        yield from MboxReader(file, str(path), unquote=unquote, largest_message=largest_message).messages(offset)


def _identity(path: Path) -> str:
    """Size, time of change, and what it begins with: enough to recognise the same file, but not proof against
    forgery."""
    facts = path.stat()
    with path.open("rb") as file:
        head = hashlib.sha256(file.read(HEAD_OF_MESSAGE)).hexdigest()
    return f"{facts.st_size}:{facts.st_mtime_ns}:{head}"


def _require(path: Path) -> None:
    if not path.exists():
        raise BadInput("path", f"{path} does not exist")
    if not os.access(path, os.R_OK):
        raise BadInput("path", f"{path} cannot be read: permission denied")


def _require_file(path: Path, format: str | None) -> None:
    _require(path)
    if path.is_dir():
        raise BadInput("path", f"{path} is a folder; name the {format} file, or use `import maildir` or `import eml`")
    if not path.is_file():
        raise BadInput("path", f"{path} is not a file that can be read more than once; save the mail to one")
    with path.open("rb") as file:
        if format == "mbox" and not starts_like_mbox(file.read(HEAD_OF_MESSAGE)):
            raise BadInput("path", f"{path} does not begin with a `From ` line, so it is not an mbox")

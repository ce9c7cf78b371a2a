"""Mail in files of its own: Maildir and `.eml`. A file that cannot be read is reported, and the others are read."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import NoReturn

from postroom.archive.importing.gmail_labels import label_of_folder
from postroom.archive.importing.model import LARGEST_MESSAGE, Finding, FoundMail, MailFile, Refused, readable
from postroom.domain.errors import BadInput

_BASE64_RUN = re.compile(r"&([^-]*)-")


def maildir_files(root: Path) -> Iterator[MailFile]:
    """Every message of a Maildir and of the folders below it (Maildir++ or nested), folder by folder."""
    for folder in _maildirs(root):
        label = _label(root, folder)
        for place in ("cur", "new"):
            below = os.path.relpath(folder / place, root)
            for name in _names(folder / place):
                labels = _flag_labels(name, is_new=place == "new") | {label}
                yield from _file(root, f"{below}/{name}", labels)


def eml_files(path: Path) -> Iterator[MailFile]:
    """One `.eml` file, or all of a folder and the folders below it."""
    if path.is_file():
        yield from _file(path.parent, path.name, None)
        return
    for folder, folders, names in os.walk(path, onerror=_fail):
        folders.sort()
        for name in sorted(names):
            if name.lower().endswith(".eml"):
                yield from _file(path, os.path.relpath(os.path.join(folder, name), path), None)


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


def _file(root: Path, name: str, labels: frozenset[str] | None) -> Iterator[MailFile]:
    """The file as one of a source; none if it is a folder. One that cannot be looked at is reported when it is read."""
    path = f"{root}/{name}"
    try:
        facts = os.stat(path)
    except OSError:
        yield MailFile(name, 0, lambda: "unreadable", partial(_read, path, labels, None))
        return
    if stat.S_ISREG(facts.st_mode):
        delivered = datetime.fromtimestamp(facts.st_mtime, UTC)
        identity = f"{facts.st_size}:{facts.st_mtime_ns}"
        yield MailFile(name, facts.st_size, lambda: identity, partial(_read, path, labels, delivered))


def _read(path: str, labels: frozenset[str] | None, delivered: datetime | None, offset: int) -> Iterator[Finding]:
    if offset:
        return
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > LARGEST_MESSAGE:
                problem = f"{size:,} bytes are more than the {LARGEST_MESSAGE:,} that a message may have"
                yield Refused(readable(path), problem, 1)
                return
            raw = file.read()
    except OSError as error:
        yield Refused(readable(path), f"cannot be read: {error.strerror}", 1)
        return
    yield FoundMail(raw, max(1, len(raw)), labels=labels, delivered=delivered)


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

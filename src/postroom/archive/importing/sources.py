"""What a person names on the command line, opened: one function a format. Refuses at once what it cannot be."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from postroom.archive.importing import interpreting
from postroom.archive.importing.files import eml_files, is_maildir, maildir_files
from postroom.archive.importing.mbox import MboxReader, starts_like_mbox
from postroom.archive.importing.model import LARGEST_MESSAGE, Finding, MailFile, MailSource
from postroom.archive.importing.packages import PACKAGE_ENDINGS, package_files
from postroom.domain.errors import BadInput

_HEAD = 64 << 10


def open_mbox(path: Path, *, unquote: bool = True, largest_message: int = LARGEST_MESSAGE) -> MailSource:
    """An mbox file. `unquote=False` keeps `>From ` lines as they are, for files whose writer did not quote."""
    _require_file(path, "mbox")
    read = partial(_read_mbox, path, unquote, largest_message)
    file = MailFile(path.name, path.stat().st_size, partial(_identity, path), read)
    return MailSource("mbox", path, lambda: iter([file]), interpreting.plain, file.size)


def open_takeout(path: Path) -> MailSource:
    """A Takeout's mbox, its .zip or .tgz as downloaded, or the folder that it was unpacked to."""
    _require(path)
    paths = [path] if path.is_file() else sorted(file for file in path.rglob("*") if _is_takeout(file))
    if not paths:
        raise BadInput("path", f"{path} holds no .mbox, .zip or .tgz file")
    for file in paths:
        _require_file(file, None if _is_package(file) else "mbox")
    files = partial(_takeout_files, path, paths)
    # How much is inside of a package is known when it has been read.
    total = None if any(map(_is_package, paths)) else sum(file.stat().st_size for file in paths)
    return MailSource("takeout", path, files, interpreting.takeout, total)


def open_maildir(path: Path) -> MailSource:
    _require(path)
    if not path.is_dir():
        raise BadInput("path", f"{path} is a file; a Maildir is a folder with `cur` and `new` in it")
    if not is_maildir(path) and next(maildir_files(path), None) is None:
        raise BadInput("path", f"{path} is not a Maildir: neither it nor a folder below it has `cur` or `new`")
    return _of_files("maildir", path, partial(maildir_files, path))


def open_eml(path: Path) -> MailSource:
    _require(path)
    return _of_files("eml", path, partial(eml_files, path))


def looks_like_takeout(path: Path) -> bool:
    """Whether an mbox carries Gmail's ids, which only an import as Takeout keeps."""
    with path.open("rb") as file:
        return b"@xxx " in file.readline(1_000)


def _of_files(format: str, path: Path, files: partial[Iterator[MailFile]]) -> MailSource:
    return MailSource(format, path, files, interpreting.plain, sum(file.size or 0 for file in files()))


def _takeout_files(root: Path, paths: list[Path]) -> Iterator[MailFile]:
    for path in paths:
        name = path.name if path == root else str(path.relative_to(root))
        if _is_package(path):
            yield from package_files(path, name, _identity(path))
        else:
            read = partial(_read_mbox, path, True, LARGEST_MESSAGE)
            yield MailFile(name, path.stat().st_size, partial(_identity, path), read)


def _is_takeout(path: Path) -> bool:
    return path.is_file() and (path.name.lower().endswith(".mbox") or _is_package(path))


def _is_package(path: Path) -> bool:
    return path.name.lower().endswith(PACKAGE_ENDINGS)


def _read_mbox(path: Path, unquote: bool, largest_message: int, offset: int) -> Iterator[Finding]:
    with path.open("rb", buffering=0) as file:
        yield from MboxReader(file, str(path), unquote=unquote, largest_message=largest_message).messages(offset)


def _identity(path: Path) -> str:
    """Size, time of change, and what it begins with: the same file unless somebody takes pains."""
    facts = path.stat()
    with path.open("rb") as file:
        head = hashlib.sha256(file.read(_HEAD)).hexdigest()
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
        if format == "mbox" and not starts_like_mbox(file.read(_HEAD)):
            raise BadInput("path", f"{path} does not begin with a `From ` line, so it is not an mbox")

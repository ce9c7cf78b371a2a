"""What a backup holds: every file with its size and hash. It is written last, so a folder without one is no backup.

It tells damage and loss. It is not signed: whoever can write to the folder can write a manifest too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath

from postroom.domain.errors import BadInput

FILE_NAME = "manifest.json"
FORMAT = 1

DATABASE = "postroom.db"
DUMP = "database.dump"
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of the backup; `path` lies below its folder, written with slashes."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    made_at: str
    postroom: str
    database: str
    """Where the control database is: `postroom.db` or `database.dump` of the backup, or empty if it holds neither."""
    has_key: bool
    files: tuple[Entry, ...]
    audit_head: dict[str, object] | None = None
    """The end of the audit log's chain, which `postroom audit verify --heads` compares with; None: nothing sealed."""

    @property
    def size(self) -> int:
        return sum(entry.size for entry in self.files)


def write_manifest(manifest: Manifest) -> bytes:
    return json.dumps({"format": FORMAT, **asdict(manifest)}, indent=1).encode() + b"\n"


def read_manifest(content: bytes) -> Manifest:
    """The manifest that these bytes are; anything else is refused, and so is a file that would lie elsewhere."""
    try:
        found = json.loads(content)
        version = found.pop("format")
        if version != FORMAT:
            raise BadInput(FILE_NAME, f"is of format {version}; this Postroom reads format {FORMAT}. Upgrade Postroom.")
        files = tuple(Entry(str(each["path"]), int(each["size"]), str(each["sha256"])) for each in found.pop("files"))
        manifest = Manifest(**found, files=files)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise BadInput(FILE_NAME, "is not the manifest of a backup, or is damaged") from None
    for entry in files:
        _refuse_elsewhere(entry.path)
    if len({entry.path for entry in files}) != len(files):
        raise BadInput(FILE_NAME, "names a file twice")
    return manifest


def describe(folder: Path, paths: Iterable[str], was_read: Callable[[int], None]) -> tuple[Entry, ...]:
    """What these files of a folder are; `was_read` is told how many bytes were read since it was last told."""
    return tuple(_describe(folder, path, was_read) for path in paths)


def _describe(folder: Path, path: str, was_read: Callable[[int], None]) -> Entry:
    digest = hashlib.sha256()
    size = 0
    with (folder / path).open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            size += len(block)
            was_read(len(block))
    return Entry(path, size, digest.hexdigest())


def _refuse_elsewhere(path: str) -> None:
    parts = PurePosixPath(path).parts
    is_plain = bool(parts) and not path.startswith("/") and "\x00" not in path and str(PurePosixPath(path)) == path
    if not is_plain or ".." in parts:
        raise BadInput(FILE_NAME, f"names {path!r}, which is no place within a backup")

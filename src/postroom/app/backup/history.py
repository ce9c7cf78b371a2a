"""Which backups were made of this home: a line of JSON each, in the home folder, so that pages can say when the last
one was. It is not part of a backup: a restored home has no backup yet.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from postroom.app.backup.contents import Manifest
from postroom.domain.errors import Fatal

FILE_NAME = "backups.jsonl"
_TAIL_BYTES = 64 * 1024
MOST = 50


@dataclass(frozen=True, slots=True)
class MadeBackup:
    made_at: datetime
    folder: str
    """Where it was written to; it may have been moved since."""
    bytes: int
    has_key: bool
    has_database: bool


def note_backup(home: Path, folder: Path, manifest: Manifest) -> MadeBackup:
    """Remember a backup that was just made. On disk when this returns."""
    moment = datetime.fromisoformat(manifest.made_at)
    made = MadeBackup(moment, str(folder.resolve()), manifest.size, manifest.has_key, bool(manifest.database))
    line = json.dumps({**asdict(made), "made_at": manifest.made_at}).encode() + b"\n"
    path = home / FILE_NAME
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with open(descriptor, "ab", buffering=0) as file:
            file.write(line)
            os.fsync(file.fileno())
    except OSError as error:
        raise Fatal(f"{path} cannot be written: {error.strerror}. The backup itself is complete.") from error
    return made


def list_backups(home: Path) -> list[MadeBackup]:
    """Newest first; a line that cannot be read is passed over."""
    try:
        with (home / FILE_NAME).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            lines = file.read().splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise Fatal(f"{home / FILE_NAME} cannot be read: {error.strerror}.") from error
    return sorted(_made(lines), key=lambda made: made.made_at, reverse=True)[:MOST]


def _made(lines: list[bytes]) -> Iterator[MadeBackup]:
    for line in lines:
        try:
            found = json.loads(line)
            moment = datetime.fromisoformat(found["made_at"])
            if moment.tzinfo is not None:
                folder, size = str(found["folder"]), int(found["bytes"])
                yield MadeBackup(moment, folder, size, bool(found["has_key"]), bool(found["has_database"]))
        except (ValueError, TypeError, KeyError):
            continue

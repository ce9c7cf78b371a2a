"""The folder of files that were uploaded to be imported. Only what lies in it is ever removed."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from pathlib import Path

from postroom.domain.errors import Fatal

UNFINISHED = ".part"
"""The ending of a file that is not an import yet."""
_FORGOTTEN = timedelta(days=1)


def uploads_folder(home: Path) -> Path:
    return home / "uploads"


def remove_upload(home: Path, path: Path) -> None:
    if path.parent != uploads_folder(home):
        raise Fatal(f"{path} is not an uploaded file; it was not removed.")
    path.unlink(missing_ok=True)


def remove_forgotten(home: Path, needed: Collection[Path], now: datetime) -> None:
    """Files of uploads that broke off long ago because the process was killed: no import needs them."""
    folder = uploads_folder(home)
    before = (now - _FORGOTTEN).timestamp()
    for path in folder.iterdir() if folder.is_dir() else ():
        if path not in needed and path.stat().st_mtime < before:
            remove_upload(home, path)

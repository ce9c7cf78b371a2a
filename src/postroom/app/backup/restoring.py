"""`postroom backup restore`: a new home, made of a backup whose every byte is what its manifest says.

All of it is put together beside the place where it belongs and moved there at the end, the control database last: an
interrupted restore never leaves a home that looks complete and is not.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import tomllib
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from postroom.app.backup.creating import (
    DATABASE,
    DUMP,
    FILE_NAME,
    BackupFile,
    Manifest,
    empty_again,
    read_manifest,
    refuse_taken,
)
from postroom.archive.shards.verification import verify
from postroom.archive.status import VerifyReport
from postroom.db.snapshot import Copied, sync
from postroom.domain.errors import BadInput, Fatal
from postroom.settings import FILE_NAME as SETTINGS
from postroom.vault import FOLDER as VAULT

_ASIDE = ".restoring"
_BLOCK = 1 << 20
_LETTERS = "SELECT count(*) FROM actions WHERE status IN ('queued', 'executing') AND type IN ('forward', 'auto_reply')"


@dataclass(frozen=True, slots=True)
class Restored:
    manifest: Manifest
    report: VerifyReport
    """Of the archive, as `postroom verify` finds it."""
    lacks_key: bool
    """Whether there are secrets whose key was not in the backup."""
    letters: int
    """That waited to be sent when the backup was made, and may have been sent since; unknown, and 0, with a dump."""


def restore_backup(
    folder: Path,
    home: Path,
    *,
    copied: Copied = lambda count: None,
    verified: Callable[[int], None] = lambda count: None,
) -> Restored:
    """Make a home, which must be new or empty. A backup that is not whole is refused, and nothing is left behind."""
    manifest = manifest_of(folder)
    _refuse_incomplete(folder, manifest)
    refuse_taken(home, "a restored home")
    existed = home.exists()
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    home.chmod(0o700)
    try:
        _copy_aside(folder, home / _ASIDE, manifest, copied)
        _refuse_damaged_database(home / _ASIDE / DATABASE)
        _move_in(home)
    except BaseException as error:
        empty_again(home, keep=existed)
        if isinstance(error, OSError):
            raise Fatal(f"{error.filename or home}: {error.strerror}. Nothing was left behind.") from error
        raise
    has_secrets = any(entry.path.startswith(f"{VAULT}/") for entry in manifest.files)
    report = verify(home / "archive", progress=verified) if (home / "archive").exists() else VerifyReport()
    return Restored(manifest, report, has_secrets and not manifest.has_key, _letters_waiting(home / DATABASE))


def manifest_of(folder: Path) -> Manifest:
    try:
        content = (folder / FILE_NAME).read_bytes()
    except FileNotFoundError:
        raise BadInput(
            str(folder), f"is no backup, or one that was not finished: there is no {FILE_NAME} in it"
        ) from None
    except OSError as error:
        raise BadInput(str(folder / FILE_NAME), f"cannot be read: {error.strerror}") from error
    return read_manifest(content)


def _refuse_incomplete(folder: Path, manifest: Manifest) -> None:
    """Checked before anything is written: files that are missing or of another size."""
    for entry in manifest.files:
        path = folder / entry.path
        if path.is_symlink() or not path.is_file():
            raise Fatal(f"{path} is missing: the backup is not whole. Nothing was restored.")
        if path.stat().st_size != entry.size:
            raise _changed(path)


def _copy_aside(folder: Path, aside: Path, manifest: Manifest, copied: Copied) -> None:
    aside.mkdir(mode=0o700)
    for entry in manifest.files:
        if entry.path == DUMP:  # for pg_restore, and no part of a home
            _copy(folder, entry, None, copied)
        else:
            target = aside / entry.path
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _copy(folder, entry, target, copied)


def _copy(folder: Path, entry: BackupFile, target: Path | None, copied: Copied) -> None:
    """Copy, or only read, and compare what was read with the manifest."""
    digest = hashlib.sha256()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    out = os.open(target or os.devnull, flags if target else os.O_WRONLY, 0o600)
    with (folder / entry.path).open("rb") as source, os.fdopen(out, "wb") as written:
        while block := source.read(_BLOCK):
            digest.update(block)
            written.write(block)
            copied(len(block))
        written.flush()
        if target:
            os.fsync(written.fileno())
    if digest.hexdigest() != entry.sha256:
        raise _changed(folder / entry.path)


def _refuse_damaged_database(path: Path) -> None:
    if not path.exists():
        return
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
        try:
            [(said,)] = connection.execute("PRAGMA quick_check(1)").fetchall()
        except sqlite3.Error as error:
            said = str(error)
    if said != "ok":
        raise Fatal(f"The control database in the backup is damaged: {said}. Nothing was restored.")


def _letters_waiting(path: Path) -> int:
    if not path.exists():
        return 0
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
        if not connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'actions'").fetchone():
            return 0  # of a Postroom that sent nothing yet
        (count,) = connection.execute(_LETTERS).fetchone()
        return int(count)


def _move_in(home: Path) -> None:
    aside = home / _ASIDE
    for path in sorted(aside.iterdir(), key=lambda path: path.name == DATABASE):
        path.rename(home / path.name)
    aside.rmdir()
    sync(home)


def _changed(path: Path) -> Fatal:
    return Fatal(f"{path} is not what it was when the backup was made. Nothing was restored.")


def names_a_database(home: Path) -> bool:
    """Whether the restored settings name a control database."""
    try:
        return "url" in tomllib.loads((home / SETTINGS).read_text("utf-8")).get("database", {})
    except (FileNotFoundError, tomllib.TOMLDecodeError):
        return False

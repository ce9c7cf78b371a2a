"""`postroom backup create`: a copy that is true of one moment, made while everything runs.

The order is what makes it whole. Raw mail is on disk before the control database speaks of it, and is not taken away
again; so the control database is copied first and the archive after it, and all that the copy speaks of is in it. Mail
that came meanwhile may be in the archive alone: it is taken in again after a restore, as if it had just arrived.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy.engine import URL, make_url

from postroom import __version__
from postroom.app.backup import contents
from postroom.app.backup import contents as manifests
from postroom.app.backup.contents import DATABASE, DUMP, Manifest
from postroom.archive.shards import file_archive
from postroom.audit.chain import head_in_postgres, head_in_sqlite, head_line
from postroom.db import Dialect
from postroom.db.snapshot import Copied, copy_sqlite, dump_postgres, make_private, sync
from postroom.domain.clock import Clock, SystemClock
from postroom.domain.errors import BadInput, Fatal, Retryable
from postroom.settings import VAULT_KEY_VARIABLE, Settings
from postroom.vault import KEY_FILE

Began = Callable[[str], None]
"""Called with the name of each larger thing before it is copied."""

_SPARE = 1.05
"""Small files, and what grows while it is copied."""


def create_backup(
    settings: Settings,
    folder: Path,
    *,
    with_key: bool = False,
    with_database: bool = True,
    began: Began = lambda name: None,
    copied: Copied = lambda count: None,
    clock: Clock | None = None,
) -> Manifest:
    """Copy the installation to a folder that must be new or empty; a copy that fails leaves nothing behind."""
    url = make_url(settings.database_url)
    _refuse_what_cannot_be(settings, url, with_key=with_key, with_database=with_database)
    with _new_folder(folder):
        _refuse_too_little_room(folder, backup_size(settings))
        # A dump is taken later than this, and so holds the head too; a file is asked what it holds.
        head = head_in_postgres(url) if with_database and _sqlite_file(url) is None else None
        database = _copy_all(settings, url if with_database else None, folder, began, copied, with_key=with_key)
        began("and reading back")
        paths = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
        files = manifests.describe(folder, paths, copied)
        now = (clock or SystemClock()).now()
        head = head_in_sqlite(folder / DATABASE) if database == DATABASE else head
        head_text = None if head is None else head_line(head, now)
        manifest = Manifest(now.isoformat(timespec="seconds"), __version__, database, with_key, files, head_text)
        _write(folder / manifests.FILE_NAME, manifests.write_manifest(manifest))
    return manifest


def backup_size(settings: Settings) -> int:
    """About how many bytes of databases are to be copied, each of which is read back once for its hash. A dump of
    PostgreSQL is not among them."""
    database = _sqlite_file(make_url(settings.database_url))
    of_database = database.stat().st_size if database is not None and database.exists() else 0
    return of_database + file_archive.archive_size(settings.home / "archive")


def _copy_all(
    settings: Settings, url: URL | None, folder: Path, began: Began, copied: Copied, *, with_key: bool
) -> str:
    """Copy everything, in the order that keeps it consistent; returns the name of the control database's file."""
    home, archive = settings.home, settings.home / "archive"
    notes, marks = contents.connector_notes(home), file_archive.read_sync_marks(archive)
    heads = contents.audit_heads(home)
    began("control database")
    database = "" if url is None else _copy_database(url, folder, copied)
    file_archive.copy_archive(archive, folder / "archive", copied, before_each=began)
    kept = file_archive.unchanged_sync_marks(marks, file_archive.read_sync_marks(archive))
    small = {
        **contents.joined_notes(notes, contents.connector_notes(home)),
        **contents.settings_and_secrets(home, with_key=with_key),
        **{f"archive/{path}": content for path, content in kept.items()},
        **heads,
    }
    for path, content in small.items():
        _write(folder / path, content)
    return database


def _copy_database(url: URL, folder: Path, copied: Copied) -> str:
    source = _sqlite_file(url)
    if source is None:
        dump_postgres(url, folder / DUMP)
        return DUMP
    if not source.exists():
        raise BadInput("home", f"there is no database in {source}; is POSTROOM_HOME the right folder?")
    copy_sqlite(source, folder / DATABASE, copied)
    return DATABASE


def _sqlite_file(url: URL) -> Path | None:
    return Path(url.database or "") if url.get_backend_name() == Dialect.SQLITE else None


def _refuse_what_cannot_be(settings: Settings, url: URL, *, with_key: bool, with_database: bool) -> None:
    if not with_database and _sqlite_file(url) is not None:
        raise BadInput("--without-database", "is for PostgreSQL; a SQLite database is always part of the backup")
    if with_key and settings.vault_key is not None:
        raise BadInput("--with-key", f"the key is in {VAULT_KEY_VARIABLE} and not in the home folder")
    if with_key and not (settings.home / KEY_FILE).exists():
        raise BadInput("--with-key", f"there is no {KEY_FILE} in {settings.home}; nothing was ever locked with one")


def _refuse_too_little_room(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed * _SPARE:
        raise Retryable(
            f"The disk that holds {folder} has {free / 1e6:,.0f} MB free, and the backup needs about "
            f"{needed * _SPARE / 1e6:,.0f} MB. Nothing was written."
        )


@contextmanager
def _new_folder(folder: Path) -> Iterator[None]:
    """The folder for this process alone, restored to what it was if the block fails."""
    existed = folder.exists()
    refuse_taken(folder, "a backup")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
    except OSError as error:
        raise Fatal(f"{folder} cannot be made: {error.strerror}.") from error
    try:
        yield
    except BaseException as error:
        empty_again(folder, keep=existed)
        if isinstance(error, OSError):
            raise Fatal(f"{error.filename or folder}: {error.strerror}. Nothing was left behind.") from error
        raise


def refuse_taken(folder: Path, what: str) -> None:
    """Refuse a folder that is not empty."""
    try:
        is_taken = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    except OSError as error:
        raise Fatal(f"{folder} cannot be read: {error.strerror}.") from error
    if is_taken:
        raise BadInput(str(folder), f"is not empty; {what} needs a folder of its own")


def empty_again(folder: Path, *, keep: bool) -> None:
    if not keep:
        shutil.rmtree(folder)
        return
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    make_private(path)
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    sync(path.parent)

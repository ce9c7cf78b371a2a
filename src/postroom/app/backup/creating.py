"""`postroom backup create`: a copy that is true of one moment, made while everything runs; what a backup holds (the
small files of a home folder, and a manifest of every file with its size and hash); and which backups were made of this
home.

The order is what makes it whole. Raw mail is on disk before the control database speaks of it, and is not taken away
again; so the control database is copied first and the archive after it, and all that the copy speaks of is in it. Mail
that came meanwhile may be in the archive alone: it is taken in again after a restore, as if it had just arrived.

The manifest is written last, so a folder without one is no backup. It reveals damage and loss, but is not signed. The
list of backups is a line of JSON each, in the home folder, so that pages can say when the last one was. It is not part
of a backup: a restored home has no backup yet.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path, PurePosixPath

from sqlalchemy.engine import URL, make_url

from postroom import __version__
from postroom.archive.shards import file_archive
from postroom.audit.chain import HEADS_FILE as HEADS
from postroom.audit.chain import head_in_postgres, head_in_sqlite, head_line
from postroom.connectors.arrivals import DEFERRED_FILE
from postroom.connectors.state_files import FOLDER as CONNECTORS
from postroom.db import Dialect
from postroom.db.snapshot import Copied, copy_sqlite, dump_postgres, make_private, sync
from postroom.domain.clock import Clock, SystemClock
from postroom.domain.errors import BadInput, Fatal, Retryable
from postroom.settings import DASHBOARD_FILE, VAULT_KEY_VARIABLE, Settings
from postroom.settings import FILE_NAME as SETTINGS
from postroom.switchboard.definitions import OWN_FILE as CATEGORIES
from postroom.vault import FOLDER as VAULT
from postroom.vault import KEY_FILE
from postroom.web.sources import FILE_NAME as SOURCES

FILE_NAME = "manifest.json"
FORMAT = 1

DATABASE = "postroom.db"
DUMP = "database.dump"
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class BackupFile:
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
    files: tuple[BackupFile, ...]
    audit_head: dict[str, object] | None = None
    """The end of the audit log's chain, which `postroom audit verify --heads` compares with; None: nothing sealed."""

    @property
    def size(self) -> int:
        return sum(entry.size for entry in self.files)


def write_manifest(manifest: Manifest) -> bytes:
    return json.dumps({"format": FORMAT, **asdict(manifest)}, indent=1).encode() + b"\n"


def read_manifest(content: bytes) -> Manifest:
    """Parse a manifest; anything else is refused, and so is a path outside the folder."""
    try:
        found = json.loads(content)
        version = found.pop("format")
        if version != FORMAT:
            raise BadInput(FILE_NAME, f"is of format {version}; this Postroom reads format {FORMAT}. Upgrade Postroom.")
        files = tuple(
            BackupFile(str(each["path"]), int(each["size"]), str(each["sha256"])) for each in found.pop("files")
        )
        manifest = Manifest(**found, files=files)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise BadInput(FILE_NAME, "is not the manifest of a backup, or is damaged") from None
    for entry in files:
        _refuse_elsewhere(entry.path)
    if len({entry.path for entry in files}) != len(files):
        raise BadInput(FILE_NAME, "names a file twice")
    return manifest


def describe(folder: Path, paths: Iterable[str], was_read: Callable[[int], None]) -> tuple[BackupFile, ...]:
    """What these files of a folder are; `was_read` is called with the number of bytes read since its last call."""
    return tuple(_describe(folder, path, was_read) for path in paths)


def _describe(folder: Path, path: str, was_read: Callable[[int], None]) -> BackupFile:
    digest = hashlib.sha256()
    size = 0
    with (folder / path).open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            size += len(block)
            was_read(len(block))
    return BackupFile(path, size, digest.hexdigest())


def _refuse_elsewhere(path: str) -> None:
    parts = PurePosixPath(path).parts
    is_plain = bool(parts) and not path.startswith("/") and "\x00" not in path and str(PurePosixPath(path)) == path
    if not is_plain or ".." in parts:
        raise BadInput(FILE_NAME, f"names {path!r}, which is no place within a backup")


Files = dict[str, bytes]
"""Contents by their path below the home folder."""


def settings_and_secrets(home: Path, *, with_key: bool) -> Files:
    """Their writers replace each file as a whole, so none is half written."""
    names = [SETTINGS, DASHBOARD_FILE, SOURCES, CATEGORIES, *([KEY_FILE] if with_key else [])]
    return _contents(home, [*(home / name for name in names), *sorted((home / VAULT).glob("*.sealed"))])


def audit_heads(home: Path) -> Files:
    """To be read before the control database is copied: a head must not be ahead of the seals in the copy."""
    return _contents(home, [home / "archive" / HEADS])


def connector_notes(home: Path) -> Files:
    return _contents(home, sorted((home / CONNECTORS).glob("*/*.json")))


def joined_notes(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> Files:
    """What connectors remember, to go with a control database that was copied between the two looks.

    Positions must not be ahead of the database, so the earlier look counts. A message that was deferred, or a gap that
    was found, is added from the later one: the database may have moved on without it. What is done twice does no harm.
    """
    joined = {**after, **before}
    for path in before:
        if path.endswith(f"/{DEFERRED_FILE}") and path in after:
            joined[path] = _joined_objects(before[path], after[path])
    return joined


def _joined_objects(before: bytes, after: bytes) -> bytes:
    try:
        return json.dumps({**json.loads(after), **json.loads(before)}, separators=(",", ":")).encode()
    except (ValueError, TypeError):
        return after


def _contents(home: Path, paths: list[Path]) -> Files:
    found = {}
    for path in paths:
        try:
            found[str(path.relative_to(home))] = path.read_bytes()
        except FileNotFoundError:  # never there, or replaced or removed in this instant
            continue
    return found


LIST_NAME = "backups.jsonl"
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
    path = home / LIST_NAME
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
        with (home / LIST_NAME).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            lines = file.read().splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise Fatal(f"{home / LIST_NAME} cannot be read: {error.strerror}.") from error
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
        files = describe(folder, paths, copied)
        now = (clock or SystemClock()).now()
        head = head_in_sqlite(folder / DATABASE) if database == DATABASE else head
        head_text = None if head is None else head_line(head, now)
        manifest = Manifest(now.isoformat(timespec="seconds"), __version__, database, with_key, files, head_text)
        _write(folder / FILE_NAME, write_manifest(manifest))
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
    notes, marks = connector_notes(home), file_archive.read_sync_marks(archive)
    heads = audit_heads(home)
    began("control database")
    database = "" if url is None else _copy_database(url, folder, copied)
    file_archive.copy_archive(archive, folder / "archive", copied, before_each=began)
    kept = file_archive.unchanged_sync_marks(marks, file_archive.read_sync_marks(archive))
    small = {
        **joined_notes(notes, connector_notes(home)),
        **settings_and_secrets(home, with_key=with_key),
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

"""The archive as files: SQLite shards below a folder, written by one process at a time, copied while it writes; and the
counts of what each shard holds.

A copy takes the catalogue, certificates and import positions before the shards, so they never claim more than the
copied shards hold. Shards in quarantine are left out.
"""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from postroom.archive.backend import MailWriter, StillAlone
from postroom.archive.certificates import Certificate, Removal, RemovalResult
from postroom.archive.messages import SLOT_BITS, ArchivedMessage, ShardName, account_name, folder_of, path_of
from postroom.archive.search import Search
from postroom.archive.shards import certificates
from postroom.archive.shards import ownership as sync_mark
from postroom.archive.shards.catalogue import settle_lost, shards_of
from postroom.archive.shards.certificates import CERTIFICATES_FILE as CERTIFICATES
from postroom.archive.shards.certificates import Certificates
from postroom.archive.shards.conversations import FileConversationIndex
from postroom.archive.shards.ownership import SYNC_MARK_FILE as SYNC_MARK
from postroom.archive.shards.ownership import Ownership
from postroom.archive.shards.reader import FileArchiveReader, ShardReader, portions, shards_on_disk
from postroom.archive.shards.searching import search_shards
from postroom.archive.shards.verification import repair, verify
from postroom.archive.shards.writer import FileArchiveWriter
from postroom.archive.statistics import (
    RESPONSE_WITHIN_MS,
    SIZE_NUMBER,
    Groups,
    ShardStatistics,
    StatisticsBy,
    Turn,
    all_groups,
)
from postroom.archive.status import Progress, Repair, ShardInfo, SyncMark, VerifyReport
from postroom.db.snapshot import Copied, copy_sqlite
from postroom.domain.clock import Clock
from postroom.settings import ArchiveSettings

_TALLY = "count(*), sum(m.size), sum(m.has_attachment)"
_STATEMENTS = {
    StatisticsBy.SENDER: f"SELECT r.address, {_TALLY} FROM messages m "
    "LEFT JOIN recipients r ON r.id = m.id AND r.kind = 'from' GROUP BY r.address",
    StatisticsBy.MONTH: f"SELECT strftime('%Y-%m', m.date_ms / 1000, 'unixepoch') AS month, {_TALLY} "
    "FROM messages m GROUP BY month",
    StatisticsBy.HOUR: f"SELECT strftime('%H', m.date_ms / 1000, 'unixepoch') AS hour, {_TALLY} "
    "FROM messages m GROUP BY hour",
    StatisticsBy.SIZE: f"SELECT {SIZE_NUMBER.format(size='m.size')} AS number, {_TALLY} "
    "FROM messages m GROUP BY number",
    StatisticsBy.LABEL: f"SELECT l.name, {_TALLY} FROM message_labels ml JOIN labels l USING (label) "
    "JOIN messages m ON m.id = ml.id GROUP BY l.label",
    StatisticsBy.TYPE: "SELECT filename, count(DISTINCT id), sum(size), count(*) FROM attachments GROUP BY filename",
}
_TURNS = """
    SELECT m.thread_id, m.date_ms, r.address, s.id IS NOT NULL, ? FROM messages m
    JOIN recipients r ON r.id = m.id AND r.kind = 'from'
    LEFT JOIN message_labels s ON s.id = m.id AND s.label = (SELECT label FROM labels WHERE name = 'SENT')
    WHERE m.id >= ?"""


def count_shards(root: Path, known: Mapping[str, str]) -> Iterator[ShardStatistics]:
    names = shards_on_disk(root)
    for before, name in zip([None, *names], names, strict=False):
        stamp = _stamp(path_of(root, name))
        groups = None if known.get(str(name)) == stamp else _groups(root, name, before)
        yield ShardStatistics(name.account, str(name), stamp, groups)


def _stamp(path: Path) -> str:
    """Taken before counting, so that a change meanwhile is counted next time."""
    parts = []
    for file in (path, path.with_name(f"{path.name}-wal")):
        try:
            found = file.stat()
            parts.append(f"{found.st_mtime_ns:x}.{found.st_size:x}" if found.st_size else "none")
        except FileNotFoundError:
            parts.append("none")  # an empty log means the same; a reader may make one
    return "-".join(parts)


def _groups(root: Path, name: ShardName, before: ShardName | None) -> Groups:
    turns: list[Turn] = []
    if before is not None and before.account == name.account:
        since_ms = int(datetime(name.year, 1, 1, tzinfo=UTC).timestamp() * 1_000) - RESPONSE_WITHIN_MS
        with closing(ShardReader(root, before)) as shard:
            turns += (Turn(*row) for row in shard.query(_TURNS, (False, max(0, since_ms) << SLOT_BITS)))
    with closing(ShardReader(root, name)) as shard:
        turns += (Turn(*row) for row in shard.query(_TURNS, (True, 0)))
        return all_groups(shard.query, _STATEMENTS, turns, name.account)


@dataclass(frozen=True, slots=True)
class FileCertificateLedger:
    root: Path
    email: str

    def certified(self, gmail_ids: Sequence[str]) -> set[str]:
        return certificates.has_certificate(self.root, self.email, gmail_ids)

    def removed_among(self, removal: Removal, gmail_ids: Sequence[str]) -> set[str]:
        return certificates.removed_among(self.root, self.email, removal, gmail_ids)

    def intended_among(self, removal: Removal, gmail_ids: Sequence[str]) -> set[int]:
        return certificates.intended_among(self.root, self.email, removal, gmail_ids)

    def certificates(
        self,
        *,
        result: RemovalResult | None = None,
        gmail_id: str | None = None,
        before: int | None = None,
        limit: int = 50,
    ) -> list[Certificate]:
        return certificates.list_certificates(
            self.root, self.email, result=result, gmail_id=gmail_id, before=before, limit=limit
        )

    def counts(self) -> dict[RemovalResult, int]:
        return certificates.count_certificates(self.root, self.email)


class FileArchive:
    """The archive below `root`."""

    def __init__(self, root: Path, settings: ArchiveSettings | None = None) -> None:
        self.root = root
        self._settings = settings or ArchiveSettings()

    @property
    def name(self) -> str:
        return str(self.root)

    @property
    def ledger_name(self) -> str:
        return certificates.CERTIFICATES_FILE

    @property
    def sync_holder(self) -> str:
        """The owner of this archive. Only one process can be that, so its name may stay the same over a crash, and the
        next one takes over at once."""
        return f"postroom sync on {socket.gethostname()} (archive {self.root})"

    @property
    def vectors(self) -> Path:
        return self.root

    def reader(self) -> FileArchiveReader:
        return FileArchiveReader(self.root)

    def search(self, clock: Clock | None = None) -> Search:
        return search_shards(self.root, clock)

    def conversations(self) -> FileConversationIndex:
        return FileConversationIndex(self.root)

    def writer(self, purpose: str) -> FileArchiveWriter:
        return FileArchiveWriter(self.root, self._settings, purpose)

    def portions(self, email: str, below: int | None = None) -> Iterator[list[ArchivedMessage]]:
        return portions(self.root, email, below)

    def certificates(self, email: str) -> Certificates:
        return Certificates(self.root, email)

    def ledger(self, email: str) -> FileCertificateLedger:
        return FileCertificateLedger(self.root, email)

    @contextmanager
    def one_archiver(self, email: str) -> Iterator[StillAlone]:
        ownership = Ownership(folder_of(self.root, account_name(email)), "postroom archive run")
        try:
            yield lambda: None  # a lock of the kernel lasts as long as its process
        finally:
            ownership.release()

    def read_mark(self, email: str) -> SyncMark | None:
        return sync_mark.read_mark(self.root, email)

    def write_mark(self, email: str, mark: SyncMark) -> None:
        sync_mark.write_mark(self.root, email, mark)

    def settle_lost(self, email: str) -> None:
        settle_lost(self.root, account_name(email))

    def verify(self, email: str | None = None, progress: Progress = lambda done: None) -> VerifyReport:
        return verify(self.root, email, progress)

    def repair(self, report: VerifyReport, owner: MailWriter | None = None) -> Repair:
        return repair(self.root, report, owner if isinstance(owner, FileArchiveWriter) else None)

    def shards(self, email: str) -> list[ShardInfo]:
        return shards_of(self.root, account_name(email))

    def statistics(self, known: Mapping[str, str]) -> Iterator[ShardStatistics]:
        return count_shards(self.root, known)

    def free_bytes(self) -> int:
        """Of the disk that the archive is on, or will be."""
        existing = next(folder for folder in (self.root, *self.root.parents) if folder.exists())
        return shutil.disk_usage(existing).free

    def close(self) -> None:
        """Nothing to close: no file is held open between calls."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


_CLAIMS = ("imports.db", "catalogue.db")


def archive_size(root: Path) -> int:
    """About how many bytes a copy takes."""
    return sum((root / path).stat().st_size for path in _databases(root) if (root / path).exists())


def read_sync_marks(root: Path) -> dict[str, bytes]:
    """Which sync each account's part belongs to, as files by their place below the root."""
    marks = sorted(root.glob(f"*/{SYNC_MARK}"))
    return {str(path.relative_to(root)): path.read_bytes() for path in marks}


def unchanged_sync_marks(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> dict[str, bytes]:
    """The marks that a copy may bear: those that stood before the control database was copied and still do.

    A mark that was taken away or renewed meanwhile may tell of a loss. Without it the next sync lists everything again.
    """
    return {path: content for path, content in before.items() if after.get(path) == content}


def copy_archive(
    root: Path, target: Path, copied: Copied, *, before_each: Callable[[str], None] = lambda path: None
) -> list[str]:
    """Copy every database of the archive below `root`; returns their places below `target`, which must not exist."""
    done = []
    for path in _databases(root):
        before_each(path)
        (target / path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        copy_sqlite(root / path, target / path, copied)
        done.append(path)
    return done


def _databases(root: Path) -> Iterator[str]:
    """In the order in which they are to be copied; shards are looked for when all before them were taken."""
    yield from (name for name in _CLAIMS if (root / name).exists())
    yield from (str(path.relative_to(root)) for path in sorted(root.glob(f"*/{CERTIFICATES}")))
    yield from (str(path_of(root, name).relative_to(root)) for name in shards_on_disk(root))

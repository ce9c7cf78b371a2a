"""The archive as files: SQLite shards below a folder, written by one process at a time, copied while it writes.

A copy takes the catalogue, certificates and import positions before the shards, so they never claim more than the
copied shards hold. Shards in quarantine are left out.
"""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Self

from postroom.archive import certificates
from postroom.archive.backend import StillAlone
from postroom.archive.certificates import CERTIFICATES_FILE as CERTIFICATES
from postroom.archive.certificates import Certificate, Certificates, Removal, RemovalResult
from postroom.archive.layout import account_name, date_of_id, folder_of, path_of
from postroom.archive.messages import (
    AccountHolding,
    ArchivedAttachment,
    ArchivedMessage,
    ArchivedSentMail,
    KnownId,
    PersonWrittenTo,
)
from postroom.archive.search import Search
from postroom.archive.shards import lookup
from postroom.archive.shards import lookup as source_ids
from postroom.archive.shards import lookup as walking
from postroom.archive.shards import ownership as sync_mark
from postroom.archive.shards.catalogue import ShardInfo, shards_of
from postroom.archive.shards.ownership import SYNC_MARK_FILE as SYNC_MARK
from postroom.archive.shards.ownership import Ownership, SyncMark
from postroom.archive.shards.reader import ArchiveReader, shards_on_disk
from postroom.archive.shards.verification import Progress, Repair, VerifyReport, repair, verify
from postroom.archive.shards.writer import FileArchiveWriter
from postroom.db.snapshot import Copied, copy_sqlite
from postroom.domain.clock import Clock
from postroom.mail.headers import Headers
from postroom.reading.mail import read_headers
from postroom.settings import ArchiveSettings


class FileArchiveReader(ArchiveReader):
    """Everything that a consumer may ask of the shards."""

    def accounts(self) -> list[str]:
        return sorted({name.account for name in shards_on_disk(self.root)})

    def holding(self, email: str) -> AccountHolding:
        sql = "SELECT count(*), coalesce(sum(gmail_id IS NOT NULL AND deleted_at_source IS NULL), 0) FROM messages"
        counts = [shard.query(sql)[0] for shard in self.shards(email)]
        names = shards_on_disk(self.root, account_name(email))
        return AccountHolding(
            messages=sum(messages for messages, _ in counts),
            at_source=sum(at_source for _, at_source in counts),
            bytes=sum(path_of(self.root, name).stat().st_size for name in names),
        )

    def reread(self, message: ArchivedMessage) -> ArchivedMessage | None:
        return self.shard_of(message).message(message.key)

    def find(self, wanted: str, account: str | None = None) -> ArchivedMessage:
        return lookup.find_message(self, wanted, account)

    def find_many(self, email: str, keys: Sequence[str]) -> dict[str, ArchivedMessage]:
        return walking.find_many(self, email, keys)

    def raw_of(self, message: ArchivedMessage) -> bytes:
        return self.shard_of(message).raw(message.row_id)

    def headers_of(self, message: ArchivedMessage) -> Headers:
        return read_headers(self.raw_of(message))

    def body_of(self, message: ArchivedMessage) -> str:
        rows = self.shard_of(message).query("SELECT body FROM texts WHERE id = ?", (message.row_id,))
        return str(rows[0][0]) if rows else ""

    def attachments_of(self, message: ArchivedMessage) -> Iterator[ArchivedAttachment]:
        return self.shard_of(message).attachments(message.row_id)

    def walk(
        self, email: str, date_from: date, date_to: date, after: str | None, limit: int
    ) -> tuple[list[ArchivedMessage], str | None]:
        return walking.walk(self, email, date_from, date_to, after, limit)

    def newest_first(self, emails: Sequence[str] | None = None) -> Iterator[ArchivedMessage]:
        return walking.newest_first(self, emails)

    def oldest_first(self, email: str | None = None) -> Iterator[ArchivedMessage]:
        return walking.oldest_first(self, email)

    def all_ids(self, email: str) -> Iterator[list[KnownId]]:
        return source_ids.all_ids(self, email)

    def look_up(self, email: str, gmail_ids: Sequence[str]) -> Mapping[str, KnownId]:
        return source_ids.look_up(self, email, gmail_ids)

    def written_to(self, email: str) -> Iterator[PersonWrittenTo]:
        sql = (
            "SELECT r.address, max(r.name), max(r.id) FROM message_labels ml JOIN labels l USING (label) "
            "JOIN recipients r ON r.id = ml.id WHERE l.name = 'SENT' AND r.kind IN ('to', 'cc', 'bcc') "
            "GROUP BY r.address"
        )
        for shard in self.shards(email):
            for address, name, row_id in shard.query(sql):
                yield PersonWrittenTo(address, name, date_of_id(row_id))

    def sent_mail(self, email: str) -> Iterator[ArchivedSentMail]:
        sql = (
            "SELECT m.message_id, m.date_ms FROM labels l JOIN message_labels ml USING (label) "
            "JOIN messages m ON m.id = ml.id WHERE l.name = 'SENT' AND m.message_id LIKE '<%>'"
        )
        for shard in self.shards(email):
            for message_id, date_ms in shard.query(sql):
                yield ArchivedSentMail(message_id, datetime.fromtimestamp(date_ms / 1_000, UTC))


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

    def reader(self) -> FileArchiveReader:
        return FileArchiveReader(self.root)

    def search(self, clock: Clock | None = None) -> Search:
        return Search(self.root, clock)

    def writer(self, purpose: str) -> FileArchiveWriter:
        return FileArchiveWriter(self.root, self._settings, purpose)

    def portions(self, email: str, below: int | None = None) -> Iterator[list[ArchivedMessage]]:
        return walking.portions(self.root, email, below)

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

    def verify(self, email: str | None = None, progress: Progress = lambda done: None) -> VerifyReport:
        return verify(self.root, email, progress)

    def repair(self, report: VerifyReport) -> Repair:
        return repair(self.root, report)

    def shards(self, email: str) -> list[ShardInfo]:
        return shards_of(self.root, account_name(email))

    def free_bytes(self) -> int:
        """Of the disk that the archive is on, or will be."""
        existing = next(folder for folder in (self.root, *self.root.parents) if folder.exists())
        return shutil.disk_usage(existing).free

    def close(self) -> None:
        """Nothing is held open between two calls."""

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

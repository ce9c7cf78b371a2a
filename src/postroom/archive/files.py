"""The archive as files: SQLite shards below a folder, one process at a time owning the writers."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Self

from postroom.archive import certificates, lookup, source_ids, sync_mark, walking
from postroom.archive.certificates import Certificate, Certificates, Removal, Result
from postroom.archive.layout import account_name, folder_of, path_of
from postroom.archive.model import (
    ArchivedAttachment,
    ArchivedMessage,
    Holding,
    KnownId,
    PersonWrittenTo,
    SentMail,
)
from postroom.archive.ownership import Ownership
from postroom.archive.place import StillAlone
from postroom.archive.reading import ArchiveReader, shards_on_disk
from postroom.archive.rowids import date_of
from postroom.archive.salvage import Repair, repair
from postroom.archive.search import Search
from postroom.archive.stock import Shard, shards_of
from postroom.archive.store import Archive
from postroom.archive.sync_mark import SyncMark
from postroom.archive.verify import Progress, Report, verify
from postroom.domain.clock import Clock
from postroom.settings import ArchiveSettings


class FilesReader(ArchiveReader):
    """Everything that a consumer may ask of the shards."""

    def accounts(self) -> list[str]:
        return sorted({name.account for name in shards_on_disk(self.root)})

    def holding(self, email: str) -> Holding:
        sql = "SELECT count(*), coalesce(sum(gmail_id IS NOT NULL AND deleted_at_source IS NULL), 0) FROM messages"
        counts = [shard.query(sql)[0] for shard in self.shards(email)]
        names = shards_on_disk(self.root, account_name(email))
        return Holding(
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
                yield PersonWrittenTo(address, name, date_of(row_id))

    def sent_mail(self, email: str) -> Iterator[SentMail]:
        sql = (
            "SELECT m.message_id, m.date_ms FROM labels l JOIN message_labels ml USING (label) "
            "JOIN messages m ON m.id = ml.id WHERE l.name = 'SENT' AND m.message_id LIKE '<%>'"
        )
        for shard in self.shards(email):
            for message_id, date_ms in shard.query(sql):
                yield SentMail(message_id, datetime.fromtimestamp(date_ms / 1_000, UTC))


@dataclass(frozen=True, slots=True)
class FileLedger:
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
        result: Result | None = None,
        gmail_id: str | None = None,
        before: int | None = None,
        limit: int = 50,
    ) -> list[Certificate]:
        return certificates.list_certificates(
            self.root, self.email, result=result, gmail_id=gmail_id, before=before, limit=limit
        )

    def counts(self) -> dict[Result, int]:
        return certificates.count_certificates(self.root, self.email)


class FilesPlace:
    """The archive below `root`."""

    def __init__(self, root: Path, settings: ArchiveSettings | None = None) -> None:
        self.root = root
        self._settings = settings or ArchiveSettings()

    @property
    def name(self) -> str:
        return str(self.root)

    @property
    def ledger_name(self) -> str:
        return certificates.FILE_NAME

    @property
    def sync_holder(self) -> str:
        """The owner of this archive. Only one process can be that, so its name may stay the same over a crash, and the
        next one takes over at once."""
        return f"postroom sync on {socket.gethostname()} (archive {self.root})"

    def reader(self) -> FilesReader:
        return FilesReader(self.root)

    def search(self, clock: Clock | None = None) -> Search:
        return Search(self.root, clock)

    def writer(self, purpose: str) -> Archive:
        return Archive(self.root, self._settings, purpose)

    def portions(self, email: str, below: int | None = None) -> Iterator[list[ArchivedMessage]]:
        return walking.portions(self.root, email, below)

    def certificates(self, email: str) -> Certificates:
        return Certificates(self.root, email)

    def ledger(self, email: str) -> FileLedger:
        return FileLedger(self.root, email)

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

    def verify(self, email: str | None = None, progress: Progress = lambda done: None) -> Report:
        return verify(self.root, email, progress)

    def repair(self, report: Report) -> Repair:
        return repair(self.root, report)

    def shards(self, email: str) -> list[Shard]:
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

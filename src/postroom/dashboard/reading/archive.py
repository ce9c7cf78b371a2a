"""The archive as the dashboard shows it: how far each account is, its gaps, its bad messages, and its files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import select

from postroom.accounts.store import Account, find_account, list_accounts
from postroom.archive.catalogue import Catalogue
from postroom.archive.certificates import Certificate, Result, count_certificates, list_certificates
from postroom.archive.layout import ShardName, account_name, path_of
from postroom.archive.reading import ShardReader, shards_on_disk
from postroom.dashboard.paging import PAGE, Paged, paged
from postroom.dashboard.reading.gap_map import Span, gap_map
from postroom.db import Tx
from postroom.db.tables.sync import bad_messages, sync_windows
from postroom.domain.errors import BadInput, NotFound, PostroomError
from postroom.sync.state import BadMessage, slices_of
from postroom.sync.status import SyncStatus, status_of


@dataclass(frozen=True, slots=True)
class Shard:
    name: str
    year: int
    messages: int
    lost: int
    """Known to have been in it, and not recovered."""
    bytes: int | None
    """On disk, with its journal; null: the file is not there."""
    problem: str | None
    """Why it cannot be read."""


@dataclass(frozen=True, slots=True)
class Files:
    """What of an account lies on disk."""

    shards: list[Shard]
    certificates: dict[Result, int]
    problem: str | None
    """Why this cannot be told in full."""

    @property
    def messages(self) -> int:
        return sum(shard.messages for shard in self.shards)

    @property
    def bytes(self) -> int:
        return sum(shard.bytes or 0 for shard in self.shards)


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Some of the last messages that a sync worked on, and how many of them could not be had."""

    messages: int
    bad: int


@dataclass(frozen=True, slots=True)
class Holdings:
    account: str
    status: SyncStatus
    watermark: datetime | None
    spans: list[Span]
    """From the first mail to now, oldest first: what is proven to be here, and what is not."""
    recent: list[Outcomes]
    """Of the last messages, oldest first: the only thing of which a course over time is kept."""
    files: Files


@dataclass(frozen=True, slots=True)
class CertificatesWanted:
    account: str
    result: Result | None = None
    message: str | None = None
    after: str | None = None
    limit: int = PAGE


def accounts(tx: Tx) -> list[Account]:
    """Removed ones too: their mail is still here."""
    return list_accounts(tx, with_removed=True)


def known_account(tx: Tx, email: str) -> Account:
    account = find_account(tx, email)
    if account is None:
        raise NotFound("account", f"there is no account {email}")
    return account


def files_of(root: Path, email: str) -> Files:
    """From the archive's books, its folders, and a count in each shard. For a thread: disks are slow."""
    try:
        shards = _shards(root, account_name(email))
        return Files(shards, count_certificates(root, email), None)
    except PostroomError as error:
        return Files([], {}, error.message)


def holdings(tx: Tx, account: Account, files: Files, now: datetime) -> Holdings:
    status = status_of(tx, account, now)
    slices = slices_of(tx, account.id)
    ends = [row.slice.end for row in slices if row.slice.end is not None]
    years = [shard.year for shard in files.shards] + [_moment(end).year for end in (*ends[:1], status.watermark) if end]
    spans = gap_map(status.watermark, slices, datetime(min(years), 1, 1, tzinfo=UTC), now) if years else []
    watermark = _moment(status.watermark) if status.watermark else None
    return Holdings(account.email, status, watermark, spans, _recent(tx, account.id), files)


def bad_page(tx: Tx, email: str, after: str | None, limit: int = PAGE) -> Paged[BadMessage]:
    """By their ids at the source, which the key of the table holds in order."""
    account = known_account(tx, email)
    query = select(bad_messages).where(bad_messages.c.account_id == account.id).order_by(bad_messages.c.gmail_id)
    if after is not None:
        query = query.where(bad_messages.c.gmail_id > after)
    rows = tx.execute(query.limit(limit + 1)).all()
    found = [
        BadMessage(row.gmail_id, row.reason, row.first_seen, row.last_tried, row.tries, row.reader_version)
        for row in rows
    ]
    return paged(found, limit, lambda message: message.gmail_id)


def certificates_page(root: Path, wanted: CertificatesWanted) -> Paged[Certificate]:
    """Newest first. For a thread."""
    if wanted.after is not None and not (wanted.after.isascii() and wanted.after.isdigit() and len(wanted.after) < 18):
        raise BadInput("after", "is not the number of a certificate; begin again at the first page")
    found = list_certificates(
        root,
        wanted.account,
        result=wanted.result,
        gmail_id=wanted.message,
        before=None if wanted.after is None else int(wanted.after),
        limit=wanted.limit + 1,
    )
    return paged(found, wanted.limit, lambda certificate: str(certificate.number))


def _shards(root: Path, account: str) -> list[Shard]:
    """Those that should be there and those that are, newest first."""
    catalogue = Catalogue(root)
    try:
        known = {record.name: record for record in catalogue.shards(account)}
    finally:
        catalogue.close()
    names = sorted({*known, *shards_on_disk(root, account)}, reverse=True)
    return [_shard(root, name, known[name].lost if name in known else 0) for name in names]


def _shard(root: Path, name: ShardName, lost: int) -> Shard:
    """One that cannot be read is shown as such, and hides no other."""
    size = _size(path_of(root, name))
    if size is None:
        return Shard(name.filename, name.year, 0, lost, None, "The file is missing. Restore it from a backup.")
    try:
        return Shard(name.filename, name.year, _count(root, name), lost, size, None)
    except PostroomError as error:
        return Shard(name.filename, name.year, 0, lost, size, error.message)


def _count(root: Path, name: ShardName) -> int:
    shard = ShardReader(root, name)
    try:
        return int(shard.query("SELECT count(*) FROM messages")[0][0])
    finally:
        shard.close()


def _size(path: Path) -> int | None:
    try:
        journal = path.with_name(path.name + "-wal")
        return path.stat().st_size + (journal.stat().st_size if journal.exists() else 0)
    except FileNotFoundError:
        return None


def _recent(tx: Tx, account_id: str) -> list[Outcomes]:
    text = tx.execute(select(sync_windows.c.outcomes).where(sync_windows.c.account_id == account_id)).scalar()
    parts: Sequence[tuple[int, int]] = json.loads(text or "[]")
    return [Outcomes(messages, bad) for messages, bad in parts]


def _moment(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)

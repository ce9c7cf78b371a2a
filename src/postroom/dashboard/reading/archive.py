"""The archive as the dashboard shows it: how far each account is, its gaps, its bad messages, and its files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import select

from postroom.accounts.store import Account, find_account, list_accounts
from postroom.accounts.troubled import TroubledMessage, troubled_of
from postroom.archive.certificates import Certificate, Result
from postroom.archive.place import ArchivePlace
from postroom.archive.stock import Shard
from postroom.dashboard.paging import PAGE, Paged, paged
from postroom.dashboard.reading.gap_map import Span, gap_map
from postroom.db import Tx
from postroom.db.tables.sync import sync_windows
from postroom.domain.errors import BadInput, NotFound, PostroomError
from postroom.sync.state import slices_of
from postroom.sync.status import SyncStatus, status_of


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


def files_of(place: ArchivePlace, email: str) -> Files:
    """From the archive's books, its folders, and a count in each shard. For a thread: disks are slow."""
    try:
        return Files(place.shards(email), place.ledger(email).counts(), None)
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


def bad_page(tx: Tx, email: str, after: str | None, limit: int = PAGE) -> Paged[TroubledMessage]:
    """By their keys, which the table holds in order."""
    account = known_account(tx, email)
    return paged(troubled_of(tx, account.id, after, limit + 1), limit, lambda message: message.key)


def certificates_page(place: ArchivePlace, wanted: CertificatesWanted) -> Paged[Certificate]:
    """Newest first. For a thread."""
    if wanted.after is not None and not (wanted.after.isascii() and wanted.after.isdigit() and len(wanted.after) < 18):
        raise BadInput("after", "is not the number of a certificate; begin again at the first page")
    found = place.ledger(wanted.account).certificates(
        result=wanted.result,
        gmail_id=wanted.message,
        before=None if wanted.after is None else int(wanted.after),
        limit=wanted.limit + 1,
    )
    return paged(found, wanted.limit, lambda certificate: str(certificate.number))


def _recent(tx: Tx, account_id: str) -> list[Outcomes]:
    text = tx.execute(select(sync_windows.c.outcomes).where(sync_windows.c.account_id == account_id)).scalar()
    parts: Sequence[tuple[int, int]] = json.loads(text or "[]")
    return [Outcomes(messages, bad) for messages, bad in parts]


def _moment(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)

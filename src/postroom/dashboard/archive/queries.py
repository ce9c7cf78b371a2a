"""What the archive holds of each account: proven coverage over time, gaps, bad messages, files and certificates; and
what this process has counted of its calls to Gmail, from its own metrics.

No time series is kept in the database: scrape `/metrics` for those.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from sqlalchemy import select

from postroom.accounts.account import Account, find_account, list_accounts
from postroom.accounts.troubled import TroubledMessage, troubled_of
from postroom.archive.backend import ArchiveBackend
from postroom.archive.certificates import Certificate, RemovalResult
from postroom.archive.status import ShardInfo
from postroom.dashboard.context import RequestContext
from postroom.dashboard.paging import PAGE, Paged, paged
from postroom.db import Tx
from postroom.db.tables.accounts import sync_windows
from postroom.domain.errors import BadInput, NotFound, PostroomError
from postroom.sync.state import SliceRow, slices_of
from postroom.sync.status import SyncStatus, status_of
from postroom.telemetry.metrics import MetricSample


class Coverage(StrEnum):
    PROVEN = "proven"
    """Before the watermark: every message is stored, listed as bad, or gone at the source."""
    AHEAD = "ahead"
    """Done, but after something that is not, so the watermark has not come here."""
    OPEN = "open"
    """Planned, and not done yet."""
    UNLISTED = "unlisted"
    """Since the last look at the source."""


@dataclass(frozen=True, slots=True)
class CoverageSpan:
    holding: Coverage
    start: datetime
    end: datetime

    @property
    def seconds(self) -> float:
        return (self.end - self.start).total_seconds()


def gap_map(watermark: int, slices: Sequence[SliceRow], first: datetime, now: datetime) -> list[CoverageSpan]:
    """From `first` to now, without a hole and without an overlap; neighbours of a kind are one."""
    left, right = int(first.timestamp()), int(now.timestamp())
    return list(_spans(_joined(_pieces(watermark, slices, left, right))))


Piece = tuple[Coverage, int, int]


def _pieces(watermark: int, slices: Sequence[SliceRow], left: int, right: int) -> Iterator[Piece]:
    reached = max(left, min(watermark, right))
    if reached > left:
        yield Coverage.PROVEN, left, reached
    for row in slices:
        if row.slice.end is None:
            break
        start, end = max(row.slice.start, reached), min(row.slice.end, right)
        if start > reached and start < right:
            yield Coverage.UNLISTED, reached, start
        if end > start:
            yield (Coverage.AHEAD if row.is_done else Coverage.OPEN), start, end
            reached = end
    if reached < right:
        yield Coverage.UNLISTED, reached, right


def _joined(pieces: Iterable[Piece]) -> Iterator[Piece]:
    last: Piece | None = None
    for holding, start, end in pieces:
        if last is not None and last[0] is holding:
            last = (holding, last[1], end)
            continue
        if last is not None:
            yield last
        last = (holding, start, end)
    if last is not None:
        yield last


def _spans(pieces: Iterable[Piece]) -> Iterator[CoverageSpan]:
    for holding, start, end in pieces:
        yield CoverageSpan(holding, datetime.fromtimestamp(start, UTC), datetime.fromtimestamp(end, UTC))


@dataclass(frozen=True, slots=True)
class ArchiveFiles:
    """What of an account lies on disk."""

    shards: list[ShardInfo]
    certificates: dict[RemovalResult, int]
    problem: str | None
    """Why this cannot be told in full."""

    @property
    def messages(self) -> int:
        return sum(shard.messages for shard in self.shards)

    @property
    def bytes(self) -> int:
        return sum(shard.bytes or 0 for shard in self.shards)


@dataclass(frozen=True, slots=True)
class OutcomeCounts:
    """Some of the last messages that a sync worked on, and how many of them could not be had."""

    messages: int
    bad: int


@dataclass(frozen=True, slots=True)
class ArchiveHoldings:
    account: str
    status: SyncStatus
    watermark: datetime | None
    spans: list[CoverageSpan]
    """From the first mail to now, oldest first: what is proven to be here, and what is not."""
    recent: list[OutcomeCounts]
    """Of the last messages, oldest first: the only thing of which a course over time is kept."""
    files: ArchiveFiles


@dataclass(frozen=True, slots=True)
class CertificatesWanted:
    account: str
    result: RemovalResult | None = None
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


def files_of(place: ArchiveBackend, email: str) -> ArchiveFiles:
    """From the archive's books, its folders, and a count in each shard. For a thread: disks are slow."""
    try:
        return ArchiveFiles(place.shards(email), place.ledger(email).counts(), None)
    except PostroomError as error:
        return ArchiveFiles([], {}, error.message)


def holdings(tx: Tx, account: Account, files: ArchiveFiles, now: datetime) -> ArchiveHoldings:
    status = status_of(tx, account, now)
    slices = slices_of(tx, account.id)
    ends = [row.slice.end for row in slices if row.slice.end is not None]
    years = [shard.year for shard in files.shards] + [_moment(end).year for end in (*ends[:1], status.watermark) if end]
    spans = gap_map(status.watermark, slices, datetime(min(years), 1, 1, tzinfo=UTC), now) if years else []
    watermark = _moment(status.watermark) if status.watermark else None
    return ArchiveHoldings(account.email, status, watermark, spans, _recent(tx, account.id), files)


def bad_page(tx: Tx, email: str, after: str | None, limit: int = PAGE) -> Paged[TroubledMessage]:
    """By their keys, which the table holds in order."""
    account = known_account(tx, email)
    return paged(troubled_of(tx, account.id, after, limit + 1), limit, lambda message: message.key)


def certificates_page(place: ArchiveBackend, wanted: CertificatesWanted) -> Paged[Certificate]:
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


def _recent(tx: Tx, account_id: str) -> list[OutcomeCounts]:
    text = tx.execute(select(sync_windows.c.outcomes).where(sync_windows.c.account_id == account_id)).scalar()
    parts: Sequence[tuple[int, int]] = json.loads(text or "[]")
    return [OutcomeCounts(messages, bad) for messages, bad in parts]


def _moment(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


async def all_holdings(here: RequestContext) -> list[ArchiveHoldings]:
    place = here.app.archive.place
    known = await here.read(accounts)
    files = await asyncio.to_thread(lambda: [files_of(place, account.email) for account in known])
    return await here.read(
        lambda tx: [holdings(tx, account, each, here.now) for account, each in zip(known, files, strict=True)]
    )


_CALLS, _LATENCY = "postroom_gmail_calls_total", "postroom_gmail_latency_seconds"
_RETRIES, _SPLITS, _BAD = "postroom_sync_retries_total", "postroom_sync_splits_total", "postroom_sync_bad_total"
_STARTED = "process_start_time_seconds"


@dataclass(frozen=True, slots=True)
class ProcessFigures:
    started_at: datetime | None
    calls: dict[str, int]
    """By outcome: ok, throttled, unreachable ..."""
    median_s: float | None
    """Half of the calls took at most this; to the bounds of the histogram."""
    slow_s: float | None
    """Nineteen of twenty took at most this."""
    retries: int
    splits: int
    bad: int

    @property
    def total(self) -> int:
        return sum(self.calls.values())


def figures_of(samples: Iterable[MetricSample]) -> ProcessFigures:
    calls, buckets, sums = Counter[str](), Counter[float](), defaultdict[str, float](float)
    for sample in samples:
        if sample.name == _CALLS:
            calls[sample.labels.get("outcome", "")] += int(sample.value)
        elif sample.name == f"{_LATENCY}_bucket":
            buckets[float(sample.labels["le"])] += int(sample.value)
        elif sample.name in (_RETRIES, _SPLITS, _BAD, _STARTED):
            sums[sample.name] += sample.value
    started = sums[_STARTED]
    return ProcessFigures(
        started_at=datetime.fromtimestamp(started, UTC) if started else None,
        calls=dict(calls.most_common()),
        median_s=quantile(buckets, 0.5),
        slow_s=quantile(buckets, 0.95),
        retries=int(sums[_RETRIES]),
        splits=int(sums[_SPLITS]),
        bad=int(sums[_BAD]),
    )


def quantile(buckets: dict[float, int], share: float) -> float | None:
    """The smallest bound below which such a share of all lies; None where there are none, or none so small."""
    bounds = sorted(buckets)
    if not bounds or not buckets[bounds[-1]]:
        return None
    wanted = share * buckets[bounds[-1]]
    found = next(bound for bound in bounds if buckets[bound] >= wanted)
    return None if found == float("inf") else found

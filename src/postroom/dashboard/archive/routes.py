"""The archive of each account: proven coverage over time, gaps, bad messages, files and removal certificates; and what
this process has counted of its calls to Gmail, from its own metrics.

No time series is kept in the database: scrape `/metrics` for those.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated

from fastapi import Query
from pydantic import Field
from sqlalchemy import select
from starlette.responses import Response

from postroom.accounts.account import (
    Account,
    AccountStatus,
    find_account,
    find_mailbox,
    list_accounts,
    list_archived_mailboxes,
)
from postroom.accounts.troubled import TroubledMessage, troubled_archives, troubled_of
from postroom.app.archive_statistics import CountedCoverage, read_coverage
from postroom.archive.backend import ArchiveBackend
from postroom.archive.certificates import Certificate, RemovalResult
from postroom.archive.messages import account_name
from postroom.archive.status import ShardInfo
from postroom.contract import steering
from postroom.dashboard.archive import contents
from postroom.dashboard.context import Here, RequestContext, api_router, named_by, pages_router, permits
from postroom.dashboard.display import charts
from postroom.dashboard.display.formatting import duration, percent
from postroom.dashboard.forms import Form
from postroom.dashboard.paging import ListQuery, Paged, number_after, paged
from postroom.dashboard.series import TOPICS, SeriesTopic, TimeWindow, read_series, sync_panels, window_links
from postroom.db import Tx
from postroom.db.tables.accounts import sync_windows
from postroom.domain.errors import NotFound, PostroomError
from postroom.domain.roles import Permission
from postroom.sync.state import SliceRow, slices_of
from postroom.sync.status import SyncStatus, status_of
from postroom.telemetry import metrics
from postroom.telemetry.metrics import MetricSample


class Coverage(StrEnum):
    PROVEN = "proven"
    """Before the watermark: every message is stored, listed as bad, or deleted at the source."""
    AHEAD = "ahead"
    """Done, but something before it is not, so the watermark has not reached it."""
    OPEN = "open"
    """Planned, but not done yet."""
    UNLISTED = "unlisted"
    """Newer than the last listing of the source."""


@dataclass(frozen=True, slots=True)
class CoverageSpan:
    holding: Coverage
    start: datetime
    end: datetime

    @property
    def seconds(self) -> float:
        return (self.end - self.start).total_seconds()


def gap_map(watermark: int, slices: Sequence[SliceRow], first: datetime, now: datetime) -> list[CoverageSpan]:
    """From `first` to now, without holes or overlaps; adjacent spans of a kind are joined."""
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
    """An account's files on disk."""

    shards: list[ShardInfo]
    certificates: dict[RemovalResult, int]
    problem: str | None
    """Why this is not complete."""

    @property
    def messages(self) -> int:
        return sum(shard.messages for shard in self.shards)

    @property
    def bytes(self) -> int:
        return sum(shard.bytes or 0 for shard in self.shards)


@dataclass(frozen=True, slots=True)
class OutcomeCounts:
    """Some of the last messages that a sync worked on, and how many of them failed."""

    messages: int
    bad: int


@dataclass(frozen=True, slots=True)
class ArchiveHoldings:
    account: str
    status: SyncStatus
    watermark: datetime | None
    spans: list[CoverageSpan]
    """From the first mail to now, oldest first: what is proven to be archived, and what is not."""
    recent: list[OutcomeCounts]
    """The last messages, oldest first: the only figures that are kept over time."""
    files: ArchiveFiles


@dataclass(frozen=True, slots=True)
class TroubledArchive:
    """A mailbox with bad messages that is not connected: its mail was imported, or its account was removed."""

    account: str
    """Its address."""
    bad: int


class BadMessagesQuery(ListQuery):
    account: str = Field(max_length=320, description="the account or the archived mailbox, by its address")


class CertificatesQuery(ListQuery):
    account: str = Field(max_length=320, description="the account, by its address")
    result: RemovalResult | None = None
    message: str | None = Field(None, max_length=100, description="the id that the message has at its source")


def accounts(tx: Tx) -> list[Account]:
    """Also removed ones: their mail is still archived."""
    return list_accounts(tx, with_removed=True)


def known_account(tx: Tx, email: str) -> Account:
    account = find_account(tx, email)
    if account is None:
        raise NotFound("account", f"there is no account {email}")
    return account


def files_of(place: ArchiveBackend, email: str) -> ArchiveFiles:
    """From the catalogue, the folders, and a count in each shard. Reads files, so call it in a thread."""
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


def bad_page(tx: Tx, wanted: BadMessagesQuery) -> Paged[TroubledMessage]:
    """By their keys."""
    mailbox = find_mailbox(tx, wanted.account) or known_account(tx, wanted.account)
    found = troubled_of(tx, mailbox.id, wanted.after, wanted.limit + 1)
    return paged(found, wanted.limit, lambda message: message.key)


def certificates_page(place: ArchiveBackend, wanted: CertificatesQuery) -> Paged[Certificate]:
    """Newest first. Reads files, so call it in a thread."""
    found = place.ledger(wanted.account).certificates(
        result=wanted.result,
        gmail_id=wanted.message,
        before=number_after(wanted.after, 10**18),
        limit=wanted.limit + 1,
    )
    return paged(found, wanted.limit, lambda certificate: str(certificate.number))


def _recent(tx: Tx, account_id: str) -> list[OutcomeCounts]:
    text = tx.execute(select(sync_windows.c.outcomes).where(sync_windows.c.account_id == account_id)).scalar()
    parts: Sequence[tuple[int, int]] = json.loads(text or "[]")
    return [OutcomeCounts(messages, bad) for messages, bad in parts]


def _moment(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


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
    """95 % of the calls took at most this."""
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
    """The smallest bucket bound that holds this share of all values; None if there is no such bound."""
    bounds = sorted(buckets)
    if not bounds or not buckets[bounds[-1]]:
        return None
    wanted = share * buckets[bounds[-1]]
    found = next(bound for bound in bounds if buckets[bound] >= wanted)
    return None if found == float("inf") else found


pages = pages_router()
api = api_router("archive")

SECTION = "archive"
BadMessagesWanted = Annotated[BadMessagesQuery, Query()]
CertificatesWanted = Annotated[CertificatesQuery, Query()]
_GAPS_SHOWN = 20
_KINDS = list(Coverage)


@pages.get("/archive")
async def archive_page(here: Here, window: TimeWindow = TimeWindow.DAY) -> Response:
    return await render_archive(here, window)


async def render_archive(
    here: Here, window: TimeWindow = TimeWindow.DAY, form: Form | None = None, status: int = 200
) -> Response:
    """The page; `form` is that of the files to import, if it was refused."""
    held = await show_holdings(here)
    mailboxes = await _mailboxes(here, held)
    reading, importable, coverage = await here.read(
        lambda tx: (
            read_series(tx, TOPICS[SeriesTopic.SYNC], window, here.now),
            _importable_mailboxes(tx),
            read_coverage(tx),
        )
    )
    return await here.page(
        "archive/overview.html",
        SECTION,
        status,
        form=form or Form(),
        imports=(await here.call(steering.LIST_IMPORTS, {})).imports,
        importable=importable,
        most=here.app.settings.dashboard.upload_bytes,
        held=held,
        maps={each.account: _map(each) for each in held},
        gaps={each.account: _gaps(each.spans) for each in held},
        unconnected=await show_unconnected(here),
        mailboxes=mailboxes,
        years=contents.year_panels(mailboxes),
        coloured=[each.account for each in contents.chart_order(mailboxes)],
        in_files=here.app.settings.archive.store == "files",
        recent={each.account: _recent_chart(each) for each in held if each.recent},
        figures=figures_of(metrics.samples()),
        percent=percent,
        coverage=coverage,
        windows=window_links("/archive", window),
        panels=sync_panels(reading),
    )


@api.get("/coverage")
@permits(Permission.READ)
async def show_text_coverage(here: Here) -> CountedCoverage:
    """For each account how many texts of messages and attachments are indexed, or why not, as last counted."""
    return await here.read(read_coverage)


@api.get("")
@permits(Permission.READ)
async def show_holdings(here: Here) -> list[ArchiveHoldings]:
    """For each account what is proven to be in the archive, what is missing, and its files."""
    place = here.app.archive.backend
    known = await here.read(accounts)
    files = await asyncio.to_thread(lambda: [files_of(place, account.email) for account in known])
    return await here.read(
        lambda tx: [holdings(tx, account, each, here.now) for account, each in zip(known, files, strict=True)]
    )


@api.get("/mailboxes")
@permits(Permission.READ)
async def show_mailboxes(here: Here) -> list[contents.MailboxHolding]:
    """How much mail of each mailbox the archive has, year by year; also of imported mail without an account."""
    return await _mailboxes(here, await show_holdings(here))


async def _mailboxes(here: RequestContext, held: Sequence[ArchiveHoldings]) -> list[contents.MailboxHolding]:
    """Those with an account first."""
    removed = {each.email for each in await here.read(accounts) if each.status is AccountStatus.REMOVED}
    known = [
        contents.mailbox_holding(
            each.account,
            contents.MailboxOrigin.REMOVED if each.account in removed else contents.MailboxOrigin.CONNECTED,
            each.files.shards,
            each.files.certificates,
        )
        for each in held
    ]
    names = {account_name(each.account) for each in held}
    return [*known, *await asyncio.to_thread(_imported, here.app.archive.backend, names)]


def _imported(place: ArchiveBackend, names: Container[str]) -> list[contents.MailboxHolding]:
    others = [email for email in contents.archived_accounts(place) if account_name(email) not in names]
    files = ((email, files_of(place, email)) for email in others)
    return [
        contents.mailbox_holding(email, contents.MailboxOrigin.IMPORTED, each.shards, each.certificates)
        for email, each in files
    ]


def _importable_mailboxes(tx: Tx) -> list[str]:
    """Whose mail may be imported: every mailbox that is known. Others can be named."""
    return sorted({each.email for each in list_accounts(tx)} | {each.email for each in list_archived_mailboxes(tx)})


@api.get("/unconnected")
@permits(Permission.READ)
async def show_unconnected(here: Here) -> list[TroubledArchive]:
    """Mailboxes that are not connected but have bad messages: of imported mail, and of removed accounts."""
    found = await here.read(troubled_archives)
    return [TroubledArchive(mailbox.email, number) for mailbox, number in found]


@api.get("/process")
@permits(Permission.READ)
async def process(here: Here) -> ProcessFigures:
    """Calls to Gmail, latencies, retries and splits since this process started; `/api/series` has all processes."""
    return figures_of(metrics.samples())


@pages.get("/archive/bad")
async def bad_messages_page(here: Here, wanted: BadMessagesWanted) -> Response:
    return await here.page("archive/bad.html", SECTION, wanted=wanted, found=await show_bad(here, wanted))


@api.get("/bad")
@permits(Permission.READ, named_by("account"))
async def show_bad(here: Here, wanted: BadMessagesWanted) -> Paged[TroubledMessage]:
    """Messages that could not be fetched, parsed or stored, with the reason."""
    return await here.read(lambda tx: bad_page(tx, wanted))


@pages.get("/archive/certificates")
async def certificate_list_page(here: Here, wanted: CertificatesWanted) -> Response:
    found = await show_certificates(here, wanted)
    return await here.page(
        "archive/certificates.html", SECTION, wanted=wanted, found=found, results=list(RemovalResult)
    )


@api.get("/certificates")
@permits(Permission.READ, named_by("account"))
async def show_certificates(here: Here, wanted: CertificatesWanted) -> Paged[Certificate]:
    """Removal certificates, newest first: which bytes were on disk, and where, before a message was removed."""
    account = await here.read(lambda tx: known_account(tx, wanted.account))
    known = wanted.model_copy(update={"account": account.email})
    return await asyncio.to_thread(certificates_page, here.app.archive.backend, known)


def _map(held: ArchiveHoldings) -> charts.Chart:
    lengths = Counter[Coverage]()
    for span in held.spans:
        lengths[span.holding] += int(span.seconds)
    totals = [charts.ChartPart(kind, lengths[kind], duration(lengths[kind])) for kind in _KINDS if lengths[kind]]
    stretches = [charts.BandSegment(_KINDS.index(span.holding), span.seconds) for span in held.spans]
    return charts.band(f"Archive coverage of {held.account}", stretches, totals)


def _gaps(spans: list[CoverageSpan]) -> list[CoverageSpan]:
    """The spans that hold up the watermark, oldest first. Mail newer than the last listing is no gap."""
    return [span for span in spans if span.holding is Coverage.OPEN][:_GAPS_SHOWN]


def _recent_chart(held: ArchiveHoldings) -> charts.Chart:
    points = [
        charts.ChartPart(
            f"{part.messages} messages", part.bad / max(part.messages, 1), percent(part.bad, part.messages)
        )
        for part in held.recent
    ]
    return charts.sparkline("Share of bad messages, newest on the right", points)

"""Estimates what a backfill will bring, cost and take (BF-19), and compares the estimate with the outcome.

Messages are counted in the archive where it holds the days completely, else sampled at the source.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Collection, Container, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from typing import Protocol

from sqlalchemy import func, select

from postroom.accounts.access import GmailAccess
from postroom.accounts.account import Account, get_account
from postroom.accounts.history_cursor import is_held
from postroom.archive.backend import ArchiveBackend, MailReader
from postroom.archive.messages import ArchivedMessage
from postroom.contract.backfill import EstimatedDuration, EstimateReply
from postroom.db import Database, Tx
from postroom.db.tables.mail import contacts
from postroom.db.tables.triage import model_calls
from postroom.domain.backfill import BackfillMode, Include
from postroom.domain.clock import Clock
from postroom.domain.model_costs import (
    MOST_TEXT_BYTES,
    CostMeter,
    Duration,
    TokenCounts,
    classification_cost,
    job_duration,
)
from postroom.domain.money import Micros, from_cents, to_cents
from postroom.mail.addresses import parse_addresses
from postroom.mail.categories import Categories, facts_of
from postroom.mail.headers import Headers
from postroom.mail.tier_policy import TierPolicy
from postroom.mailboxes.gmail.quota import PROFILES
from postroom.mailboxes.ports import PriorityLane
from postroom.mailboxes.protocol import Detail, Mailbox, Span
from postroom.mailboxes.reader import sort_results
from postroom.settings import BackfillSettings
from postroom.switchboard import tier_policy
from postroom.switchboard.backfill.job import BackfillJob
from postroom.switchboard.backfill.operations import NewBackfill, checked

FULL, METADATA, SKIP = 1, 2, 3
Treat = Callable[[Headers, Collection[str]], int]
"""The tier policy: 1 full, 2 metadata only, 3 skip."""

_PAGE = 500
_MOST_PAGES = 40
SAMPLE = 150
_TEXTS_MEASURED = 500
_CHARS_A_TOKEN = 4
_LEFT_OUT = {
    "DRAFT": Include.DRAFTS,
    "SENT": Include.SENT,
    "SPAM": Include.SPAM,
    "TRASH": Include.TRASH,
}


class CountedIn(StrEnum):
    ARCHIVE = "archive"
    SOURCE = "source"


@dataclass(frozen=True, slots=True)
class Counts:
    source: CountedIn
    is_exact: bool
    listed: int
    """Messages that must be looked at."""
    full: int
    metadata: int
    left_out: int
    text_tokens: int | None = None
    """The average number of tokens in the text of a full message; None if none was measured."""
    margin: int = 0
    """The 95 % margin of error, in messages."""

    @property
    def messages(self) -> int:
        """What would be taken in."""
        return self.full + self.metadata


@dataclass
class BackfillTally:
    """Counts messages one by one, as the connector's backfill would treat them."""

    wanted: NewBackfill
    categories: Categories
    treat: Treat
    known: Container[str]
    listed: int = 0
    full: int = 0
    metadata: int = 0

    def add(self, headers: Headers, labels: Collection[str]) -> bool:
        """True if it would be taken in with its body."""
        self.listed += 1
        if any(label in labels and include not in self.wanted.includes for label, include in _LEFT_OUT.items()):
            return False
        if self.wanted.target_categories and not self._is_wanted(headers):
            return False
        treatment = self.treat(headers, labels)
        self.full += treatment == FULL
        self.metadata += treatment == METADATA
        return treatment == FULL

    def _is_wanted(self, headers: Headers) -> bool:
        senders = parse_addresses(*headers.get_all("From")[:1])
        is_known = bool(senders) and senders[0].canonical in self.known
        return bool(self.categories.matching(facts_of(headers, is_known=is_known), self.wanted.target_categories))


def count_archive(place: ArchiveBackend, tally: BackfillTally) -> Counts:
    """Exact: looks at every message of the days. Slow, so call it from a thread."""
    sizes: list[int] = []
    with place.reader() as archive:
        for message in _walked(archive, tally.wanted):
            headers = archive.headers_of(message)
            if tally.add(headers, message.labels) and len(sizes) < _TEXTS_MEASURED:
                sizes.append(min(len(archive.body_of(message)), MOST_TEXT_BYTES))
    tokens = sum(sizes) // len(sizes) // _CHARS_A_TOKEN if sizes else None
    taken = tally.full + tally.metadata
    return Counts(CountedIn.ARCHIVE, True, tally.listed, tally.full, tally.metadata, tally.listed - taken, tokens)


def _walked(archive: MailReader, wanted: NewBackfill) -> Iterator[ArchivedMessage]:
    cursor: str | None = None
    while True:
        found, cursor = archive.walk(wanted.endpoint_identity, wanted.date_from, wanted.date_to, cursor, _PAGE)
        yield from (message for message in found if message.deleted_at_source is None)
        if cursor is None:
            return


class CountableMailboxes(Protocol):
    def open(self, endpoint_identity: str) -> AbstractAsyncContextManager[Mailbox]:
        """The mailbox, connected."""


async def count_at_source(mailboxes: CountableMailboxes, tally: BackfillTally, sample_size: int = SAMPLE) -> Counts:
    """List ids with the categories' query, which is cheap, and estimate from a sample how many of them are taken in."""
    wanted = tally.wanted
    async with mailboxes.open(wanted.endpoint_identity) as mailbox:
        ids, total, is_complete = await _listed(mailbox, wanted, tally.categories)
        sample = ids[:: max(1, len(ids) // sample_size)][:sample_size]
        # With all headers: asking for fewer is no cheaper, and the tier policy may look at any.
        for message in sort_results(await mailbox.fetch(sample, Detail.HEADERS)).got:
            tally.add(Headers(message.headers), message.label_ids)
    looked_at = max(tally.listed, 1)
    full, metadata = round(total * tally.full / looked_at), round(total * tally.metadata / looked_at)
    is_exact = is_complete and tally.listed == total
    margin = 0 if is_exact else _margin(tally.full + tally.metadata, looked_at, total)
    return Counts(CountedIn.SOURCE, is_exact, total, full, metadata, total - full - metadata, margin=margin)


def _margin(taken: int, looked_at: int, total: int) -> int:
    """Two standard errors of a share that was seen in a sample."""
    share = taken / looked_at
    return round(2 * total * math.sqrt(share * (1 - share) / looked_at))


async def _listed(mailbox: Mailbox, wanted: NewBackfill, categories: Categories) -> tuple[list[str], int, bool]:
    """The ids, how many there are in all, and whether that is known or the provider's guess."""
    days = Span(_epoch(wanted.date_from), _epoch(wanted.date_to + timedelta(days=1)))
    everywhere = Include.SPAM in wanted.includes or Include.TRASH in wanted.includes
    ids: list[str] = []
    pages = 0
    query = source_query(wanted, categories)
    async for page in mailbox.list(days, query=query, everywhere=everywhere, page_size=_PAGE):
        ids += page.ids
        pages += 1
        if not page.is_last and pages == _MOST_PAGES:
            return ids, max(page.estimate, len(ids)), False
    return ids, len(ids), True


def source_query(wanted: NewBackfill, categories: Categories) -> str:
    """What to ask the source for: the categories, without drafts and sent mail unless they are wanted."""
    left_out = [f"-in:{place}" for place in (Include.DRAFTS, Include.SENT) if place not in wanted.includes]
    named = [f"({categories.query(wanted.target_categories)})"] if wanted.target_categories else []
    return " ".join([*left_out, *named])


def _epoch(day: date) -> int:
    return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp())


async def in_a_thread(place: ArchiveBackend, tally: BackfillTally) -> Counts:
    return await asyncio.to_thread(count_archive, place, tally)


INSTRUCTION_TOKENS = 1_500
"""About what a prompt has besides the text of the mail: instructions, tools, headers, some guidance."""
TYPICAL_TEXT_TOKENS = 900
TYPICAL_OUTPUT_TOKENS = 80
_ENOUGH_CALLS = 20


@dataclass(frozen=True, slots=True)
class Estimate:
    counts: Counts
    tokens_each: TokenCounts
    cost: Micros | None
    """None: no price is known, so nothing would be spent and no body taken in."""
    duration: Duration
    price: str | None
    per_day_cap: Micros
    rate_per_hour: int

    def reply(self) -> EstimateReply:
        counts = self.counts
        return EstimateReply(
            messages=counts.messages,
            messages_full=counts.full,
            messages_metadata=counts.metadata,
            messages_left_out=counts.left_out,
            messages_listed=counts.listed,
            messages_margin=counts.margin,
            counted_in=counts.source.value,
            is_exact=counts.is_exact,
            tokens_per_message=self.tokens_each.input + self.tokens_each.output,
            cost_cents=None if self.cost is None else to_cents(self.cost),
            cost_microdollars=self.cost,
            price=self.price,
            seconds=self.duration.seconds,
            binds=self.duration.binds.value,
            duration=EstimatedDuration.model_validate(self.duration),
            rate_limit_per_hour=self.rate_per_hour,
            daily_cost_cap_cents=to_cents(self.per_day_cap),
        )


class Estimator:
    def __init__(
        self,
        database: Database,
        archive: ArchiveBackend,
        mailboxes: CountableMailboxes,
        categories: Categories,
        meter: CostMeter,
        settings: BackfillSettings,
        clock: Clock,
    ) -> None:
        self._database = database
        self._archive = archive
        self._mailboxes = mailboxes
        self._categories = categories
        self._meter = meter
        self._settings = settings
        self._clock = clock

    async def estimate(self, wanted: NewBackfill) -> EstimateReply:
        return (await self.of(wanted)).reply()

    async def of(self, wanted: NewBackfill) -> Estimate:
        self._categories.require(wanted.target_categories)
        checked(self._settings, self._categories.selectable, wanted)
        facts = await self._database.read(lambda tx: self._facts(tx, wanted))
        tally = BackfillTally(wanted, self._categories, facts.treat, facts.known)
        counts = await (in_a_thread(self._archive, tally) if facts.is_held else count_at_source(self._mailboxes, tally))
        return self._priced(wanted, counts, facts)

    def _priced(self, wanted: NewBackfill, counts: Counts, facts: _EstimateFacts) -> Estimate:
        tokens = facts.measured or TokenCounts(
            INSTRUCTION_TOKENS + (TYPICAL_TEXT_TOKENS if counts.text_tokens is None else counts.text_tokens),
            TYPICAL_OUTPUT_TOKENS,
        )
        tariff = self._meter.tariff
        cost = None if tariff is None else classification_cost(counts.full, tokens, tariff)
        rate, cap = self._limits(wanted)
        profile = PROFILES[facts.account.quota] if facts.account.quota else None
        taken = job_duration(
            messages=counts.messages,
            rate_per_hour=rate,
            cost=cost or Micros(0),
            cap_per_day=cap,
            quota_units=_units(counts, facts.account),
            units_per_minute=profile.units_per_minute if profile else None,
        )
        price = None if tariff is None else tariff.describe()
        return Estimate(counts, tokens, cost, taken, price, cap, rate)

    def _limits(self, wanted: NewBackfill) -> tuple[int, Micros]:
        settings, is_background = self._settings, wanted.mode is BackfillMode.BACKGROUND
        rate = settings.background_rate_limit_per_hour if is_background else settings.rate_limit_per_hour
        cap = settings.background_daily_cost_cap_cents if is_background else settings.daily_cost_cap_cents
        return wanted.rate_limit_per_hour or rate, from_cents(wanted.daily_cost_cap_cents or cap)

    def _facts(self, tx: Tx, wanted: NewBackfill) -> _EstimateFacts:
        account = get_account(tx, wanted.endpoint_identity)
        known = frozenset(row.address for row in tx.execute(select(contacts.c.address)))
        held, measured = is_held(tx, account.id, wanted.date_to), _measured_tokens(tx, self._clock.now())
        return _EstimateFacts(account, known, held, measured, tier_policy.policy_in_force(tx))


@dataclass(frozen=True, slots=True)
class _EstimateFacts:
    """What the database knows that an estimate needs."""

    account: Account
    known: Container[str]
    is_held: bool
    measured: TokenCounts | None
    policy: TierPolicy

    def treat(self, headers: Headers, labels: Collection[str]) -> int:
        return self.policy.decide(headers, labels).treatment


def _measured_tokens(tx: Tx, now: datetime) -> TokenCounts | None:
    """What calls of the last ninety days took on average, if there were enough of them."""
    calls = model_calls.c
    recent = (calls.outcome == "answered") & (calls.input_tokens > 0) & (calls.created_at > now - timedelta(days=90))
    figures = select(func.count(), func.avg(calls.input_tokens), func.avg(calls.output_tokens)).where(recent)
    count, tokens_in, tokens_out = tx.execute(figures).one()
    return TokenCounts(round(tokens_in), round(tokens_out)) if count >= _ENOUGH_CALLS else None


def _units(counts: Counts, account: Account) -> int:
    """What the source charges: listing, the headers of everything listed, and the bodies of what is taken in."""
    if account.quota is None or counts.source is CountedIn.ARCHIVE:
        return 0
    return PROFILES[account.quota].reading_units(counts.listed, counts.listed + counts.full)


class AccountsToCount:
    """Mailboxes of the accounts of this installation, asking in the lane of backfill."""

    def __init__(self, database: Database, gmail: GmailAccess) -> None:
        self._database = database
        self._gmail = gmail

    def open(self, endpoint_identity: str) -> AbstractAsyncContextManager[Mailbox]:
        return self._open(endpoint_identity)

    @asynccontextmanager
    async def _open(self, endpoint_identity: str) -> AsyncIterator[Mailbox]:
        account = await self._database.read(lambda tx: get_account(tx, endpoint_identity))
        async with self._gmail.mailbox(account, PriorityLane.BACKFILL) as mailbox:
            yield mailbox


def side_by_side(job: BackfillJob) -> dict[str, dict[str, int | None]] | None:
    """What a job was expected to take and what it took; None for a job without an estimate."""
    if job.estimate is None:
        return None
    end = job.completed_at or job.updated_at
    took = None if job.started_at is None else max(0, round((end - job.started_at).total_seconds()))
    return {
        "messages": {"estimated": job.estimate.get("messages"), "actual": job.rows_processed},
        "left_out": {"estimated": job.estimate.get("messages_left_out"), "actual": job.rows_skipped},
        "cost_microdollars": {
            "estimated": job.estimate.get("cost_microdollars"),
            "actual": int(job.spent_microdollars),
        },
        "seconds": {"estimated": job.estimate.get("seconds"), "actual": took},
    }

"""Says beforehand what a backfill will bring, cost and take (BF-19), and afterwards how right that was."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Container, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import func, select

from postroom.accounts.access import GmailAccess
from postroom.accounts.store import Account, get_account
from postroom.archive.place import ArchivePlace
from postroom.db import Database, Tx
from postroom.db.tables.mail import contacts
from postroom.db.tables.triage import model_calls
from postroom.domain.clock import Clock
from postroom.domain.costmodel import Duration, classification_cost, duration
from postroom.domain.metering import Meter
from postroom.domain.money import Micros, from_cents, to_cents
from postroom.domain.tariffs import Tokens
from postroom.gmail.client import GmailClient
from postroom.gmail.ports import Lane
from postroom.gmail.quota import PROFILES, Method
from postroom.mail.categories import Categories
from postroom.mail.headers import Headers
from postroom.mail.policy import TierPolicy
from postroom.settings import BackfillSettings
from postroom.switchboard import policy
from postroom.switchboard.backfill.jobs import NewBackfill, checked
from postroom.switchboard.backfill.model import BackfillJob, Mode
from postroom.switchboard.counting import (
    CountedIn,
    Counts,
    Mailboxes,
    Tally,
    count_at_source,
    in_a_thread,
)
from postroom.switchboard.holdings import is_held

INSTRUCTION_TOKENS = 1_500
"""What a prompt has besides the text of the mail, about: instructions, tools, headers, a little guidance."""
TYPICAL_TEXT_TOKENS = 900
TYPICAL_OUTPUT_TOKENS = 80
_ENOUGH_CALLS = 20


@dataclass(frozen=True, slots=True)
class Estimate:
    counts: Counts
    tokens_each: Tokens
    cost: Micros | None
    """None: no price is known, so nothing would be spent and no body taken in."""
    duration: Duration
    price: str | None
    per_day_cap: Micros
    rate_per_hour: int

    def as_json(self) -> dict[str, Any]:
        counts = self.counts
        return {
            "messages": counts.messages,
            "messages_full": counts.full,
            "messages_metadata": counts.metadata,
            "messages_left_out": counts.left_out,
            "messages_listed": counts.listed,
            "messages_margin": counts.margin,
            "counted_in": counts.source.value,
            "is_exact": counts.is_exact,
            "tokens_per_message": self.tokens_each.input + self.tokens_each.output,
            "cost_cents": None if self.cost is None else to_cents(self.cost),
            "cost_microdollars": self.cost,
            "price": self.price,
            "seconds": self.duration.seconds,
            "binds": self.duration.binds.value,
            "duration": asdict(self.duration) | {"binds": self.duration.binds.value},
            "rate_limit_per_hour": self.rate_per_hour,
            "daily_cost_cap_cents": to_cents(self.per_day_cap),
        }


class Estimator:
    def __init__(
        self,
        database: Database,
        archive: ArchivePlace,
        mailboxes: Mailboxes,
        categories: Categories,
        meter: Meter,
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

    async def estimate(self, wanted: NewBackfill) -> Mapping[str, Any]:
        return (await self.of(wanted)).as_json()

    async def of(self, wanted: NewBackfill) -> Estimate:
        self._categories.require(wanted.target_categories)
        checked(self._settings, self._categories.selectable, wanted)
        facts = await self._database.read(lambda tx: self._facts(tx, wanted))
        tally = Tally(wanted, self._categories, facts.treat, facts.known)
        counts = await (in_a_thread(self._archive, tally) if facts.is_held else count_at_source(self._mailboxes, tally))
        return self._priced(wanted, counts, facts)

    def _priced(self, wanted: NewBackfill, counts: Counts, facts: _Facts) -> Estimate:
        tokens = facts.measured or Tokens(
            INSTRUCTION_TOKENS + (TYPICAL_TEXT_TOKENS if counts.text_tokens is None else counts.text_tokens),
            TYPICAL_OUTPUT_TOKENS,
        )
        tariff = self._meter.tariff
        cost = None if tariff is None else classification_cost(counts.full, tokens, tariff)
        rate, cap = self._limits(wanted)
        profile = PROFILES[facts.account.quota] if facts.account.quota else None
        taken = duration(
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
        settings, is_background = self._settings, wanted.mode is Mode.BACKGROUND
        rate = settings.background_rate_limit_per_hour if is_background else settings.rate_limit_per_hour
        cap = settings.background_daily_cost_cap_cents if is_background else settings.daily_cost_cap_cents
        return wanted.rate_limit_per_hour or rate, from_cents(wanted.daily_cost_cap_cents or cap)

    def _facts(self, tx: Tx, wanted: NewBackfill) -> _Facts:
        account = get_account(tx, wanted.endpoint_identity)
        known = frozenset(row.address for row in tx.execute(select(contacts.c.address)))
        held, measured = is_held(tx, account.id, wanted.date_to), _measured_tokens(tx, self._clock.now())
        return _Facts(account, known, held, measured, policy.in_force(tx))


@dataclass(frozen=True, slots=True)
class _Facts:
    """What the database knows that an estimate needs."""

    account: Account
    known: Container[str]
    is_held: bool
    measured: Tokens | None
    policy: TierPolicy

    def treat(self, headers: Headers, labels: Collection[str]) -> int:
        return self.policy.decide(headers, labels).treatment


def _measured_tokens(tx: Tx, now: datetime) -> Tokens | None:
    """What calls of the last ninety days took on average, if there were enough of them."""
    calls = model_calls.c
    recent = (calls.outcome == "answered") & (calls.input_tokens > 0) & (calls.created_at > now - timedelta(days=90))
    figures = select(func.count(), func.avg(calls.input_tokens), func.avg(calls.output_tokens)).where(recent)
    count, tokens_in, tokens_out = tx.execute(figures).one()
    return Tokens(round(tokens_in), round(tokens_out)) if count >= _ENOUGH_CALLS else None


def _units(counts: Counts, account: Account) -> int:
    """What the source charges: a listing, the headers of everything listed, and the bodies of what is taken in."""
    if account.quota is None or counts.source is CountedIn.ARCHIVE:
        return 0
    costs = PROFILES[account.quota]
    listing = -(-counts.listed // 500) * costs.cost(Method.MESSAGES_LIST)
    return listing + (counts.listed + counts.full) * costs.cost(Method.MESSAGES_GET)


class GmailMailboxes:
    """Clients for the accounts of this installation, asking in the lane of backfill."""

    def __init__(self, database: Database, gmail: GmailAccess) -> None:
        self._database = database
        self._gmail = gmail

    def open(self, endpoint_identity: str) -> AbstractAsyncContextManager[GmailClient]:
        return self._open(endpoint_identity)

    @asynccontextmanager
    async def _open(self, endpoint_identity: str) -> AsyncIterator[GmailClient]:
        account = await self._database.read(lambda tx: get_account(tx, endpoint_identity))
        async with self._gmail.client(account, Lane.BACKFILL) as client:
            yield client


def side_by_side(job: BackfillJob) -> dict[str, dict[str, int | None]] | None:
    """What a job was expected to take and what it took; None for a job that nobody estimated."""
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

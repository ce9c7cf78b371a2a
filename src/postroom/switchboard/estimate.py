"""Estimates what a backfill will bring, cost and take (BF-19), and compares the estimate with the outcome.

Messages are counted (`backfill/counting.py`) in the archive where it holds the days completely, else sampled at the
source. The text of a sample is measured either way.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Container, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import cycle, islice
from statistics import fmean
from typing import Any

from sqlalchemy import select

from postroom.accounts.access import MailboxAccess
from postroom.accounts.account import Account, get_account
from postroom.accounts.history import is_held
from postroom.archive.backend import ArchiveBackend
from postroom.contract.backfill import EstimatedDuration, EstimateReply
from postroom.db import Database, Tx
from postroom.db.tables.mail import contacts, ingest_inbox, messages, pruned_messages
from postroom.db.tables.triage import model_calls
from postroom.domain import model_costs
from postroom.domain.envelope import event_key
from postroom.domain.money import Micros, from_cents, to_cents
from postroom.domain.terms import BackfillMode
from postroom.mail.addresses import canonical_address
from postroom.mail.categories import Categories
from postroom.mail.headers import Headers
from postroom.mail.tier_policy import TierPolicy
from postroom.mailboxes.gmail.methods import PROFILES
from postroom.mailboxes.ports import PriorityLane
from postroom.mailboxes.protocol import Mailbox
from postroom.switchboard import definitions
from postroom.switchboard.backfill import counting
from postroom.switchboard.backfill.counting import MeasuredCall, TextSize, TokenModel, fitted
from postroom.switchboard.backfill.job import BackfillJob
from postroom.switchboard.backfill.terms import NewBackfill, checked, require_share
from postroom.switchboard.definitions import corrected_senders
from postroom.switchboard.retention import RetentionRule
from postroom.switchboard.spending import CeilingInForce, ModelBudget

_CALLS_MEASURED = 200
_BYTES_A_TOKEN = 4
"""Of the instructions, which are English."""


@dataclass(frozen=True, slots=True)
class Estimate:
    counts: counting.Counts
    tokens_each: model_costs.TokenCounts
    cost: Micros | None
    """None: no price is known, so rules decide alone."""
    duration: model_costs.Duration
    price: str | None
    per_day_cap: Micros
    rate_per_hour: int
    retention: list[str]
    uses_model: bool

    def reply(self) -> EstimateReply:
        counts = self.counts
        return EstimateReply(
            messages=counts.messages,
            messages_full=counts.full,
            messages_asked=counts.asked if self.uses_model else 0,
            uses_model=self.uses_model,
            messages_metadata=counts.metadata,
            messages_left_out=counts.left_out,
            messages_known=counts.known,
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
            retention=self.retention,
        )


class Estimator:
    def __init__(
        self,
        budget: ModelBudget,
        archive: ArchiveBackend,
        mailboxes: counting.CountableMailboxes,
        categories: Categories,
        meter: model_costs.Meter,
        retention: RetentionRule,
        rules: counting.RuleTests | None = None,
    ) -> None:
        self._budget = budget
        self._database = budget.queue.database
        self._archive = archive
        self._mailboxes = mailboxes
        self._categories = categories
        self._meter = meter
        self._retention = retention
        self._clock = budget.queue.clock
        self._rules = rules

    async def estimate(self, wanted: NewBackfill) -> EstimateReply:
        return (await self.of(wanted)).reply()

    async def of(self, wanted: NewBackfill) -> Estimate:
        self._categories.require(wanted.target_categories)
        terms = checked(self._budget.backfill, self._categories.selectable, wanted, self._meter.dearest)
        facts = await self._database.read(lambda tx: self._facts(tx, wanted))
        if terms["uses_model"]:
            require_share(facts.limits, self._meter.dearest)
        tally = counting.BackfillTally(
            wanted, facts.categories, facts.treat, facts.contacts, facts.taken_in, facts.is_decided or counting.no_rules
        )
        counts = await (
            asyncio.to_thread(counting.count_archive, self._archive, tally)
            if facts.is_held
            else counting.count_at_source(self._mailboxes, tally)
        )
        return self._priced(wanted, counts, facts, uses_model=terms["uses_model"])

    def _priced(
        self, wanted: NewBackfill, counts: counting.Counts, facts: _EstimateFacts, *, uses_model: bool
    ) -> Estimate:
        model, tariff = facts.model, self._meter.tariff
        sample = counts.texts or (TextSize(model.typical_text, round(model.typical_text * _BYTES_A_TOKEN)),)
        tokens = model_costs.TokenCounts(
            round(model.input_tokens(fmean(text.tokens for text in sample))), round(model.output)
        )
        asked = counts.asked if uses_model else 0
        cost = None if tariff is None else model_costs.classification_cost(asked, tokens, tariff)
        rate, cap = self._limits(wanted)
        limit = min(cap, facts.limits.backfill_share)
        profile = PROFILES[facts.account.quota] if facts.account.quota else None
        taken = model_costs.job_duration(
            messages=counts.messages,
            rate_per_hour=rate,
            days=1 if tariff is None else model_costs.days_for(self._calls(asked, sample, model, tariff), limit),
            quota_units=_units(counts, facts.account),
            units_per_minute=profile.units_per_minute if profile else None,
        )
        if taken.binds is model_costs.Binds.COST_CAP and limit < cap:
            taken = replace(taken, binds=model_costs.Binds.CEILING)
        price = None if tariff is None else tariff.describe()
        terms = self._retention.terms(wanted.target_categories)
        kept = [term.describe(self._clock.now().date()) for term in terms]
        return Estimate(counts, tokens, cost, taken, price, cap, rate, kept, uses_model)

    def _calls(
        self, asked: int, sample: Sequence[TextSize], model: TokenModel, tariff: model_costs.Tariff
    ) -> Iterator[tuple[Micros, Micros]]:
        """What each call would cost, and the most that would be reserved for it, if all mail were like the sample."""
        beside, output = round(model.beside_text * _BYTES_A_TOKEN), round(model.output)
        each = [
            (
                tariff.cost(model_costs.TokenCounts(round(model.input_tokens(text.tokens)), output)),
                self._meter.most(beside + text.bytes) or Micros(0),
            )
            for text in sample
        ]
        return islice(cycle(each), asked)

    def _limits(self, wanted: NewBackfill) -> tuple[int, Micros]:
        settings, is_background = self._budget.backfill, wanted.mode is BackfillMode.BACKGROUND
        rate = settings.background_rate_limit_per_hour if is_background else settings.rate_limit_per_hour
        cap = settings.background_daily_cost_cap_cents if is_background else settings.daily_cost_cap_cents
        return wanted.rate_limit_per_hour or rate, from_cents(wanted.daily_cost_cap_cents or cap)

    def _facts(self, tx: Tx, wanted: NewBackfill) -> _EstimateFacts:
        account = get_account(tx, wanted.endpoint_identity)
        known = frozenset(
            canonical_address(each, fold_gmail=True) for each in tx.execute(select(contacts.c.address)).scalars()
        )
        held, model = is_held(tx, account.id, wanted.date_to), fitted(_measured_calls(tx, self._clock.now()))
        taken_in = _taken_in(tx, wanted)
        categories = self._categories.corrected(corrected_senders(tx))
        policy, limits = definitions.policy_in_force(tx), self._budget.ceiling(tx)
        is_decided = None if self._rules is None else self._rules(tx, account.id, self._clock.now())
        return _EstimateFacts(account, known, taken_in, held, model, policy, limits, is_decided, categories)


@dataclass(frozen=True, slots=True)
class _EstimateFacts:
    """What the database knows that an estimate needs."""

    account: Account
    contacts: Container[str]
    taken_in: Container[str]
    is_held: bool
    model: TokenModel
    policy: TierPolicy
    limits: CeilingInForce
    is_decided: counting.RuleTest | None
    categories: Categories

    def treat(self, headers: Headers, labels: Collection[str]) -> int:
        return self.policy.decide(headers, labels).treatment


def _taken_in(tx: Tx, wanted: NewBackfill) -> frozenset[str]:
    """The ids of all messages of the mailbox that were taken in before, also of those that retention has removed."""
    beginning = event_key(wanted.connector_type, wanted.endpoint_identity, "")
    keys = (table.c.idempotency_key for table in (ingest_inbox, pruned_messages))
    found = (tx.execute(select(key).where(key.startswith(beginning, autoescape=True))).scalars() for key in keys)
    return frozenset(key.removeprefix(beginning) for some in found for key in some)


def _measured_calls(tx: Tx, now: datetime) -> list[MeasuredCall]:
    """What the latest calls took, of mail whose text is still here."""
    calls = model_calls.c
    recent = (calls.outcome == "answered") & (calls.input_tokens > 0) & (calls.created_at > now - timedelta(days=90))
    query = (
        select(messages.c.normalized_text, calls.input_tokens, calls.output_tokens)
        .where(recent, messages.c.id == calls.message_id, messages.c.normalized_text.is_not(None))
        .order_by(calls.created_at.desc())
        .limit(_CALLS_MEASURED)
    )
    return [MeasuredCall(TextSize.of(text).tokens, taken, answered) for text, taken, answered in tx.execute(query)]


def _units(counts: counting.Counts, account: Account) -> int:
    """What the source charges: listing, the headers of everything listed, and the bodies of what is taken in."""
    if account.quota is None or counts.source is counting.CountedIn.ARCHIVE:
        return 0
    return PROFILES[account.quota].reading_units(counts.listed, counts.listed + counts.full)


class AccountsToCount:
    """Mailboxes of the accounts of this installation, asking in the lane of backfill."""

    def __init__(self, database: Database, mailboxes: MailboxAccess) -> None:
        self._database = database
        self._mailboxes = mailboxes

    def open(self, endpoint_identity: str) -> AbstractAsyncContextManager[Mailbox]:
        return self._open(endpoint_identity)

    @asynccontextmanager
    async def _open(self, endpoint_identity: str) -> AsyncIterator[Mailbox]:
        account = await self._database.read(lambda tx: get_account(tx, endpoint_identity))
        async with self._mailboxes.mailbox(account, PriorityLane.BACKFILL) as mailbox:
            yield mailbox


def side_by_side(job: BackfillJob, taken_in: int) -> dict[str, dict[str, int | None]] | None:
    """What a job was expected to take and what it took; None for a job without an estimate. `taken_in` leaves out what
    it found known, as the estimate does."""
    if job.estimate is None:
        return None
    end = job.completed_at or job.updated_at
    took = None if job.started_at is None else max(0, round((end - job.started_at).total_seconds()))
    return {
        "messages": {"estimated": job.estimate.get("messages"), "actual": taken_in},
        "left_out": {"estimated": job.estimate.get("messages_left_out"), "actual": job.rows_skipped},
        "cost_microdollars": {
            "estimated": job.estimate.get("cost_microdollars"),
            "actual": int(job.spent_microdollars),
        },
        "seconds": {"estimated": job.estimate.get("seconds"), "actual": took},
    }


def expected_rows(job: BackfillJob) -> int | None:
    """How many messages it was estimated to go through, with those that were known then; None without an estimate."""
    new = whole_figure(job.estimate, "messages")
    return None if new is None else new + (whole_figure(job.estimate, "messages_known") or 0)


def whole_figure(values: Mapping[str, Any] | None, name: str) -> int | None:
    """The estimate was sent by the job's creator, so anything that is not a whole number counts as unknown."""
    value = None if values is None else values.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else None

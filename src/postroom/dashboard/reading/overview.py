"""The post room at a glance: mail today, waiting times, what needs a person, the archive, money."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import func, select

from postroom import kill_switch
from postroom.accounts.store import Account, list_accounts
from postroom.actions import hiding
from postroom.dashboard.reading.days import start_of_day
from postroom.dashboard.reading.needs import Need, needs
from postroom.dashboard.reading.queue import CONDITIONS, Line, Standing, queue_lines
from postroom.dashboard.reading.tiers import Mail, TierSnapshot, tier_snapshot
from postroom.db import Tx
from postroom.db.tables.backfill import BACKFILL_JOBS, backfill_spend
from postroom.db.tables.queue import jobs
from postroom.db.tables.triage import model_calls
from postroom.domain.money import from_cents
from postroom.domain.tiers import TIERS, Tier
from postroom.kill_switch import Switch
from postroom.queue import QueueName
from postroom.settings import Settings
from postroom.switchboard.backfill.ledger import day_of
from postroom.sync.status import status_of

_LATELY = 300
"""So many of the last completed jobs tell how long mail waits."""
_MOST_JOBS = 20


@dataclass(frozen=True, slots=True)
class Waiting:
    """One tier of live mail: what waits now, and how long the last ones had waited."""

    tier: Tier
    waiting: int
    first_since: datetime | None
    lately: int
    median_s: float | None
    slowest_s: float | None


@dataclass(frozen=True, slots=True)
class Archived:
    account: str
    phase: str
    complete_until: datetime | None
    """Everything before this is provably in the archive."""
    bad: int


@dataclass(frozen=True, slots=True)
class JobSpend:
    """A backfill job's day, in micro-dollars."""

    id: str
    endpoint_identity: str
    target_categories: list[str]
    """None: all mail."""
    status: str
    settled: int
    reserved: int
    cap: int


@dataclass(frozen=True, slots=True)
class Spending:
    model_calls: int
    model_microdollars: int
    """All calls to the model today, live mail and history."""
    jobs: list[JobSpend]


@dataclass(frozen=True, slots=True)
class ModelState:
    name: str
    switch: Switch
    hidden: int
    """Messages that were hidden without a person in the last hour, of all accounts."""
    most: int
    """Of live mail, for each account."""


@dataclass(frozen=True, slots=True)
class Overview:
    needs: list[Need]
    mail: TierSnapshot
    """Live mail since midnight."""
    waiting: list[Waiting]
    archive: list[Archived]
    spending: Spending
    has_accounts: bool
    model: ModelState | None
    """None where no model is configured."""


def overview(tx: Tx, settings: Settings, now: datetime, model_problem: str | None = None) -> Overview:
    lines = queue_lines(tx)
    accounts = list_accounts(tx)
    today = start_of_day(now, settings.backfill)
    return Overview(
        needs=needs(tx, settings, lines, now, model_problem),
        mail=tier_snapshot(tx, today, now, Mail(live_only=True)),
        waiting=_waiting(tx, lines),
        archive=[_archived(tx, account, now) for account in accounts],
        spending=_spending(tx, settings, today, now),
        has_accounts=bool(accounts),
        model=_model(tx, settings, accounts, now),
    )


def _waiting(tx: Tx, lines: Sequence[Line]) -> list[Waiting]:
    waits = _last_waits(tx)
    return [
        Waiting(
            tier,
            line.waiting,
            line.first_since,
            len(waits[tier]),
            waits[tier][len(waits[tier]) // 2] if waits[tier] else None,
            waits[tier][-1] if waits[tier] else None,
        )
        for tier in TIERS
        for line in lines
        if line.queue is QueueName.LIVE and line.tier is tier
    ]


def _last_waits(tx: Tx) -> dict[Tier, list[float]]:
    """Seconds between joining the line and being taken from it, sorted, of live mail among what was completed last."""
    last = (
        select(jobs.c.queue_name, jobs.c.policy_tier, jobs.c.queued_at, jobs.c.started_at)
        .where(CONDITIONS[Standing.COMPLETED])
        .order_by(jobs.c.finished_at.desc())
        .limit(_LATELY)
    )
    waits: dict[Tier, list[float]] = {tier: [] for tier in TIERS}
    for row in tx.execute(last):
        if row.queue_name == QueueName.LIVE and row.started_at is not None:
            waits[Tier(row.policy_tier)].append(max((row.started_at - row.queued_at).total_seconds(), 0.0))
    return {tier: sorted(values) for tier, values in waits.items()}


def _archived(tx: Tx, account: Account, now: datetime) -> Archived:
    status = status_of(tx, account, now)
    until = datetime.fromtimestamp(status.watermark, UTC) if status.watermark else None
    return Archived(account.email, status.phase, until, status.bad)


def _spending(tx: Tx, settings: Settings, today: datetime, now: datetime) -> Spending:
    calls, spent = tx.execute(
        select(func.count(), func.sum(model_calls.c.cost_microdollars)).where(model_calls.c.created_at >= today)
    ).one()
    return Spending(calls, int(spent or 0), _job_spends(tx, settings, now))


def _model(tx: Tx, settings: Settings, accounts: Sequence[Account], now: datetime) -> ModelState | None:
    if settings.model.provider is None:
        return None
    lanes = [(account.id, lane) for account in accounts for lane in (hiding.LIVE, hiding.BACKFILL)]
    hidden = sum(hiding.hidden_since(tx, account_id, lane, now - hiding.HOUR) for account_id, lane in lanes)
    return ModelState(str(settings.model.name), kill_switch.model_switch(tx), hidden, settings.safety.hides_per_hour)


def _job_spends(tx: Tx, settings: Settings, now: datetime) -> list[JobSpend]:
    """Of the jobs that spent today or may spend."""
    table, day = BACKFILL_JOBS[tx.dialect], day_of(now, settings.backfill.zone)
    today = (backfill_spend.c.job_id == table.c.id) & (backfill_spend.c.day == day)
    query = (
        select(table, backfill_spend.c.settled_microdollars, backfill_spend.c.reserved_microdollars)
        .join_from(table, backfill_spend, today, isouter=True)
        .where(table.c.status.in_(("active", "pending", "paused", "cost_capped")) | backfill_spend.c.day.is_not(None))
        .order_by(table.c.updated_at.desc())
        .limit(_MOST_JOBS)
    )
    return [_job_spend(row) for row in tx.execute(query)]


def _job_spend(row: Any) -> JobSpend:
    return JobSpend(
        row.id,
        row.endpoint_identity,
        row.target_categories,
        row.status,
        row.settled_microdollars or 0,
        row.reserved_microdollars or 0,
        from_cents(row.daily_cost_cap_cents),
    )

"""Overview: what needs attention, today's mail, waiting times, the archive, and spending.

Nothing here is stored; every figure is read from the database on request.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any
from urllib.parse import quote

from sqlalchemy import Select, func, select
from starlette.responses import Response

from postroom import audit, kill_switch
from postroom.accounts.account import Account, AccountStatus, list_accounts
from postroom.accounts.history import live_trouble
from postroom.accounts.troubled import troubled_archives, troubled_number
from postroom.actions import running
from postroom.actions.browsing import failed_jobs
from postroom.app.digest.content import zone_of
from postroom.app.digest.sending import WHERE_TO_LOOK, unclear_digests
from postroom.dashboard import series
from postroom.dashboard.archive.contents import UnconnectedMailbox, archived_accounts, unconnected_mailboxes
from postroom.dashboard.backfill.queries import start_of_day
from postroom.dashboard.checklist import checklist_of, setup_facts, stored_facts
from postroom.dashboard.connectors import MailScope, TierSnapshot, connector_rows, tier_snapshot
from postroom.dashboard.context import Here, RequestContext, api_router, pages_router, permits
from postroom.dashboard.display.formatting import duration, plural
from postroom.dashboard.filters.routes import Freshness, contact_state
from postroom.dashboard.paging import BoundedCount, bounded_counts, counted
from postroom.dashboard.queue import PHASE_CONDITIONS, JobPhase, QueueTierRow, queue_tiers
from postroom.dashboard.web.queries import read_sources
from postroom.db import Tx
from postroom.db.tables.mail import BACKFILL_JOBS, backfill_spend
from postroom.db.tables.queue import jobs
from postroom.db.tables.triage import actions, model_calls, rules
from postroom.domain.actions import ActionStatus
from postroom.domain.jobs import SYNC, JobState
from postroom.domain.money import from_cents
from postroom.domain.roles import Permission
from postroom.domain.terms import TIERS, BackfillStatus, Tier
from postroom.kill_switch import KillSwitch
from postroom.queue import QueueName
from postroom.settings import Settings
from postroom.switchboard.backfill.ledger import day_of
from postroom.switchboard.spending import OVERRUN, ModelBudget
from postroom.sync.alerts import alerts_of
from postroom.sync.service import ARCHIVE_OWNER
from postroom.sync.status import status_of
from postroom.triage import review
from postroom.triage.model import model_problem
from postroom.triage.rules.store import PROPOSED
from postroom.web.source_store import SourceNews, news_of
from postroom.web.sources import NoticeWay, WebSource

_NO_WORKER_AFTER = timedelta(minutes=2)
_OPEN = (BackfillStatus.PENDING, BackfillStatus.ACTIVE, BackfillStatus.PAUSED, BackfillStatus.COST_CAPPED)


class NeedLevel(StrEnum):
    BAD = "bad"
    WARN = "warn"
    ASK = "ask"
    """Nothing is wrong, but an answer is needed."""


@dataclass(frozen=True, slots=True)
class Need:
    level: NeedLevel
    text: str
    href: str


def needs(
    tx: Tx,
    settings: Settings,
    tiers: list[QueueTierRow],
    now: datetime,
    model_problem: str | None = None,
    settings_problem: str | None = None,
) -> list[Need]:
    """The worst first."""
    found = [
        *_settings_needs(settings_problem),
        *_digest_needs(tx, settings, now),
        *_worker_needs(tiers, now),
        *_counted_needs(tx),
        *_account_needs(tx),
        *_archive_needs(tx),
        *_connector_needs(tx, now),
        *_backfill_needs(tx, settings),
        *_model_needs(tx, model_problem, now),
    ]
    order = list(NeedLevel)
    return sorted(found, key=lambda need: order.index(need.level))


def _settings_needs(problem: str | None) -> Iterator[Need]:
    if problem is not None:
        text = f"Changed settings are not used: {problem}. Postroom goes on with those it had. Fix the file"
        yield Need(NeedLevel.WARN, text, "/settings/edit")


def _digest_needs(tx: Tx, settings: Settings, now: datetime) -> Iterator[Need]:
    for digest in unclear_digests(tx, zone_of(settings), now):
        text = f"{digest.message}. {WHERE_TO_LOOK} Read it here"
        yield Need(NeedLevel.WARN, text, digest.path)


_COUNTED_NEEDS: tuple[tuple[NeedLevel, Callable[[BoundedCount], str], str, Select[Any]], ...] = (
    (
        NeedLevel.ASK,
        lambda number: f"{counted(number, 'action')} {_need(number)} approval",
        "/approvals",
        select(actions.c.id).where(actions.c.status == ActionStatus.APPROVED_PENDING),
    ),
    (
        NeedLevel.ASK,
        lambda number: f"{counted(number, 'message')} {_need(number)} review",
        "/review",
        review.open_items(),
    ),
    (
        NeedLevel.ASK,
        lambda number: f"{counted(number, 'proposed rule')} {_need(number)} your decision",
        "/rules",
        select(rules.c.id).where(rules.c.disabled_reason.startswith(PROPOSED)),
    ),
    (NeedLevel.BAD, lambda number: f"{counted(number, 'job')} failed", "/queue?state=failed", failed_jobs()),
    (
        NeedLevel.BAD,
        lambda number: f"{counted(number, 'action')} failed",
        "/actions?status=failed",
        select(actions.c.id).where(actions.c.status == ActionStatus.FAILED),
    ),
)


def _need(number: BoundedCount) -> str:
    return "needs" if number.number == 1 else "need"


def _counted_needs(tx: Tx) -> Iterator[Need]:
    numbers = bounded_counts(tx, {href: query for _, _, href, query in _COUNTED_NEEDS}, 1_000)
    return (Need(level, say(numbers[href]), href) for level, say, href, _ in _COUNTED_NEEDS if numbers[href].number)


def _worker_needs(tiers: list[QueueTierRow], now: datetime) -> Iterator[Need]:
    since = min((line.first_since for line in tiers if line.first_since is not None), default=None)
    if since is not None and not any(line.running for line in tiers) and now - since > _NO_WORKER_AFTER:
        text = f"Jobs have been waiting for {duration(now - since)} and none runs. Start a worker: `postroom worker`"
        yield Need(NeedLevel.BAD, text, "/queue?state=waiting")


def _account_needs(tx: Tx) -> Iterator[Need]:
    for account in list_accounts(tx):
        if account.status is AccountStatus.LOGIN_ENDED:
            text = f"{account.email}: the login has expired and its jobs are waiting. Log in again"
            yield Need(NeedLevel.BAD, text, f"/settings/accounts/new?email={quote(account.email)}")
        elif account.status is AccountStatus.FAILING:
            yield Need(NeedLevel.BAD, f"{account.email}: {account.last_error or 'its last check failed'}", "/settings")
        if (trouble := live_trouble(tx, account.id)) is not None:
            yield Need(NeedLevel.BAD, f"{account.email}: {trouble.message}", "/archive")
        if (owner := _archive_owner(tx, account)) is not None:
            yield Need(NeedLevel.BAD, f"{account.email}: {_NO_SYNC.format(owner=owner)}", "/archive")
        if number := troubled_number(tx, account.id):
            yield _troubled_need(account.email, number)
        for alert in (alert for alert in alerts_of(tx, account.id) if alert.is_in_force):
            level = NeedLevel.BAD if alert.level == "critical" else NeedLevel.WARN
            yield Need(level, f"{account.email}: {alert.message}", "/archive")


_NO_SYNC = (
    "no process syncs this mailbox, because {owner} is the only one that may write to the archive. Run `postroom up` "
    "in place of separate processes, or keep the archive in PostgreSQL"
)


def _archive_owner(tx: Tx, account: Account) -> str | None:
    """The process that kept the last sync job from its work, unless that process syncs itself."""
    mine = jobs.c.idempotency_key == f"{SYNC.name}:{account.id}"
    done = tx.execute(select(jobs.c.result_json).where(mine, jobs.c.state == JobState.COMPLETED)).scalar()
    result = json.loads(done) if done else None
    owner = result.get(ARCHIVE_OWNER) if isinstance(result, dict) else None
    return None if owner is None or "postroom sync run" in owner else str(owner)


def _archive_needs(tx: Tx) -> Iterator[Need]:
    """Of mailboxes without a login."""
    return (_troubled_need(mailbox.email, number) for mailbox, number in troubled_archives(tx))


def _troubled_need(email: str, number: int) -> Need:
    text = f"{email}: {plural(number, 'message')} could not be processed"
    return Need(NeedLevel.WARN, text, f"/archive/bad?account={quote(email)}")


def _connector_needs(tx: Tx, now: datetime) -> Iterator[Need]:
    rows = connector_rows(tx, now)
    for row in (row for row in rows if not row.is_alive):
        silent = duration(now - row.last_heartbeat_at)
        yield Need(
            NeedLevel.WARN, f"The connector for {row.endpoint_identity} has not reported for {silent}", "/connectors"
        )
    state = contact_state(tx, now)
    if rows and state.freshness is not Freshness.FRESH:
        problem = "have never been exported" if state.generated_at is None else "are out of date"
        text = f"Known contacts {problem}, so mail from people you know is not prioritised"
        yield Need(NeedLevel.WARN, text, "/filters")


def _model_needs(tx: Tx, problem: str | None, now: datetime) -> Iterator[Need]:
    for entry in audit.list_entries(tx, audit.AuditFilter(action=OVERRUN, limit=1)).entries:
        if entry.at > now - _ALERT_AGE:
            text = str((entry.after or {}).get("problem", "a model call cost more than it could"))
            yield Need(NeedLevel.BAD, f"{text[:1].upper()}{text[1:]}", f"/audit?action={OVERRUN}")
    if problem is not None:
        yield Need(NeedLevel.BAD, f"The model is not used, and only rules decide: {problem}", "/settings#model")
    switch = kill_switch.model_switch(tx)
    if not switch.on:
        text = f"The model is off ({switch.reason}): mail that no rule decides goes to review"
        yield Need(NeedLevel.WARN, text, "/settings#model")


def _backfill_needs(tx: Tx, settings: Settings) -> Iterator[Need]:
    switch = kill_switch.state(tx, settings.backfill)
    table = BACKFILL_JOBS[tx.dialect]
    mine = {
        "open": select(table.c.id).where(table.c.status.in_(_OPEN)),
        "broken": select(table.c.id).where(table.c.status == BackfillStatus.ERROR),
    }
    numbers = bounded_counts(tx, mine, 100)
    wanted, broken = numbers["open"], numbers["broken"]
    if wanted.number and not switch.in_force:
        yield Need(
            NeedLevel.WARN,
            f"Backfill is off ({switch.reason}), and {counted(wanted, 'job')} cannot continue. {switch.remedy}",
            "/backfill",
        )
    if broken.number:
        yield Need(NeedLevel.BAD, f"{counted(broken, 'backfill job')} stopped with an error", "/backfill")


_ALERT_AGE = timedelta(days=1)
_LATELY = 300
"""Waiting times are taken from this many completed jobs."""
_MOST_JOBS = 20
_MOST_NEWS = 20
_NEWS_AGE = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class TierWaits:
    """One tier of live mail: how many jobs wait now, and how long the last ones waited."""

    tier: Tier
    waiting: int
    first_since: datetime | None
    lately: int
    median_s: float | None
    slowest_s: float | None


@dataclass(frozen=True, slots=True)
class ArchiveProgress:
    account: str
    phase: str
    complete_until: datetime | None
    """All mail before this is provably in the archive."""
    bad: int
    progress: str | None = None
    """`12,400 of 98,000 · 5/s · 4 h left`, while the whole mailbox is walked."""


@dataclass(frozen=True, slots=True)
class JobSpend:
    """A backfill job's day, in micro-dollars."""

    id: str
    endpoint_identity: str
    target_categories: list[str]
    """Empty: all mail."""
    status: str
    settled: int
    """With what its connector spent itself."""
    reserved: int
    cap: int


@dataclass(frozen=True, slots=True)
class SpendingToday:
    model_calls: int
    model_microdollars: int
    """All calls to the model today, live mail and history."""
    counted: int
    """What counts against the ceiling today, in micro-dollars: settled and reserved."""
    ceiling: int
    """For all model calls of a day, in micro-dollars."""
    jobs: list[JobSpend]


@dataclass(frozen=True, slots=True)
class ModelState:
    name: str
    switch: KillSwitch
    hidden: int
    """Messages hidden without approval in the last hour, in all accounts."""
    most: int
    """The limit of live mail for each account."""


@dataclass(frozen=True, slots=True)
class Overview:
    needs: list[Need]
    mail: TierSnapshot
    """Live mail since midnight."""
    waiting: list[TierWaits]
    archive: list[ArchiveProgress]
    spending: SpendingToday
    has_accounts: bool
    model: ModelState | None
    """Null if no model is configured."""
    web: list[SourceNews]
    """What is new at web sources since yesterday, of those whose news is shown here."""
    unconnected: list[UnconnectedMailbox]
    """Archived mail without a login."""


def overview(
    tx: Tx,
    settings: Settings,
    budget: ModelBudget,
    now: datetime,
    model_problem: str | None = None,
    sources: Iterable[WebSource] = (),
    archived: Sequence[str] = (),
    settings_problem: str | None = None,
) -> Overview:
    tiers = queue_tiers(tx)
    accounts = list_accounts(tx)
    today = start_of_day(now, settings.backfill)
    return Overview(
        needs=needs(tx, settings, tiers, now, model_problem, settings_problem),
        mail=tier_snapshot(tx, today, now, MailScope(live_only=True)),
        waiting=_waiting(tx, tiers),
        archive=[_archived(tx, account, now) for account in accounts],
        spending=_spending(tx, settings, budget, today, now),
        has_accounts=bool(accounts),
        model=_model_state(tx, settings, accounts, now),
        web=_web_news(tx, sources, now),
        unconnected=unconnected_mailboxes(tx, archived),
    )


def _web_news(tx: Tx, sources: Iterable[WebSource], now: datetime) -> list[SourceNews]:
    shown = [source for source in sources if NoticeWay.OVERVIEW in source.notify]
    news = (news_of(tx, source, now - _NEWS_AGE, _MOST_NEWS) for source in shown)
    return [each for each in news if each.pages]


def _waiting(tx: Tx, tiers: Sequence[QueueTierRow]) -> list[TierWaits]:
    waits = _last_waits(tx)
    return [
        TierWaits(
            tier,
            line.waiting,
            line.first_since,
            len(waits[tier]),
            waits[tier][len(waits[tier]) // 2] if waits[tier] else None,
            waits[tier][-1] if waits[tier] else None,
        )
        for tier in TIERS
        for line in tiers
        if line.queue is QueueName.LIVE and line.tier is tier
    ]


def _last_waits(tx: Tx) -> dict[Tier, list[float]]:
    """Seconds from queueing to start, sorted, of live mail among the last completed jobs."""
    last = (
        select(jobs.c.queue_name, jobs.c.policy_tier, jobs.c.queued_at, jobs.c.started_at)
        .where(PHASE_CONDITIONS[JobPhase.COMPLETED])
        .order_by(jobs.c.finished_at.desc())
        .limit(_LATELY)
    )
    waits: dict[Tier, list[float]] = {tier: [] for tier in TIERS}
    for row in tx.execute(last):
        if row.queue_name == QueueName.LIVE and row.started_at is not None:
            waits[Tier(row.policy_tier)].append(max((row.started_at - row.queued_at).total_seconds(), 0.0))
    return {tier: sorted(values) for tier, values in waits.items()}


def _archived(tx: Tx, account: Account, now: datetime) -> ArchiveProgress:
    status = status_of(tx, account, now)
    until = datetime.fromtimestamp(status.watermark, UTC) if status.watermark else None
    words = None if status.progress is None else status.progress.words
    return ArchiveProgress(account.email, status.phase, until, status.bad, words)


def _spending(tx: Tx, settings: Settings, budget: ModelBudget, today: datetime, now: datetime) -> SpendingToday:
    calls, spent = tx.execute(
        select(func.count(), func.sum(model_calls.c.cost_microdollars)).where(model_calls.c.created_at >= today)
    ).one()
    booked = budget.today(tx)
    counted = booked.settled + booked.reserved
    return SpendingToday(calls, int(spent or 0), counted, booked.ceiling, _job_spends(tx, settings, now))


def _model_state(tx: Tx, settings: Settings, accounts: Sequence[Account], now: datetime) -> ModelState | None:
    if settings.model.provider is None:
        return None
    lanes = [(account.id, lane) for account in accounts for lane in (running.LIVE, running.BACKFILL)]
    hidden = sum(running.hidden_since(tx, account_id, lane, now - running.HOUR) for account_id, lane in lanes)
    return ModelState(str(settings.model.name), kill_switch.model_switch(tx), hidden, settings.safety.hides_per_hour)


def _job_spends(tx: Tx, settings: Settings, now: datetime) -> list[JobSpend]:
    """The jobs that spent today, or may."""
    table, day = BACKFILL_JOBS[tx.dialect], day_of(now, settings.backfill.zone)
    today = (backfill_spend.c.job_id == table.c.id) & (backfill_spend.c.day == day)
    query = (
        select(
            table,
            (backfill_spend.c.settled_microdollars + backfill_spend.c.reported_microdollars).label("spent_today"),
            backfill_spend.c.reserved_microdollars,
        )
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
        row.spent_today or 0,
        row.reserved_microdollars or 0,
        from_cents(row.daily_cost_cap_cents),
    )


pages = pages_router()
_OVER_TIME = [
    name for topic in series.SeriesTopic if topic is not series.SeriesTopic.SYNC for name in series.TOPICS[topic]
]


@pages.get("/")
async def overview_page(here: Here, window: series.TimeWindow = series.TimeWindow.DAY) -> Response:
    read = await _overview_of(here)
    shown, reading, stored = await here.read(
        lambda tx: (read(tx), series.read_series(tx, _OVER_TIME, window, here.now), stored_facts(tx))
    )
    return await here.page(
        "overview.html",
        "overview",
        overview=shown,
        checklist=checklist_of(await setup_facts(here, stored)),
        chart=shown.mail.chart("Mail today by tier"),
        windows=series.window_links("/", window),
        mail_panels=series.mail_panels(reading),
        queue_panels=series.queue_panels(reading, briefly=True),
    )


api = api_router("overview")


@api.get("")
@permits(Permission.READ)
async def show(here: Here) -> Overview:
    """What needs attention, today's mail, waiting times, the archive, and spending."""
    return await here.read(await _overview_of(here))


async def _overview_of(here: RequestContext) -> Callable[[Tx], Overview]:
    """How it is read, with what does not come from the database."""
    problem = model_problem(here.app.settings.model, here.app.vault)
    sources = (await read_sources(here.app.web)).sources
    app, archived = here.app, await asyncio.to_thread(archived_accounts, here.app.archive.backend)
    wrong = app.current.problem
    return lambda tx: overview(tx, app.settings, app.budget, here.now, problem, sources, archived, wrong)

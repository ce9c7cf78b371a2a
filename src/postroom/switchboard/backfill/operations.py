"""Backfill as tools, commands and the dashboard use it: create, pause, resume, cancel, list; poll and report.

Each method of `Backfill` is one transaction on behalf of a named caller. The upkeep job ends expired leases.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any, TypeVar

from sqlalchemy import select

from postroom import audit, kill_switch
from postroom.accounts.account import AccountStatus, Provider, find_account
from postroom.audit import Actor
from postroom.db import Database, Tx
from postroom.db.tables.access import connectors
from postroom.domain.backfill import BackfillMode, BackfillStatus, Include
from postroom.domain.clock import Clock
from postroom.domain.errors import BadInput
from postroom.domain.ids import new_id
from postroom.domain.limits import MOST_BACKFILLS
from postroom.domain.roles import Caller
from postroom.kill_switch import SwitchState
from postroom.queue import Handler, JobContext
from postroom.settings import BackfillSettings
from postroom.switchboard.backfill import job, leases, ledger, rate
from postroom.switchboard.backfill.job import (
    SUBJECT,
    BackfillEvent,
    BackfillJob,
    IllegalTransition,
    find_job,
    job_from_row,
    jobs_table,
    move_job,
)
from postroom.switchboard.backfill.leases import PollReply, ProgressReport, ProgressResponse, take_report
from postroom.switchboard.backfill.ledger import Spend

MOST_AN_HOUR = 1_000_000
MOST_CENTS = 1_000_000
EARLIEST, LATEST = date(1970, 1, 1), date(9000, 12, 31)


@dataclass(frozen=True, slots=True)
class NewBackfill:
    """What to recover. Limits left out are those of the settings; no categories means all mail of the days."""

    connector_type: str
    endpoint_identity: str
    date_from: date
    date_to: date
    target_categories: Sequence[str] = ()
    rate_limit_per_hour: int | None = None
    daily_cost_cap_cents: int | None = None
    mode: BackfillMode = BackfillMode.SELECTIVE
    includes: Sequence[str] = ()
    auto_resume: bool | None = None
    estimate: Mapping[str, Any] | None = field(default=None)
    """What the person was shown before agreeing."""


@dataclass(frozen=True, slots=True)
class BackfillFilter:
    connector_type: str | None = None
    endpoint_identity: str | None = None
    status: str | None = None
    limit: int = 100

    def __post_init__(self) -> None:
        if self.status is not None and self.status not in set(BackfillStatus):
            raise BadInput("status", f"{self.status!r} is not one of {', '.join(BackfillStatus)}")
        if not 1 <= self.limit <= MOST_BACKFILLS:
            raise BadInput("limit", f"{self.limit} is not within 1 to {MOST_BACKFILLS}")


@dataclass(frozen=True, slots=True)
class BackfillView:
    """A job with its money and its speed."""

    job: BackfillJob
    today: Spend
    days: list[Spend]
    admitted_last_hour: int
    retry_after: float | None
    """Seconds until the hour has room again; None: it has."""


def create_job(
    tx: Tx, settings: BackfillSettings, categories: Collection[str], who: Actor, new: NewBackfill, now: datetime
) -> BackfillJob:
    """Creates a pending job, with the consent of `who`. A refusal names the field, and nothing is written."""
    kill_switch.require_on(tx, settings)
    values = checked(settings, categories, new)
    identity = _known_identity(tx, new.connector_type, new.endpoint_identity)
    jobs = jobs_table(tx)
    row = tx.execute(
        jobs.insert()
        .values(
            id=new_id(),
            connector_type=new.connector_type,
            endpoint_identity=identity,
            date_from=new.date_from,
            date_to=new.date_to,
            status=BackfillStatus.PENDING,
            estimate=None if new.estimate is None else dict(new.estimate),
            consent_at=now,
            consent_by=f"{who.role} {who.name}",
            created_at=now,
            updated_at=now,
            **values,
        )
        .returning(jobs)
    ).one()
    job = job_from_row(row)
    terms = ("endpoint_identity", "target_categories", "rate_limit_per_hour", "daily_cost_cap_cents", "mode")
    agreed = {name: getattr(job, name) for name in terms} | {
        "date_from": job.date_from.isoformat(),
        "date_to": job.date_to.isoformat(),
    }
    audit.record(tx, who, "backfill.create", (SUBJECT, job.id), now, after=job.audited | agreed)
    return job


def pause_job(tx: Tx, job_id: str, who: Actor, now: datetime) -> BackfillJob:
    job = find_job(tx, job_id, lock=True)
    return move_job(tx, job, BackfillEvent.PAUSE, who, now, status_reason=f"paused by {who.name}")


def resume_job(tx: Tx, settings: BackfillSettings, job_id: str, who: Actor, now: datetime) -> BackfillJob:
    job = find_job(tx, job_id, lock=True)
    if job.status is BackfillStatus.COST_CAPPED:
        _refuse_without_room(tx, settings, job, now)
    return move_job(tx, job, BackfillEvent.RESUME, who, now, error=None)


def cancel_job(tx: Tx, job_id: str, who: Actor, now: datetime) -> BackfillJob:
    job = find_job(tx, job_id, lock=True)
    return move_job(tx, job, BackfillEvent.CANCEL, who, now, completed_at=now, status_reason=f"cancelled by {who.name}")


def list_jobs(tx: Tx, which: BackfillFilter) -> list[BackfillJob]:
    """Newest first."""
    jobs = jobs_table(tx)
    query = select(jobs).order_by(jobs.c.created_at.desc(), jobs.c.id.desc()).limit(which.limit)
    for name in ("connector_type", "endpoint_identity", "status"):
        if (value := getattr(which, name)) is not None:
            query = query.where(jobs.c[name] == value)
    return [job_from_row(row) for row in tx.execute(query)]


def show_job(tx: Tx, settings: BackfillSettings, job_id: str, now: datetime) -> BackfillView:
    job = find_job(tx, job_id)
    admitted = rate.last_hour(tx, job.id, now)
    wait = rate.wait(admitted, job.rate_limit_per_hour, now)
    return BackfillView(
        job=job,
        today=ledger.spend_on(tx, job.id, ledger.day_of(now, settings.zone)),
        days=ledger.days_of(tx, job.id),
        admitted_last_hour=rate.used(admitted, now),
        retry_after=wait.total_seconds() if wait else None,
    )


def _refuse_without_room(tx: Tx, settings: BackfillSettings, job: BackfillJob, now: datetime) -> None:
    """Its first message would stop it again."""
    spend = ledger.spend_on(tx, job.id, ledger.day_of(now, settings.zone))
    if spend.total + (job.refused_microdollars or 1) > job.cap:
        turn = ledger.next_day(now, settings.zone).strftime("%Y-%m-%d %H:%M UTC")
        raise IllegalTransition("status", f"the day's cap is reached; the job can be resumed from {turn} on")


def usual_cap(settings: BackfillSettings) -> int:
    """The most cents a day that the settings allow without asking; to exceed it takes a person."""
    return max(settings.daily_cost_cap_cents, settings.background_daily_cost_cap_cents)


def checked(settings: BackfillSettings, categories: Collection[str], new: NewBackfill) -> dict[str, Any]:
    """The wanted job with defaults filled in; refused by the name of the field."""
    _require_days(new.date_from, new.date_to)
    mode = _member(BackfillMode, new.mode, "mode")
    background = mode is BackfillMode.BACKGROUND
    rate_default = settings.background_rate_limit_per_hour if background else settings.rate_limit_per_hour
    cap_default = settings.background_daily_cost_cap_cents if background else settings.daily_cost_cap_cents
    return {
        "target_categories": _chosen(new.target_categories, categories, "target_categories"),
        "includes": _chosen(new.includes, list(Include), "includes"),
        "rate_limit_per_hour": _limit("rate_limit_per_hour", new.rate_limit_per_hour, rate_default, MOST_AN_HOUR),
        "daily_cost_cap_cents": _limit("daily_cost_cap_cents", new.daily_cost_cap_cents, cap_default, MOST_CENTS),
        "mode": mode,
        "auto_resume": settings.auto_resume if new.auto_resume is None else new.auto_resume,
    }


def _require_days(first: date, last: date) -> None:
    for name, day in (("date_from", first), ("date_to", last)):
        if isinstance(day, datetime) or not isinstance(day, date):
            raise BadInput(name, f"{day!r} is not a day; write for example 2024-01-31")
    if first < EARLIEST:
        raise BadInput("date_from", f"{first} lies before {EARLIEST}, when there was no mail to recover")
    if last > LATEST:
        raise BadInput("date_to", f"{last} lies after {LATEST}")
    if first > last:
        raise BadInput("date_from", f"{first} lies after date_to, {last}")


def _limit(name: str, value: int | None, default: int, most: int) -> int:
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise BadInput(name, f"{value!r} is not a whole number within 1 to {most:,}")
    return value


def _chosen(values: Sequence[str], known: Collection[str], name: str) -> list[str]:
    if isinstance(values, str) or not all(isinstance(value, str) for value in values):
        raise BadInput(name, "must be a list of names")
    for value in values:
        if value not in known:
            raise BadInput(name, f"{value!r} is not one of {', '.join(known)}")
    return list(dict.fromkeys(str(value) for value in values))


def _member(kind: type[BackfillMode], value: str, name: str) -> BackfillMode:
    try:
        return kind(value)
    except ValueError:
        raise BadInput(name, f"{value!r} is not one of {', '.join(kind)}") from None


def _known_identity(tx: Tx, connector_type: str, identity: str) -> str:
    """The identity as its connector writes it: one that has reported here, or that of one of our accounts."""
    if connector_type not in set(Provider):
        raise BadInput("connector_type", f"{connector_type!r} is not one of {', '.join(Provider)}")
    here = (connectors.c.connector_type == connector_type) & (connectors.c.endpoint_identity == identity)
    if tx.execute(select(connectors.c.endpoint_identity).where(here)).one_or_none() is not None:
        return identity
    account = find_account(tx, identity, Provider(connector_type))
    if account is None or account.status is AccountStatus.REMOVED:
        raise BadInput("endpoint_identity", f"no {connector_type} connector or account of {identity} is known")
    return account.email


T = TypeVar("T")


class _TakenBack(Exception):
    """A dry run ends here: what the transaction did is undone."""


@dataclass(frozen=True)
class Backfill:
    database: Database
    settings: BackfillSettings
    categories: Collection[str]
    clock: Clock

    async def create(self, who: Caller, new: NewBackfill, *, dry_run: bool = False) -> BackfillJob:
        actor = Actor.of(who)
        return await self._write(
            lambda tx, now: create_job(tx, self.settings, self.categories, actor, new, now), dry_run
        )

    async def pause(self, who: Caller, job_id: str, *, dry_run: bool = False) -> BackfillJob:
        return await self._write(lambda tx, now: pause_job(tx, job_id, Actor.of(who), now), dry_run)

    async def resume(self, who: Caller, job_id: str, *, dry_run: bool = False) -> BackfillJob:
        return await self._write(lambda tx, now: resume_job(tx, self.settings, job_id, Actor.of(who), now), dry_run)

    async def cancel(self, who: Caller, job_id: str, *, dry_run: bool = False) -> BackfillJob:
        return await self._write(lambda tx, now: cancel_job(tx, job_id, Actor.of(who), now), dry_run)

    async def list(self, which: BackfillFilter) -> list[BackfillJob]:
        return await self.database.read(lambda tx: list_jobs(tx, which))

    async def show(self, job_id: str) -> BackfillView:
        return await self.database.read(lambda tx: show_job(tx, self.settings, job_id, self.clock.now()))

    async def poll(self, who: Caller, connector_type: str, endpoint_identity: str) -> PollReply:
        return await self._write(
            lambda tx, now: leases.poll(tx, self.settings, who, connector_type, endpoint_identity, now)
        )

    async def progress(self, who: Caller, report: ProgressReport) -> ProgressResponse:
        return await self._write(lambda tx, now: take_report(tx, self.settings, who, report, now))

    async def switch(self) -> SwitchState:
        return await self.database.read(lambda tx: kill_switch.state(tx, self.settings))

    async def turn_switch(self, who: Caller, on: bool, *, dry_run: bool = False) -> SwitchState:
        return await self._write(lambda tx, now: job.turn_switch(tx, self.settings, on, Actor.of(who), now), dry_run)

    async def upkeep(self) -> dict[str, int]:
        """What becomes due without a call: leases expire, capped jobs get a new day, and running jobs stop while
        backfill is switched off. Polling does the same; this is for when no connector polls."""
        return await self._write(lambda tx, now: upkeep(tx, self.settings, now))

    async def _write(self, change: Callable[[Tx, datetime], T], dry_run: bool = False) -> T:
        outcome: list[T] = []

        def run(tx: Tx) -> T:
            value = change(tx, self.clock.now())
            if dry_run:
                outcome[:] = [value]
                raise _TakenBack
            return value

        try:
            return await self.database.write(run)
        except _TakenBack:
            return outcome[0]


def upkeep(tx: Tx, settings: BackfillSettings, now: datetime) -> dict[str, int]:
    on = kill_switch.state(tx, settings)
    stopped = [] if on.in_force else job.stop_running(tx, on, now)
    lost, turned = leases.expire_leases(tx, now), leases.turn_day(tx, settings, now)
    return {"switched_off": len(stopped), "leases_lost": len(lost), "days_turned": len(turned)}


def upkeep_handler(backfill: Backfill) -> Handler:
    async def handle(context: JobContext) -> dict[str, int]:
        return await backfill.upkeep()

    return handle

"""Who works on a job: a connector that polled for it, until its lease runs out. The fence tells leases apart."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any

from sqlalchemy import exists, select

from postroom import kill_switch
from postroom.audit import SYSTEM, Actor
from postroom.db import Tx
from postroom.db.tables.queue import jobs as queued
from postroom.domain.errors import NotAllowed
from postroom.domain.roles import Caller
from postroom.queue import JobState, QueueName
from postroom.settings import BackfillSettings
from postroom.switchboard.backfill.ledger import day_of
from postroom.switchboard.backfill.model import BackfillJob, Mode, move, read, table
from postroom.switchboard.backfill.rate import Window
from postroom.switchboard.backfill.transitions import Event, Status

LIVE_MAIL_PAUSE = timedelta(seconds=30)


class StaleFence(NotAllowed):
    """This job is no longer yours: its lease ran out and it was handed out again. Stop, and poll for work."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a connector needs to work on a job. Both days are included; `lease_s` is how long it may be silent."""

    job_id: str
    fence: int
    lease_s: float
    mode: Mode
    target_categories: list[str]
    includes: list[str]
    date_from: date
    date_to: date
    rate_limit_per_hour: int
    daily_cost_cap_cents: int
    cursor: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class PollReply:
    backfill_enabled: bool
    job: Assignment | None = None
    retry_after: float | None = None
    """Seconds until the job's hour has room for a message; None: at once."""


def poll(
    tx: Tx, settings: BackfillSettings, who: Caller, connector_type: str, endpoint_identity: str, now: datetime
) -> PollReply:
    """Hand out the oldest pending job of this identity. A job whose connector went silent is pending again first."""
    require_identity(who, endpoint_identity)
    if not kill_switch.state(tx, settings).in_force:
        return PollReply(backfill_enabled=False)
    expire_leases(tx, now, endpoint_identity)
    turn_day(tx, settings, now, endpoint_identity)
    found = _oldest_pending(tx, connector_type, endpoint_identity)
    if found is None:
        return PollReply(backfill_enabled=True)
    job = move(
        tx,
        found,
        Event.START,
        Actor.of(who),
        now,
        fence=found.fence + 1,
        lease_holder=who.name,
        lease_expires_at=now + timedelta(seconds=settings.lease_s),
        last_report_seq=None,
        started_at=found.started_at or now,
        error=None,
    )
    return PollReply(True, _assignment(job, settings), retry_after(tx, settings, job, now))


def require_identity(who: Caller, endpoint_identity: str) -> None:
    """A token may be good for one mailbox only."""
    if who.endpoint_identity not in (None, endpoint_identity):
        raise NotAllowed(f"This token speaks for {who.endpoint_identity}, not for {endpoint_identity}.")


def expire_leases(tx: Tx, now: datetime, endpoint_identity: str | None = None) -> list[BackfillJob]:
    """Jobs whose connector was silent for too long wait for another, with their cursor. It may still come back with
    its last counts as long as nobody has taken over."""
    jobs = table(tx)
    query = select(jobs).where(jobs.c.status == Status.ACTIVE, jobs.c.lease_expires_at <= now)
    if endpoint_identity is not None:
        query = query.where(jobs.c.endpoint_identity == endpoint_identity)
    lost = [read(row) for row in tx.execute(tx.locking(query.order_by(jobs.c.id), skip_locked=True))]
    reasons = [f"{job.lease_holder} was silent for too long" for job in lost]
    return [
        move(tx, job, Event.LOSE_LEASE, SYSTEM, now, status_reason=reason)
        for job, reason in zip(lost, reasons, strict=True)
    ]


def turn_day(
    tx: Tx, settings: BackfillSettings, now: datetime, endpoint_identity: str | None = None
) -> list[BackfillJob]:
    """Jobs that the cap of an earlier day stopped have a new budget, and wait for a connector again."""
    jobs = table(tx)
    query = select(jobs).where(
        jobs.c.status == Status.COST_CAPPED, jobs.c.auto_resume, jobs.c.capped_day < day_of(now, settings.zone)
    )
    if endpoint_identity is not None:
        query = query.where(jobs.c.endpoint_identity == endpoint_identity)
    capped = [read(row) for row in tx.execute(tx.locking(query.order_by(jobs.c.id), skip_locked=True))]
    return [move(tx, job, Event.TURN_DAY, SYSTEM, now) for job in capped]


def retry_after(tx: Tx, settings: BackfillSettings, job: BackfillJob, now: datetime) -> float | None:
    """Seconds until a message of this job would be admitted; never so long that its lease would run out meanwhile."""
    wait = Window(tx, job.id, job.rate_limit_per_hour, now).wait
    if job.mode is Mode.BACKGROUND and live_mail_waits(tx):
        wait = max(wait, LIVE_MAIL_PAUSE)
    return min(wait.total_seconds(), settings.lease_s / 2) if wait else None


def live_mail_waits(tx: Tx) -> bool:
    waiting = (queued.c.queue_name == QueueName.LIVE) & (queued.c.state == JobState.QUEUED.value) & queued.c.ready
    return bool(tx.execute(select(exists().where(waiting))).scalar_one())


def _oldest_pending(tx: Tx, connector_type: str, endpoint_identity: str) -> BackfillJob | None:
    jobs = table(tx)
    query = select(jobs).where(
        jobs.c.connector_type == connector_type,
        jobs.c.endpoint_identity == endpoint_identity,
        jobs.c.status == Status.PENDING,
    )
    if live_mail_waits(tx):
        query = query.where(jobs.c.mode != Mode.BACKGROUND)
    query = query.order_by(jobs.c.created_at, jobs.c.id).limit(1)
    row = tx.execute(tx.locking(query, skip_locked=True)).one_or_none()
    return None if row is None else read(row)


def _assignment(job: BackfillJob, settings: BackfillSettings) -> Assignment:
    return Assignment(
        job_id=job.id,
        fence=job.fence,
        lease_s=settings.lease_s,
        mode=job.mode,
        target_categories=job.target_categories,
        includes=job.includes,
        date_from=job.date_from,
        date_to=job.date_to,
        rate_limit_per_hour=job.rate_limit_per_hour,
        daily_cost_cap_cents=job.daily_cost_cap_cents,
        cursor=job.cursor,
    )

"""A connector's hold on a backfill job: it polls for one, holds it by a lease with a fence, and reports progress.

Counts and cursor move together, so nothing is counted twice or skipped. A pause or cancel that arrived in the
meantime is never overwritten, and a repeated report changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import exists, select

from postroom import kill_switch
from postroom.audit import SYSTEM, Actor
from postroom.db import Tx
from postroom.db.tables.queue import jobs as queued
from postroom.domain.errors import BadInput, NotAllowed
from postroom.domain.money import UNDECIDED_LIMIT
from postroom.domain.roles import Caller
from postroom.domain.terms import BackfillMode, BackfillStatus
from postroom.kill_switch import SwitchState
from postroom.queue import JobState, QueueName
from postroom.settings import BackfillSettings
from postroom.switchboard.backfill import job as switch
from postroom.switchboard.backfill import ledger
from postroom.switchboard.backfill.job import (
    BackfillEvent,
    BackfillJob,
    change_job,
    find_job,
    job_from_row,
    jobs_table,
    move_job,
)
from postroom.switchboard.backfill.ledger import day_of
from postroom.switchboard.backfill.rate import RateWindow, worth_a_turn
from postroom.switchboard.backfill.undecided import Backlog, backlog, complete_if_decided

LIVE_MAIL_PAUSE = timedelta(seconds=30)
SHORTEST_UNDECIDED_PAUSE, UNDECIDED_PAUSE = timedelta(seconds=0.1), timedelta(seconds=30)
"""While much is undecided: about as long as a quarter of it takes. A connector sits out all but the longest."""
TURN = timedelta(minutes=10)
"""A job that could go on for longer makes way if another one of its mailbox can go on too."""
UNDECIDED_FOR_A_TURN = UNDECIDED_LIMIT * 3 // 4
"""No more than so many are undecided before a job is handed out again: else it would start and stop for a few."""


class StaleFence(NotAllowed):
    """This job is no longer yours: its lease ran out and it was handed out again. Stop, and poll for work."""


@dataclass(frozen=True, slots=True)
class JobAssignment:
    """What a connector needs to work on a job. Both days are included; `lease_s` is how long it may be silent."""

    job_id: str
    fence: int
    lease_s: float
    mode: BackfillMode
    target_categories: list[str]
    includes: list[str]
    date_from: date
    date_to: date
    category_from: dict[str, date]
    rate_limit_per_hour: int
    daily_cost_cap_cents: int
    cursor: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class PollReply:
    backfill_enabled: bool
    job: JobAssignment | None = None


class WaitReason(StrEnum):
    """Why a job does not go on by itself at this moment."""

    SWITCH = "switched_off"
    HOUR = "hour_full"
    LIVE_MAIL = "live_mail"
    CAP = "cost_cap"
    UNDECIDED = "undecided"
    """Much of its mail, or all that is left, waits to be decided."""
    LINE = "in_line"
    """Nothing keeps it but its place in line, or that no connector has asked yet."""


@dataclass(frozen=True, slots=True)
class Obstacle:
    """What keeps a job from taking in mail now, though backfill is on and its day has money left."""

    reason: WaitReason
    wait: timedelta
    why: str

    @property
    def is_brief(self) -> bool:
        """Whether the connector keeps the job: to give it back costs a minute until the next poll."""
        return self.reason is WaitReason.UNDECIDED and self.wait < UNDECIDED_PAUSE


def poll(
    tx: Tx, settings: BackfillSettings, who: Caller, connector_type: str, endpoint_identity: str, now: datetime
) -> PollReply:
    """Hand out the oldest pending job of this identity that can go on now, or the next one if that has just had its
    turn. A job whose connector went silent is pending again first."""
    require_identity(who, endpoint_identity)
    if not kill_switch.state(tx, settings).in_force:
        return PollReply(backfill_enabled=False)
    expire_leases(tx, now, endpoint_identity)
    turn_day(tx, settings, now, endpoint_identity)
    found = _oldest_eligible(tx, connector_type, endpoint_identity, now)
    if found is None:
        return PollReply(backfill_enabled=True)
    job = move_job(
        tx,
        found,
        BackfillEvent.START,
        Actor.of(who),
        now,
        fence=found.fence + 1,
        lease_holder=who.name,
        lease_expires_at=now + timedelta(seconds=settings.lease_s),
        turn_ends_at=now + TURN,
        last_report_seq=None,
        started_at=found.started_at or now,
        error=None,
    )
    return PollReply(True, _assignment(job, settings))


def has_open_jobs(tx: Tx, endpoint_identity: str) -> bool:
    """Whether a poll could hand out a job now or after some time, without a person."""
    jobs, going = jobs_table(tx), (BackfillStatus.PENDING, BackfillStatus.ACTIVE, BackfillStatus.COST_CAPPED)
    is_open = (jobs.c.endpoint_identity == endpoint_identity) & jobs.c.status.in_(going)
    return bool(tx.execute(select(exists().where(is_open))).scalar_one())


def require_identity(who: Caller, endpoint_identity: str) -> None:
    """A token may be bound to one mailbox."""
    if who.endpoint_identity not in (None, endpoint_identity):
        raise NotAllowed(f"This token speaks for {who.endpoint_identity}, not for {endpoint_identity}.")


def expire_leases(tx: Tx, now: datetime, endpoint_identity: str | None = None) -> list[BackfillJob]:
    """Jobs whose connector was silent for too long become pending again, with their cursor. It may still report its
    last counts until another connector has taken over."""
    jobs = jobs_table(tx)
    query = select(jobs).where(jobs.c.status == BackfillStatus.ACTIVE, jobs.c.lease_expires_at <= now)
    if endpoint_identity is not None:
        query = query.where(jobs.c.endpoint_identity == endpoint_identity)
    lost = [job_from_row(row) for row in tx.execute(tx.locking(query.order_by(jobs.c.id), skip_locked=True))]
    reasons = [f"{job.lease_holder} was silent for too long" for job in lost]
    return [
        move_job(tx, job, BackfillEvent.LOSE_LEASE, SYSTEM, now, status_reason=reason)
        for job, reason in zip(lost, reasons, strict=True)
    ]


def turn_day(
    tx: Tx, settings: BackfillSettings, now: datetime, endpoint_identity: str | None = None
) -> list[BackfillJob]:
    """Jobs that an earlier day's cap stopped have a new budget and become pending again."""
    jobs = jobs_table(tx)
    query = select(jobs).where(
        jobs.c.status == BackfillStatus.COST_CAPPED, jobs.c.auto_resume, jobs.c.capped_day < day_of(now, settings.zone)
    )
    if endpoint_identity is not None:
        query = query.where(jobs.c.endpoint_identity == endpoint_identity)
    capped = [job_from_row(row) for row in tx.execute(tx.locking(query.order_by(jobs.c.id), skip_locked=True))]
    return [ledger.turn_day(tx, settings, job, now) for job in capped]


def obstacle(
    job: BackfillJob,
    hour: timedelta,
    live_waits: bool,
    undecided: Backlog,
    *,
    is_full: bool = True,
    most_undecided: int = UNDECIDED_LIMIT,
) -> Obstacle | None:
    """Pure. `hour` is how long until its hour has room, `is_full` whether it has none at all now."""
    if hour:
        most = job.rate_limit_per_hour
        limit = "one message" if most == 1 else f"{most:,} messages"
        reached = "reached" if is_full else "nearly reached"
        return Obstacle(WaitReason.HOUR, hour, f"this hour's limit of {limit} is {reached}")
    if job.mode is BackfillMode.BACKGROUND and live_waits:
        return Obstacle(WaitReason.LIVE_MAIL, LIVE_MAIL_PAUSE, "live mail comes first")
    if undecided.count >= most_undecided:
        wait = min(max(undecided.age / 2, SHORTEST_UNDECIDED_PAUSE), UNDECIDED_PAUSE)
        return Obstacle(WaitReason.UNDECIDED, wait, f"{undecided.count} of its messages are not decided yet")
    return None


def _obstacle(tx: Tx, job: BackfillJob, now: datetime, *, for_a_turn: bool = False) -> Obstacle | None:
    """The caller holds the job's lock. `for_a_turn`: there has to be room for more than a message."""
    live_waits = job.mode is BackfillMode.BACKGROUND and live_mail_waits(tx)
    hour, undecided = RateWindow(tx, job.id, job.rate_limit_per_hour, now), backlog(tx, job.id, now)
    if not for_a_turn:
        return obstacle(job, hour.wait, live_waits, undecided)
    wait, most = hour.wait_for(worth_a_turn(job.rate_limit_per_hour)), UNDECIDED_FOR_A_TURN
    return obstacle(job, wait, live_waits, undecided, is_full=bool(hour.wait), most_undecided=most)


def live_mail_waits(tx: Tx) -> bool:
    waiting = (queued.c.queue_name == QueueName.LIVE) & (queued.c.state == JobState.QUEUED.value) & queued.c.ready
    return bool(tx.execute(select(exists().where(waiting))).scalar_one())


def _oldest_eligible(tx: Tx, connector_type: str, endpoint_identity: str, now: datetime) -> BackfillJob | None:
    """Those that gave up a turn come after the others. Looks at the pending jobs one by one: only those that would be
    handed out are locked against other pollers."""
    jobs = jobs_table(tx)
    pending = (
        (jobs.c.connector_type == connector_type)
        & (jobs.c.endpoint_identity == endpoint_identity)
        & (jobs.c.status == BackfillStatus.PENDING)
        & jobs.c.walked_at.is_(None)
    )
    in_turn = jobs.c.turn_ends_at.is_not(None), jobs.c.turn_ends_at, jobs.c.created_at, jobs.c.id
    for (job_id,) in tx.execute(select(jobs.c.id).where(pending).order_by(*in_turn)).all():
        here = select(jobs).where(pending, jobs.c.id == job_id)
        row = tx.execute(tx.locking(here, skip_locked=True)).one_or_none()
        job = None if row is None else job_from_row(row)
        if job is not None and _obstacle(tx, job, now, for_a_turn=True) is None:
            return job
    return None


def _assignment(job: BackfillJob, settings: BackfillSettings) -> JobAssignment:
    return JobAssignment(
        job_id=job.id,
        fence=job.fence,
        lease_s=settings.lease_s,
        mode=job.mode,
        target_categories=job.target_categories,
        includes=job.includes,
        date_from=job.date_from,
        date_to=job.date_to,
        category_from=job.category_from,
        rate_limit_per_hour=job.rate_limit_per_hour,
        daily_cost_cap_cents=job.daily_cost_cap_cents,
        cursor=job.cursor,
    )


MOST_ROWS = 1_000_000
LARGEST_CURSOR = 65_536
LONGEST_ERROR = 2_000

_LARGEST_NUMBER = 2**53
_MAY_REPORT = (BackfillStatus.ACTIVE, BackfillStatus.COMPLETED, BackfillStatus.ERROR)


@dataclass(frozen=True, slots=True)
class ProgressReport:
    """Deltas since the last report. `cost_spent_cents` is what the connector itself spent; it counts against the cap of
    the day on which the report arrives, so it must not be counted twice: the report needs a `report_seq`."""

    job_id: str
    fence: int
    rows_processed: int = 0
    rows_skipped: int = 0
    cost_spent_cents: int = 0
    cursor: Mapping[str, Any] | None = None
    status: str | None = None
    error: str | None = None
    report_seq: int | None = None
    """Grows from report to report of a lease; a report that carries one can be repeated safely."""

    def __post_init__(self) -> None:
        _require_whole("fence", self.fence, 1, _LARGEST_NUMBER)
        for name in ("rows_processed", "rows_skipped", "cost_spent_cents"):
            _require_whole(name, getattr(self, name), 0, MOST_ROWS)
        if self.report_seq is not None:
            _require_whole("report_seq", self.report_seq, 1, _LARGEST_NUMBER)
        elif self.cost_spent_cents:
            raise BadInput("report_seq", "is needed with cost_spent_cents, so that a repeated report is not paid twice")
        if self.status is not None and self.status not in set(_MAY_REPORT):
            raise BadInput("status", f"'{self.status}' is not one of {', '.join(_MAY_REPORT)}")
        if self.error is not None and self.status != BackfillStatus.ERROR:
            raise BadInput("error", "goes together with status error")
        _require_cursor(self.cursor)


@dataclass(frozen=True, slots=True)
class ProgressResponse:
    status: BackfillStatus
    """Authoritative. Anything but active means: stop."""
    backfill_enabled: bool
    reason: str | None = None
    retry_after: float | None = None
    """Where the job had to give way: seconds until it may be handed out again."""


def take_report(
    tx: Tx, settings: BackfillSettings, who: Caller, report: ProgressReport, now: datetime
) -> ProgressResponse:
    job = find_job(tx, report.job_id, lock=True)
    require_identity(who, job.endpoint_identity)
    if report.fence != job.fence:
        raise StaleFence()
    on = kill_switch.state(tx, settings)
    if not _is_repeated(job, report):
        job = _counted(tx, job, report, now)
        if job.status is BackfillStatus.ACTIVE:
            job = _moved(tx, settings, who, job, report, on, now)
        job = ledger.book_report(tx, settings, job, report.cost_spent_cents, now)
    blocked = _obstacle(tx, job, now) if job.status is BackfillStatus.PENDING else None
    wait = None if blocked is None else blocked.wait.total_seconds()
    return ProgressResponse(job.status, on.in_force, job.status_reason or job.error, wait)


def _is_repeated(job: BackfillJob, report: ProgressReport) -> bool:
    """Seen before, or sent after the connector itself had ended the job."""
    seen = report.report_seq is not None and job.last_report_seq is not None
    return job.lease_holder is None or (seen and (report.report_seq or 0) <= (job.last_report_seq or 0))


def _counted(tx: Tx, job: BackfillJob, report: ProgressReport, now: datetime) -> BackfillJob:
    return change_job(
        tx,
        job,
        now,
        rows_processed=job.rows_processed + report.rows_processed,
        rows_skipped=job.rows_skipped + report.rows_skipped,
        cursor=job.cursor if report.cursor is None else dict(report.cursor),
        last_report_seq=job.last_report_seq if report.report_seq is None else report.report_seq,
    )


def _moved(
    tx: Tx,
    settings: BackfillSettings,
    who: Caller,
    job: BackfillJob,
    report: ProgressReport,
    on: SwitchState,
    now: datetime,
) -> BackfillJob:
    """What becomes of a running job: it ends, stops, gives way, or continues under a renewed lease."""
    over = {"lease_holder": None, "lease_expires_at": None}
    if report.status == BackfillStatus.COMPLETED:
        job = change_job(tx, job, now, walked_at=now, **over)
        return complete_if_decided(tx, job, now, Actor.of(who))
    if report.status == BackfillStatus.ERROR:
        error = (report.error or "the connector gave no reason")[:LONGEST_ERROR]
        return move_job(tx, job, BackfillEvent.FAIL, Actor.of(who), now, error=error, **over)
    if not on.in_force:
        return switch.switch_off(tx, job, on, now)
    if (blocked := _obstacle(tx, job, now)) and not blocked.is_brief:
        return move_job(tx, job, BackfillEvent.GIVE_WAY, SYSTEM, now, status_reason=blocked.why)
    if _has_had_its_turn(tx, job, now):
        why, ended = "another job of its mailbox has its turn", job.turn_ends_at
        return move_job(tx, job, BackfillEvent.GIVE_WAY, SYSTEM, now, status_reason=why, turn_ends_at=ended)
    return renew(tx, settings, job, now)


def _has_had_its_turn(tx: Tx, job: BackfillJob, now: datetime) -> bool:
    """Its turn is over, and another job of the mailbox can go on."""
    is_over = job.turn_ends_at is not None and job.turn_ends_at <= now
    return is_over and _oldest_eligible(tx, job.connector_type, job.endpoint_identity, now) is not None


def renew(tx: Tx, settings: BackfillSettings, job: BackfillJob, now: datetime) -> BackfillJob:
    return change_job(tx, job, now, lease_expires_at=now + timedelta(seconds=settings.lease_s))


def _require_whole(field: str, value: object, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise BadInput(field, f"{value!r} is not a whole number within {least} to {most}")


def _require_cursor(cursor: Mapping[str, Any] | None) -> None:
    if cursor is None:
        return
    if not isinstance(cursor, Mapping):
        raise BadInput("cursor", f"must be an object, not {type(cursor).__name__}")
    try:
        size = len(json.dumps(cursor, allow_nan=False).encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise BadInput("cursor", f"is not JSON: {error}") from None
    if size > LARGEST_CURSOR:
        raise BadInput("cursor", f"is {size:,} bytes; the most is {LARGEST_CURSOR:,}")

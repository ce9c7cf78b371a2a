"""A backfill job: its legal status changes, its row, and what the kill switch does to running jobs.

A status changes only along `TRANSITIONS`, under the row's lock, with an audit entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import date, datetime, timedelta
from enum import StrEnum
from functools import cache
from typing import Any

from sqlalchemy import Row, Table, bindparam, select, update

from postroom import audit, kill_switch
from postroom.audit import SYSTEM, Actor
from postroom.db import Dialect, Prepared, Tx
from postroom.db.tables.mail import BACKFILL_JOBS
from postroom.domain.errors import BadInput, NotFound, Retryable
from postroom.domain.ids import parse_id
from postroom.domain.money import Micros, from_cents
from postroom.domain.terms import BackfillMode, BackfillStatus
from postroom.kill_switch import SwitchState
from postroom.settings import BackfillSettings


class BackfillParty(StrEnum):
    OPERATOR = "operator"
    CONNECTOR = "connector"
    SYSTEM = "system"


class BackfillEvent(StrEnum):
    """What happens to a job. The value is its name in the audit log, after `backfill.`."""

    PAUSE = "pause"
    RESUME = "resume"
    CANCEL = "cancel"
    START = "start"
    COMPLETE = "complete"
    FAIL = "error"
    REACH_CAP = "cost_cap"
    TURN_DAY = "day_turn"
    FREE_ROOM = "cap_room"
    GIVE_WAY = "wait"
    LOSE_LEASE = "lease_loss"
    SWITCH_OFF = "switched_off"
    OVERRUN = "cost_overrun"


@dataclass(frozen=True, slots=True)
class BackfillTransition:
    event: BackfillEvent
    party: BackfillParty
    sources: tuple[BackfillStatus, ...]
    target: BackfillStatus
    meaning: str


TRANSITIONS: dict[BackfillEvent, BackfillTransition] = {
    transition.event: transition
    for transition in (
        BackfillTransition(
            BackfillEvent.PAUSE,
            BackfillParty.OPERATOR,
            (BackfillStatus.PENDING, BackfillStatus.ACTIVE, BackfillStatus.COST_CAPPED),
            BackfillStatus.PAUSED,
            "stop, keep the place; nothing but a resume or a cancel moves it on",
        ),
        BackfillTransition(
            BackfillEvent.RESUME,
            BackfillParty.OPERATOR,
            (BackfillStatus.PAUSED, BackfillStatus.COST_CAPPED, BackfillStatus.ERROR),
            BackfillStatus.PENDING,
            "go on from the cursor; refused for a capped job while its day has no room",
        ),
        BackfillTransition(
            BackfillEvent.CANCEL,
            BackfillParty.OPERATOR,
            (
                BackfillStatus.PENDING,
                BackfillStatus.ACTIVE,
                BackfillStatus.PAUSED,
                BackfillStatus.COST_CAPPED,
                BackfillStatus.ERROR,
            ),
            BackfillStatus.CANCELLED,
            "stop for good; what was ingested stays",
        ),
        BackfillTransition(
            BackfillEvent.START,
            BackfillParty.CONNECTOR,
            (BackfillStatus.PENDING,),
            BackfillStatus.ACTIVE,
            "`backfill.poll` hands it out under a lease",
        ),
        BackfillTransition(
            BackfillEvent.COMPLETE,
            BackfillParty.CONNECTOR,
            (BackfillStatus.ACTIVE, BackfillStatus.PENDING, BackfillStatus.COST_CAPPED),
            BackfillStatus.COMPLETED,
            "the last message of the window is in, and all are decided",
        ),
        BackfillTransition(
            BackfillEvent.FAIL,
            BackfillParty.CONNECTOR,
            (BackfillStatus.ACTIVE,),
            BackfillStatus.ERROR,
            "the connector cannot go on",
        ),
        BackfillTransition(
            BackfillEvent.REACH_CAP,
            BackfillParty.SYSTEM,
            (BackfillStatus.ACTIVE, BackfillStatus.PENDING),
            BackfillStatus.COST_CAPPED,
            "the day's spend has no more room, and no call is under way that may make some",
        ),
        BackfillTransition(
            BackfillEvent.TURN_DAY,
            BackfillParty.SYSTEM,
            (BackfillStatus.COST_CAPPED,),
            BackfillStatus.PENDING,
            "a new day, a new budget (unless `auto_resume` is off)",
        ),
        BackfillTransition(
            BackfillEvent.FREE_ROOM,
            BackfillParty.SYSTEM,
            (BackfillStatus.COST_CAPPED,),
            BackfillStatus.PENDING,
            "a call turned out to cost less, or the cap was raised (unless `auto_resume` is off)",
        ),
        BackfillTransition(
            BackfillEvent.GIVE_WAY,
            BackfillParty.SYSTEM,
            (BackfillStatus.ACTIVE,),
            BackfillStatus.PENDING,
            "its hour is full, live mail comes first, or it has had its turn: the next job of the mailbox goes on",
        ),
        BackfillTransition(
            BackfillEvent.LOSE_LEASE,
            BackfillParty.SYSTEM,
            (BackfillStatus.ACTIVE,),
            BackfillStatus.PENDING,
            "the connector was silent for too long",
        ),
        BackfillTransition(
            BackfillEvent.SWITCH_OFF,
            BackfillParty.SYSTEM,
            (BackfillStatus.ACTIVE,),
            BackfillStatus.PENDING,
            "backfill was switched off as a whole",
        ),
        BackfillTransition(
            BackfillEvent.OVERRUN,
            BackfillParty.SYSTEM,
            (BackfillStatus.PENDING, BackfillStatus.ACTIVE, BackfillStatus.COST_CAPPED),
            BackfillStatus.ERROR,
            "a model call cost more than it could: a price is wrong",
        ),
    )
}

FINISHED = frozenset({BackfillStatus.COMPLETED, BackfillStatus.CANCELLED})

_CANNOT = {
    BackfillEvent.PAUSE: "paused",
    BackfillEvent.RESUME: "resumed",
    BackfillEvent.CANCEL: "cancelled",
    BackfillEvent.START: "started",
    BackfillEvent.COMPLETE: "completed",
    BackfillEvent.FAIL: "failed",
}


class IllegalTransition(BadInput):
    """The job is not in a state that allows this."""


def is_legal(event: BackfillEvent, status: BackfillStatus) -> bool:
    return status in TRANSITIONS[event].sources


def status_after(event: BackfillEvent, status: BackfillStatus) -> BackfillStatus:
    """The status that the event leads to; from any other status it is refused, with what would be possible."""
    transition = TRANSITIONS[event]
    if status in transition.sources:
        return transition.target
    sources = [source.value for source in transition.sources]
    possible = sources[0] if len(sources) == 1 else f"{', '.join(sources[:-1])} or {sources[-1]}"
    done = _CANNOT.get(event, f"moved by {event}")
    raise IllegalTransition("status", f"a job that is {status} cannot be {done}; only one that is {possible} can")


SUBJECT = "backfill_job"

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class BackfillJob:
    id: str
    connector_type: str
    endpoint_identity: str
    target_categories: list[str]
    date_from: date
    date_to: date
    rate_limit_per_hour: int
    daily_cost_cap_cents: int
    status: BackfillStatus
    cursor: dict[str, Any] | None
    rows_processed: int
    rows_skipped: int
    cost_spent_cents: int
    error: str | None
    created_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    updated_at: datetime
    mode: BackfillMode
    includes: list[str]
    status_reason: str | None
    spent_microdollars: Micros
    reported_cost_cents: int
    auto_resume: bool
    capped_day: date | None
    refused_microdollars: Micros | None
    fence: int
    lease_holder: str | None
    lease_expires_at: datetime | None
    last_report_seq: int | None
    estimate: dict[str, Any] | None
    consent_at: datetime | None
    consent_by: str | None
    uses_model: bool
    """False: rules decide alone, at no cost."""
    walked_at: datetime | None
    """Since when all of its mail is in, and only decisions are missing."""
    category_from: dict[str, date]
    """The first day of a category that begins later than the job."""
    turn_ends_at: datetime | None
    """Of an active job: then it makes way for another one of its mailbox. Of a pending one: it did."""

    @property
    def cap(self) -> Micros:
        return from_cents(self.daily_cost_cap_cents)

    @property
    def audited(self) -> dict[str, Any]:
        """What the audit log keeps of it."""
        return {"status": self.status, "reason": self.status_reason, "error": self.error, "fence": self.fence}


_FIELDS = tuple(field.name for field in fields(BackfillJob))


def jobs_table(tx: Tx) -> Table:
    return BACKFILL_JOBS[tx.dialect]


def job_from_row(row: Row[Any]) -> BackfillJob:
    values = {name: getattr(row, name) for name in _FIELDS}
    first_days = {name: date.fromisoformat(day) for name, day in row.category_from.items()}
    read = {"status": BackfillStatus(row.status), "mode": BackfillMode(row.mode), "category_from": first_days}
    return BackfillJob(**values | read)


@cache
def _the_job(dialect: Dialect) -> Prepared:
    jobs = BACKFILL_JOBS[dialect]
    return Prepared(select(jobs).where(jobs.c.id == bindparam("the_job")))


@cache
def _change(dialect: Dialect) -> Prepared:
    jobs = BACKFILL_JOBS[dialect]
    seen = (jobs.c.status == bindparam("seen_status")) & (jobs.c.fence == bindparam("seen_fence"))
    return Prepared(update(jobs).where(jobs.c.id == bindparam("the_job"), seen).returning(jobs))


def find_job(tx: Tx, job_id: str, *, lock: bool = False) -> BackfillJob:
    """The job; `lock` keeps others from changing it until the transaction ends."""
    job_id = parse_id(job_id, "job_id")
    rows = tx.run(_the_job(tx.dialect), {"the_job": job_id}, lock=lock)
    if not rows:
        raise NotFound("job_id", f"there is no backfill job {job_id}; `postroom backfill list` shows those there are")
    return job_from_row(rows[0])


def change_job(tx: Tx, job: BackfillJob, now: datetime, **values: object) -> BackfillJob:
    """Write these columns if the job is still as it was read: a status that changed since is never overwritten."""
    seen = {"the_job": job.id, "seen_status": job.status, "seen_fence": job.fence}
    rows = tx.run(_change(tx.dialect), {**values, **seen, "updated_at": now})
    if not rows:
        raise Retryable(f"The backfill job {job.id} was changed by another process meanwhile.", retry_after=timedelta())
    return job_from_row(rows[0])


def move_job(
    tx: Tx, job: BackfillJob, event: BackfillEvent, who: Actor, now: datetime, **values: object
) -> BackfillJob:
    """Change the status by an event of the table, and write it into the audit log. A lease ends with the work."""
    cleared = ("status_reason", "capped_day", "refused_microdollars", "lease_expires_at", "turn_ends_at")
    moved = change_job(tx, job, now, status=status_after(event, job.status), **(dict.fromkeys(cleared) | values))
    subject = (SUBJECT, job.id)
    audit.record(tx, who, f"backfill.{event}", subject, now, before=job.audited, after=moved.audited)
    return moved


def turn_switch(tx: Tx, settings: BackfillSettings, on: bool, who: Actor, now: datetime) -> SwitchState:
    changed = kill_switch.turn(tx, settings, on, who, now)
    if not changed.in_force:
        stop_running(tx, changed, now)
    return changed


def stop_running(tx: Tx, why: SwitchState, now: datetime) -> list[BackfillJob]:
    jobs = jobs_table(tx)
    running = tx.execute(
        tx.locking(select(jobs).where(jobs.c.status == BackfillStatus.ACTIVE).order_by(jobs.c.id))
    ).all()
    return [switch_off(tx, job_from_row(row), why, now) for row in running]


def switch_off(tx: Tx, job: BackfillJob, why: SwitchState, now: datetime) -> BackfillJob:
    return move_job(tx, job, BackfillEvent.SWITCH_OFF, SYSTEM, now, status_reason=f"backfill is off: {why.reason}")

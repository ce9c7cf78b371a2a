"""What a backfill job spends, day by day, exact to the micro-dollar, and what its cap does to it.

`switchboard/spending.py` reserves and settles the money of model calls, and books a job's part of it here. What a
connector reports as its own spend counts against the cap on the day it is received.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import cache
from typing import Any
from zoneinfo import ZoneInfo

from sqlalchemy import Row, bindparam, func, select, update

from postroom.audit import SYSTEM
from postroom.db import Dialect, Prepared, Tx
from postroom.db.database import insert_for
from postroom.db.tables.mail import backfill_spend as spends
from postroom.db.tables.triage import model_reservations as reservations
from postroom.domain import money
from postroom.domain.terms import BackfillStatus
from postroom.settings import BackfillSettings
from postroom.switchboard.backfill.job import BackfillEvent, BackfillJob, change_job, is_legal, move_job


def day_of(now: datetime, zone: ZoneInfo) -> date:
    return now.astimezone(zone).date()


def next_day(now: datetime, zone: ZoneInfo) -> datetime:
    """When the next day begins."""
    return datetime.combine(day_of(now, zone) + timedelta(days=1), time(), zone).astimezone(UTC)


@dataclass(frozen=True, slots=True)
class Spend:
    """A job's money of one day."""

    day: date
    reserved: money.Micros = money.NO_MONEY
    """By calls under way."""
    settled: money.Micros = money.NO_MONEY
    reported: money.Micros = money.NO_MONEY
    """Spent by the connector itself, as it says."""

    @property
    def spent(self) -> money.Micros:
        return money.Micros(self.settled + self.reported)

    @property
    def total(self) -> money.Micros:
        return money.Micros(self.reserved + self.spent)

    def book(self, cap: money.Micros) -> money.DayBook:
        return money.DayBook(money.SpendLimit.JOB_CAP, cap, self.reserved, self.spent)


# Made once: every call of the model is booked twice, and to build a statement takes longer than to run it.
_AMOUNTS = ("reserved_microdollars", "settled_microdollars", "reported_microdollars")
_HERE = (spends.c.job_id == bindparam("the_job")) & (spends.c.day == bindparam("the_day"))
_SPEND = Prepared(select(spends).where(_HERE))
_ADD = Prepared(
    update(spends)
    .where(_HERE)
    .values({name: spends.c[name] + bindparam(f"more_{name}") for name in _AMOUNTS})
    .returning(spends.c.day)
)


@cache
def _new_day(dialect: Dialect) -> Prepared:
    return Prepared(insert_for(dialect, spends).on_conflict_do_nothing())


def spend_on(tx: Tx, job_id: str, day: date) -> Spend:
    rows = tx.run(_SPEND, {"the_job": job_id, "the_day": day})
    return spend_from_row(rows[0]) if rows else Spend(day)


def days_of(tx: Tx, job_id: str) -> list[Spend]:
    """Every day on which the job spent anything, oldest first."""
    rows = tx.execute(select(spends).where(spends.c.job_id == job_id).order_by(spends.c.day))
    return [spend_from_row(row) for row in rows]


def uncertain_of(tx: Tx, job_ids: Iterable[str]) -> dict[str, money.Micros]:
    """What calls of these jobs may have cost whose answer never came; part of what counts as spent."""
    query = (
        select(reservations.c.backfill_job_id, func.sum(reservations.c.settled_microdollars))
        .where(
            reservations.c.state == money.ReservationState.UNCERTAIN, reservations.c.backfill_job_id.in_(list(job_ids))
        )
        .group_by(reservations.c.backfill_job_id)
    )
    return {str(job_id): money.Micros(int(amount)) for job_id, amount in tx.execute(query)}


def spend_from_row(row: Row[Any]) -> Spend:
    amounts = row.reserved_microdollars, row.settled_microdollars, row.reported_microdollars
    return Spend(row.day, *(money.Micros(int(amount)) for amount in amounts))


def book(tx: Tx, job: BackfillJob, day: date, now: datetime, *, reserved: int = 0, settled: int = 0) -> BackfillJob:
    """Add to the job's money of a day. The caller holds the job's lock."""
    _add(tx, job.id, day, reserved=reserved, settled=settled)
    return _spent(tx, job, now, settled) if settled else job


def book_report(tx: Tx, settings: BackfillSettings, job: BackfillJob, cents: int, now: datetime) -> BackfillJob:
    """Add what the connector spent itself, and stop a job that reaches its cap by it, unless it is over."""
    if not cents:
        return job
    day, amount = day_of(now, settings.zone), money.from_cents(cents)
    _add(tx, job.id, day, reported=amount)
    job = _spent(tx, job, now, amount, reported_cost_cents=job.reported_cost_cents + cents)
    if spend_on(tx, job.id, day).spent >= job.cap:
        return stop_at_cap(tx, settings, job, money.Micros(1), now)
    return job


def stop_at_cap(
    tx: Tx,
    settings: BackfillSettings,
    job: BackfillJob,
    refused: money.Micros,
    now: datetime,
    limit: money.DayBook | None = None,
) -> BackfillJob:
    """`refused` is what no longer fits; `limit` is the one that binds, if not the job's own cap."""
    if not is_legal(BackfillEvent.REACH_CAP, job.status):
        return job
    day = day_of(now, settings.zone)
    book = limit or spend_on(tx, job.id, day).book(job.cap)
    turn = next_day(now, settings.zone).strftime("%Y-%m-%d %H:%M UTC")
    reason = f"{_reached(book)}: {money.format_dollars(book.settled)} spent; the next day begins {turn}"
    values = {"status_reason": reason, "capped_day": day, "refused_microdollars": refused}
    return move_job(tx, job, BackfillEvent.REACH_CAP, SYSTEM, now, **values)


def turn_day(tx: Tx, settings: BackfillSettings, job: BackfillJob, now: datetime) -> BackfillJob:
    """A job that a cap of an earlier day stopped has a new budget and becomes pending again."""
    is_stopped = job.status is BackfillStatus.COST_CAPPED and job.auto_resume
    is_over = job.capped_day is not None and job.capped_day < day_of(now, settings.zone)
    return move_job(tx, job, BackfillEvent.TURN_DAY, SYSTEM, now) if is_stopped and is_over else job


def _reached(book: money.DayBook) -> str:
    limit = money.format_dollars(book.limit)
    match book.counts_against:
        case money.SpendLimit.JOB_CAP:
            return f"the cap of {limit} a day is reached"
        case money.SpendLimit.BACKFILL_SHARE:
            return f"all backfill together may spend {limit} a day, and has"
        case money.SpendLimit.CEILING:
            return f"the ceiling of {limit} a day for all model spend is reached"


def _spent(tx: Tx, job: BackfillJob, now: datetime, amount: int, **values: object) -> BackfillJob:
    spent = money.Micros(job.spent_microdollars + amount)
    return change_job(tx, job, now, spent_microdollars=spent, cost_spent_cents=money.to_cents(spent), **values)


def _add(tx: Tx, job_id: str, day: date, *, reserved: int = 0, settled: int = 0, reported: int = 0) -> None:
    """The caller holds the job's lock."""
    more = zip(_AMOUNTS, (reserved, settled, reported), strict=True)
    change = {"the_job": job_id, "the_day": day} | {f"more_{name}": amount for name, amount in more}
    if not tx.run(_ADD, change):  # its first call of the day
        tx.run(_new_day(tx.dialect), {"job_id": job_id, "day": day, **dict.fromkeys(_AMOUNTS, 0)})
        tx.run(_ADD, change)

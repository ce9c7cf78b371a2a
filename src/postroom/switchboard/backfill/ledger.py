"""What a backfill job spends, day by day, exact to the micro-dollar: reserved before a model call, settled after it.

Reserved plus settled never exceeds the job's cap within a day. A reservation counts for the day on which it was
made, whenever it is settled.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from sqlalchemy import Row, select, update

from postroom.audit import SYSTEM
from postroom.db import Tx
from postroom.db.database import insert
from postroom.db.tables.mail import backfill_reservations as reservations
from postroom.db.tables.mail import backfill_spend as spends
from postroom.domain.backfill import BackfillStatus
from postroom.domain.errors import BadInput
from postroom.domain.money import Micros, format_dollars, to_cents
from postroom.settings import BackfillSettings
from postroom.switchboard.backfill.job import BackfillEvent, BackfillJob, change_job, find_job, move_job

RESERVED, SETTLED, RELEASED = "reserved", "settled", "released"


def day_of(now: datetime, zone: ZoneInfo) -> date:
    return now.astimezone(zone).date()


def next_day(now: datetime, zone: ZoneInfo) -> datetime:
    """When the next day begins."""
    return datetime.combine(day_of(now, zone) + timedelta(days=1), time(), zone).astimezone(UTC)


@dataclass(frozen=True, slots=True)
class Spend:
    day: date
    reserved: Micros
    settled: Micros

    @property
    def total(self) -> Micros:
        return Micros(self.reserved + self.settled)


def spend_on(tx: Tx, job_id: str, day: date) -> Spend:
    row = tx.execute(select(spends).where(spends.c.job_id == job_id, spends.c.day == day)).one_or_none()
    return Spend(day, Micros(0), Micros(0)) if row is None else _spend(row)


def days_of(tx: Tx, job_id: str) -> list[Spend]:
    """Every day on which the job reserved anything, oldest first."""
    return [_spend(row) for row in tx.execute(select(spends).where(spends.c.job_id == job_id).order_by(spends.c.day))]


def reserve(tx: Tx, job: BackfillJob, message_ref: str, amount: Micros, day: date, now: datetime) -> bool:
    """Reserve the most that a call can cost; False, and nothing done, if the day has no room for it.

    The caller holds the job's lock. A message that has a reservation, or was paid for, needs no second one.
    """
    if amount < 0:
        raise BadInput("amount", f"{amount} is negative")
    known = _reservation(tx, job.id, message_ref)
    if known is not None and known.state != RELEASED:
        return True
    if spend_on(tx, job.id, day).total + amount > job.cap:
        return False
    values = {"day": day, "amount_microdollars": amount, "state": RESERVED, "reserved_at": now, "closed_at": None}
    row = insert(tx, reservations).values(job_id=job.id, message_ref=message_ref, **values)
    key = [reservations.c.job_id, reservations.c.message_ref]
    tx.execute(row.on_conflict_do_update(index_elements=key, set_=values))
    _add(tx, job.id, day, reserved=amount)
    return True


def settle(
    tx: Tx, settings: BackfillSettings, job_id: str, message_ref: str, amount: Micros, now: datetime
) -> BackfillJob:
    """The call was made and cost this much. Settling again changes nothing.

    A call that cost more than was set aside, or for which nothing was, is money spent all the same: it is written
    down as it is, and stops the job if that reaches the cap.
    """
    if amount < 0:
        raise BadInput("amount", f"{amount} is negative")
    job = find_job(tx, job_id, lock=True)
    known = _reservation(tx, job.id, message_ref)
    if known is not None and known.state == SETTLED:
        return job
    is_open = known is not None and known.state == RESERVED
    day = known.day if known is not None and is_open else day_of(now, settings.zone)
    _add(tx, job.id, day, reserved=-known.amount_microdollars if known is not None and is_open else 0, settled=amount)
    _close(tx, job.id, message_ref, day, SETTLED, amount, now)
    spent = Micros(job.spent_microdollars + amount)
    job = change_job(tx, job, now, spent_microdollars=spent, cost_spent_cents=to_cents(spent))
    return review(tx, settings, job, now)


def release(tx: Tx, settings: BackfillSettings, job_id: str, message_ref: str, now: datetime) -> BackfillJob:
    """The call will not be made; its reservation is released."""
    job = find_job(tx, job_id, lock=True)
    known = _reservation(tx, job.id, message_ref)
    if known is None or known.state != RESERVED:
        return job
    _add(tx, job.id, known.day, reserved=-known.amount_microdollars)
    _close(tx, job.id, message_ref, known.day, RELEASED, None, now)
    return review(tx, settings, job, now)


def review(tx: Tx, settings: BackfillSettings, job: BackfillJob, now: datetime) -> BackfillJob:
    """Stop a running job whose day is used up; resume one that only open reservations had stopped."""
    today = day_of(now, settings.zone)
    spend = spend_on(tx, job.id, today)
    if job.status is BackfillStatus.ACTIVE and spend.total >= job.cap:
        return stop_at_cap(tx, settings, job, Micros(1), now)
    if (
        job.status is BackfillStatus.COST_CAPPED
        and job.auto_resume
        and job.capped_day == today
        and has_room(job, spend)
    ):
        return move_job(tx, job, BackfillEvent.FREE_ROOM, SYSTEM, now)
    return job


def has_room(job: BackfillJob, spend: Spend) -> bool:
    """All of the day's calls are settled, and what did not fit before fits now."""
    return spend.reserved == 0 and spend.settled + (job.refused_microdollars or 1) <= job.cap


def stop_at_cap(tx: Tx, settings: BackfillSettings, job: BackfillJob, refused: Micros, now: datetime) -> BackfillJob:
    """`refused` is what no longer fitted."""
    day = day_of(now, settings.zone)
    spend = spend_on(tx, job.id, day)
    turn = next_day(now, settings.zone).strftime("%Y-%m-%d %H:%M UTC")
    reason = (
        f"the cap of {format_dollars(job.cap)} a day is reached: {format_dollars(spend.settled)} spent, "
        f"{format_dollars(spend.reserved)} reserved; the next day begins {turn}"
    )
    values = {"status_reason": reason, "capped_day": day, "refused_microdollars": refused}
    return move_job(tx, job, BackfillEvent.REACH_CAP, SYSTEM, now, **values)


def _reservation(tx: Tx, job_id: str, message_ref: str) -> Row[Any] | None:
    here = (reservations.c.job_id == job_id) & (reservations.c.message_ref == message_ref)
    return tx.execute(select(reservations).where(here)).one_or_none()


def _close(tx: Tx, job_id: str, message_ref: str, day: date, state: str, paid: Micros | None, now: datetime) -> None:
    values = {"day": day, "state": state, "settled_microdollars": paid, "closed_at": now}
    fresh = {"job_id": job_id, "message_ref": message_ref, "amount_microdollars": 0, "reserved_at": now}
    key = [reservations.c.job_id, reservations.c.message_ref]
    tx.execute(
        insert(tx, reservations).values(**fresh, **values).on_conflict_do_update(index_elements=key, set_=values)
    )


def _add(tx: Tx, job_id: str, day: date, *, reserved: int = 0, settled: int = 0) -> None:
    row = {"job_id": job_id, "day": day, "reserved_microdollars": 0, "settled_microdollars": 0}
    tx.execute(insert(tx, spends).values(**row).on_conflict_do_nothing())
    tx.execute(
        update(spends)
        .where(spends.c.job_id == job_id, spends.c.day == day)
        .values(
            reserved_microdollars=spends.c.reserved_microdollars + reserved,
            settled_microdollars=spends.c.settled_microdollars + settled,
        )
    )


def _spend(row: Row[Any]) -> Spend:
    return Spend(row.day, Micros(row.reserved_microdollars), Micros(row.settled_microdollars))

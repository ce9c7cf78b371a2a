"""The budget of all model calls: a call is reserved before it is made and settled after it.

Every reservation locks the day's row of `model_spend` first and a backfill job second, so that two processes never
wait for each other, and no limit is passed by a micro-dollar. A message that finds no room waits in its line
(`backfill/undecided.py`) and is released by the next settlement. The rules are in `domain/money.py`; pure.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import cache
from typing import Any

from sqlalchemy import bindparam, delete, func, insert, select, update

from postroom import audit, kill_switch
from postroom.audit import SYSTEM, Actor
from postroom.db import Database, Dialect, Prepared, Tx
from postroom.db import database as statements
from postroom.db.tables.mail import BACKFILL_JOBS
from postroom.db.tables.triage import model_reservations as reservations
from postroom.db.tables.triage import model_spend as days
from postroom.db.tables.triage import spend_limits
from postroom.domain import money
from postroom.domain.errors import BadInput
from postroom.domain.ids import new_id
from postroom.domain.terms import BackfillStatus
from postroom.domain.validation import MOST_CEILING_CENTS
from postroom.queue import JobQueue
from postroom.settings import BackfillSettings, ModelSettings, SettingsSource
from postroom.switchboard.backfill import ledger, undecided
from postroom.switchboard.backfill.job import (
    BackfillEvent,
    BackfillJob,
    change_job,
    find_job,
    is_legal,
    move_job,
)
from postroom.telemetry import logs

log = logs.get(__name__)

OVERRUN = "model.overrun"
"""In the audit log: a call cost more than it could."""
_CEILING = "model_ceiling"
_KEEP_SETTLED = timedelta(days=30)
_FORGET_AT_ONCE = 1_000
_LOOK_AGAIN = timedelta(hours=1)
"""How long mail whose job is paused or waits for a model rests, where nothing releases it before."""

# Made once: every call locks the day, and to build a statement takes longer than to run it.
_LIMIT = Prepared(select(spend_limits).where(spend_limits.c.name == bindparam("the_limit")))
_DAY = Prepared(select(days).where(days.c.day == bindparam("the_day")))
_DAY_OF_CALL = Prepared(
    select(days.c.day).where(
        days.c.day
        == select(reservations.c.day).where(reservations.c.call_id == bindparam("the_call")).scalar_subquery()
    )
)
_AMOUNTS = ("reserved_microdollars", "settled_microdollars", "backfill_reserved_microdollars",
            "backfill_settled_microdollars")  # fmt: skip
_ADD = Prepared(
    update(days)
    .where(days.c.day == bindparam("the_day"))
    .values({name: days.c[name] + bindparam(f"more_{name}") for name in _AMOUNTS})
)
_RESERVE = Prepared(insert(reservations))
_CHANGE_RESERVATION = Prepared(update(reservations).where(reservations.c.call_id == bindparam("the_call")))
_IS_LATE = (reservations.c.state == money.ReservationState.RESERVED) & (reservations.c.deadline <= bindparam("now"))
_LATE = Prepared(select(reservations).where(_IS_LATE).order_by(reservations.c.call_id))
_STANDING = Prepared(
    select(
        select(spend_limits.c.microdollars).where(spend_limits.c.name == _CEILING).scalar_subquery().label("ceiling"),
        select(reservations.c.call_id).where(_IS_LATE).exists().label("some_are_late"),
        undecided.SOMETHING_WAITS.label("something_waits"),
    )
)


@cache
def _new_day(dialect: Dialect) -> Prepared:
    return Prepared(statements.insert_for(dialect, days).on_conflict_do_nothing())


@cache
def _stopped(dialect: Dialect) -> Prepared:
    jobs = BACKFILL_JOBS[dialect]
    is_capped = (jobs.c.status == BackfillStatus.COST_CAPPED) & (jobs.c.capped_day == bindparam("the_day"))
    return Prepared(select(jobs.c.id).where(is_capped, jobs.c.auto_resume))


@cache
def _reservation(dialect: Dialect) -> Prepared:
    """The reservation of a call, and whether its settlement may concern others."""
    jobs = BACKFILL_JOBS[dialect]
    capped = select(jobs.c.id).where(jobs.c.status == BackfillStatus.COST_CAPPED, jobs.c.auto_resume)
    others = capped.exists().label("some_are_capped"), undecided.SOMETHING_WAITS.label("something_waits")
    return Prepared(select(reservations, *others).where(reservations.c.call_id == bindparam("the_call")))


@dataclass(frozen=True, slots=True)
class DaySpending:
    """All model spend of a day."""

    day: date
    ceiling: money.Micros
    backfill_share: money.Micros
    reserved: money.Micros = money.NO_MONEY
    settled: money.Micros = money.NO_MONEY
    backfill_reserved: money.Micros = money.NO_MONEY
    backfill_settled: money.Micros = money.NO_MONEY

    def books(self, *, for_backfill: bool) -> tuple[money.DayBook, ...]:
        all_of_it = money.DayBook(money.SpendLimit.CEILING, self.ceiling, self.reserved, self.settled)
        if not for_backfill:
            return (all_of_it,)
        share = self.backfill_share, self.backfill_reserved, self.backfill_settled
        return (all_of_it, money.DayBook(money.SpendLimit.BACKFILL_SHARE, *share))


@dataclass(frozen=True, slots=True)
class CeilingInForce:
    ceiling: money.Micros
    backfill_share: money.Micros
    changed_at: datetime | None = None
    changed_by: str | None = None
    """None: the settings decide."""


@dataclass(frozen=True)
class ModelBudget:
    queue: JobQueue
    settings: SettingsSource

    @property
    def model(self) -> ModelSettings:
        """As it holds now; so does what follows."""
        return self.settings.now.model

    @property
    def backfill(self) -> BackfillSettings:
        return self.settings.now.backfill

    def reserve(self, tx: Tx, call: money.NewCall) -> money.Reserved | money.Denied:
        """Reserve the most that a call can cost, or say why it is not made now."""
        now = self.queue.clock.now()
        today = ledger.day_of(now, self.backfill.zone)
        row = _day_row(tx, today, lock=True)
        [standing] = tx.run(_STANDING, {"now": now})  # of which nothing changes while the day is locked
        if standing.some_are_late:
            self.settle_expired(tx, now, call.backfill_job_id)
            row = _day_row(tx, today, lock=True)
        given = self._given(tx, call, self._spending(today, row, standing.ceiling), now)
        if standing.something_waits and isinstance(given, money.Reserved) and call.message_id is not None:
            undecided.leave_line(tx, call.message_id)
            undecided.release_first(tx, self.queue, [call.backfill_job_id])
        return given

    def _given(
        self, tx: Tx, call: money.NewCall, spending: DaySpending, now: datetime
    ) -> money.Reserved | money.Denied:
        if call.backfill_job_id is None:
            return self._reserve_live(tx, call, spending, now)
        job = ledger.turn_day(tx, self.backfill, find_job(tx, call.backfill_job_id, lock=True), now)
        return self._held_up(tx, job, call, now) or self._reserve_for(tx, job, call, spending, now)

    def hold(self, tx: Tx, call: money.NewCall, reason: str) -> money.Denied:
        """Let a message of a backfill job wait for a model that cannot be asked: nothing is judged unmetered."""
        now = self.queue.clock.now()
        job = find_job(tx, str(call.backfill_job_id), lock=True)
        held_up = self._held_up(tx, job, call, now)
        if held_up is None and job.status_reason != reason:
            change_job(tx, job, now, status_reason=reason)
        return held_up or self._waits(tx, call, reason, now + _LOOK_AGAIN, now)

    def settle(self, tx: Tx, call_id: str, cost: money.Micros | None) -> None:
        """The call has ended, at this cost; None where that is not known: then it counts at its most. Only the first
        settlement counts, and one late correction of an uncertain one."""
        if cost is not None and cost < 0:
            raise BadInput("cost", f"{cost} is negative")
        tx.run(_DAY_OF_CALL, {"the_call": call_id}, lock=True)  # from here on no other process can change it
        row = next(iter(tx.run(_reservation(tx.dialect), {"the_call": call_id})), None)
        if row is None:
            raise BadInput("call_id", f"nothing was reserved for the call {call_id}")
        now = self.queue.clock.now()
        moved = money.settlement(money.ReservationState(row.state), row.most_microdollars, cost)
        if moved is None:
            return
        stopped = self._stopped_on(tx, row.day, now) if row.some_are_capped else []
        locked = self._lock_jobs(tx, {row.backfill_job_id, *stopped})
        job = self._move(tx, row, locked.pop(row.backfill_job_id, None), moved, now)
        if moved.is_overrun:
            self._tell_overrun(tx, row, job, cost, now)
        elif job is not None:
            locked[job.id] = job
        for each in locked.values():
            self.free_room(tx, each, now)
        if row.something_waits:
            undecided.release_first(tx, self.queue)

    def decided(self, tx: Tx, message_id: str, job_id: str | None) -> None:
        """A message is decided; it waits for nothing any more."""
        undecided.decided(tx, self.queue, message_id, job_id, self.queue.clock.now())

    def uses_model(self, tx: Tx, job_id: str) -> bool:
        """Whether a backfill job may ask the model at all."""
        return find_job(tx, job_id).uses_model

    def has_room(self, tx: Tx, job: BackfillJob, now: datetime) -> bool:
        """Whether what last did not fit of a job fits today, under every limit."""
        books = self._books(tx, job, self._day(tx, ledger.day_of(now, self.backfill.zone)))
        return money.room_for(money.Micros(job.refused_microdollars or 1), books).room is money.Room.FITS

    def free_room(self, tx: Tx, job: BackfillJob, now: datetime) -> BackfillJob:
        """Let a job that was stopped today go on if there is room now: a call turned out to cost less, or a limit was
        raised. The caller holds the job's lock."""
        is_stopped = job.status is BackfillStatus.COST_CAPPED and job.auto_resume
        if not is_stopped or job.capped_day != ledger.day_of(now, self.backfill.zone):
            return job
        return move_job(tx, job, BackfillEvent.FREE_ROOM, SYSTEM, now) if self.has_room(tx, job, now) else job

    def today(self, tx: Tx) -> DaySpending:
        return self._day(tx, ledger.day_of(self.queue.clock.now(), self.backfill.zone))

    def ceiling(self, tx: Tx) -> CeilingInForce:
        row = next(iter(tx.run(_LIMIT, {"the_limit": _CEILING})), None)
        if row is None:
            return CeilingInForce(*self._limits(None))
        return CeilingInForce(*self._limits(row.microdollars), row.changed_at, row.changed_by)

    def set_ceiling(self, tx: Tx, cents: int, who: Actor) -> CeilingInForce:
        """Set the ceiling of all model spend a day, from now on."""
        if isinstance(cents, bool) or not 0 <= cents <= MOST_CEILING_CENTS:
            raise BadInput("ceiling", f"{cents!r} is not a number of cents within 0 to {MOST_CEILING_CENTS:,}")
        now, before = self.queue.clock.now(), self.ceiling(tx)
        today = ledger.day_of(now, self.backfill.zone)
        _day_row(tx, today, lock=True)
        values = {"microdollars": money.from_cents(cents), "changed_at": now, "changed_by": who.name}
        row = statements.insert(tx, spend_limits).values(name=_CEILING, **values)
        tx.execute(row.on_conflict_do_update(index_elements=["name"], set_=values))
        subject, after = ("spend_limit", _CEILING), self.ceiling(tx)
        said = {"before": {"microdollars": before.ceiling}, "after": {"microdollars": after.ceiling}}
        audit.record(tx, who, "model.ceiling", subject, now, **said)
        for stopped in self._lock_jobs(tx, self._stopped_on(tx, today, now)).values():
            self.free_room(tx, stopped, now)
        undecided.release_first(tx, self.queue)
        return after

    def _reserve_live(
        self, tx: Tx, call: money.NewCall, spending: DaySpending, now: datetime
    ) -> money.Reserved | money.Denied:
        found = money.room_for(call.most, spending.books(for_backfill=False))
        may_wait = call.message_id is not None and call.queue_job_id is not None
        if found.room is money.Room.FITS:
            return self._reserved(tx, call, None, spending.day, now)
        if found.room is money.Room.WAITS and may_wait:
            return self._waits(tx, call, "the model's money of today is in use", self._next_deadline(tx, now), now)
        return money.Denied(money.Denial.NOT_ASKED, _why_not(call.most, found.tight), now)

    def _reserve_for(
        self, tx: Tx, job: BackfillJob, call: money.NewCall, spending: DaySpending, now: datetime
    ) -> money.Reserved | money.Denied:
        found = money.room_for(call.most, self._books(tx, job, spending))
        if found.room is money.Room.NEVER:
            return money.Denied(money.Denial.NOT_ASKED, _why_not(call.most, found.tight), now)
        if undecided.is_behind(tx, job.id, str(call.queue_job_id)):
            return self._waits(tx, call, "earlier mail of its job waits too", self._next_deadline(tx, now), now)
        if found.room is money.Room.FITS:
            return self._reserved(tx, call, job, spending.day, now)
        if found.room is money.Room.WAITS:
            reason = "the day's budget of its backfill job is in use"
            return self._waits(tx, call, reason, self._next_deadline(tx, now), now)
        job = ledger.stop_at_cap(tx, self.backfill, job, call.most, now, found.tight)
        until = ledger.next_day(now, self.backfill.zone)
        return self._waits(tx, call, job.status_reason or "the day's budget is spent", until, now)

    def _held_up(self, tx: Tx, job: BackfillJob, call: money.NewCall, now: datetime) -> money.Denied | None:
        """Why the job's mail may not be asked about now, whatever it costs; None if it may."""
        if job.status is BackfillStatus.CANCELLED:
            return money.Denied(money.Denial.RULES_ONLY, "its backfill job was cancelled", now)
        switch = kill_switch.state(tx, self.backfill)
        if not switch.in_force:
            return self._waits(tx, call, f"backfill is off: {switch.reason}", now + _LOOK_AGAIN, now)
        if job.status in (BackfillStatus.PAUSED, BackfillStatus.ERROR):
            return self._waits(tx, call, f"its backfill job is {job.status}", now + _LOOK_AGAIN, now)
        if job.status is BackfillStatus.COST_CAPPED:
            until = ledger.next_day(now, self.backfill.zone)
            return self._waits(tx, call, "the cap of its backfill job is reached", until, now)
        return None

    def _waits(self, tx: Tx, call: money.NewCall, reason: str, until: datetime, now: datetime) -> money.Denied:
        undecided.wait(tx, str(call.message_id), call.backfill_job_id, str(call.queue_job_id), now)
        return money.Denied(money.Denial.WAIT, reason, until)

    def _reserved(
        self, tx: Tx, call: money.NewCall, job: BackfillJob | None, day: date, now: datetime
    ) -> money.Reserved:
        call_id = new_id()
        reservation = {
            "call_id": call_id,
            "backfill_job_id": call.backfill_job_id,
            "day": day,
            "most_microdollars": call.most,
            "state": money.ReservationState.RESERVED,
            "deadline": call.deadline,
            "reserved_at": now,
        }
        tx.run(_RESERVE, reservation)
        _add(tx, day, reserved=call.most, of_backfill=job is not None)
        if job is not None:
            ledger.book(tx, job, day, now, reserved=call.most)
            if job.status_reason is not None:  # it waited for a model, which is here again
                change_job(tx, job, now, status_reason=None)
        return money.Reserved(call_id, day)

    def settle_expired(self, tx: Tx, now: datetime, own_job_id: str | None = None) -> int:
        """Settle calls whose answer can no longer come at their most; how many. Days are locked before jobs, both in
        order, the newest day first, and with them the job that a reservation is for."""
        today = ledger.day_of(now, self.backfill.zone)
        found = tx.run(_LATE, {"now": now})
        if not found:
            return 0
        locked_days = {row.day for row in found} | {today}
        for day in sorted(locked_days, reverse=True):
            _day_row(tx, day, lock=True)
        locked = self._lock_jobs(tx, {row.backfill_job_id for row in found} | {own_job_id})
        for row in tx.run(_LATE, {"now": now}):
            job = locked.get(row.backfill_job_id)
            if row.day not in locked_days or (row.backfill_job_id is None) != (job is None):
                continue  # it expired while we waited for the locks: the next reservation settles it
            moved = money.settlement(money.ReservationState.RESERVED, row.most_microdollars, None)
            if moved is not None:
                log.warning("model.call_uncertain", call=row.call_id, most=row.most_microdollars)
                job = self._move(tx, row, job, moved, now)
                if job is not None:
                    locked[job.id] = job
        return len(found)

    def _move(
        self, tx: Tx, row: Any, job: BackfillJob | None, moved: money.MoneyMoved, now: datetime
    ) -> BackfillJob | None:
        settled = (row.settled_microdollars or 0) + moved.settled
        values = {"state": moved.state, "settled_microdollars": settled, "closed_at": now}
        tx.run(_CHANGE_RESERVATION, {"the_call": row.call_id, **values})
        _add(tx, row.day, reserved=moved.reserved, settled=moved.settled, of_backfill=job is not None)
        if job is None:
            return None
        return ledger.book(tx, job, row.day, now, reserved=moved.reserved, settled=moved.settled)

    def _books(self, tx: Tx, job: BackfillJob, day: DaySpending) -> tuple[money.DayBook, ...]:
        """All that a call of the job counts against."""
        return (*day.books(for_backfill=True), ledger.spend_on(tx, job.id, day.day).book(job.cap))

    def _lock_jobs(self, tx: Tx, job_ids: Collection[str | None]) -> dict[str | None, BackfillJob]:
        """Always in the same order, and after the day."""
        return {job_id: find_job(tx, job_id, lock=True) for job_id in sorted(filter(None, job_ids))}

    def _stopped_on(self, tx: Tx, day: date, now: datetime) -> list[str]:
        """The jobs that a limit of this day stopped and that go on by themselves; none, once the day is over."""
        if day != ledger.day_of(now, self.backfill.zone):
            return []
        return [str(row.id) for row in tx.run(_stopped(tx.dialect), {"the_day": day})]

    def _tell_overrun(
        self, tx: Tx, row: Any, job: BackfillJob | None, cost: money.Micros | None, now: datetime
    ) -> None:
        """A call cost more than it could: a price or a bound is wrong, so the job stops until a person has looked."""
        most, paid = money.format_dollars(row.most_microdollars), money.format_dollars(money.Micros(cost or 0))
        problem = f"a model call cost {paid}, more than the {most} it could cost: check model.name and its price"
        log.error("model.cost_overrun", call=row.call_id, most=row.most_microdollars, cost=cost)
        audit.record(tx, SYSTEM, OVERRUN, ("model_call", row.call_id), now, after={"problem": problem})
        if job is not None and is_legal(BackfillEvent.OVERRUN, job.status):
            move_job(tx, job, BackfillEvent.OVERRUN, SYSTEM, now, error=problem)

    def _next_deadline(self, tx: Tx, now: datetime) -> datetime:
        """When the first open reservation is settled at the latest; then a message that waits looks again."""
        opened = reservations.c.state == money.ReservationState.RESERVED
        first = tx.execute(select(func.min(reservations.c.deadline)).where(opened)).scalar()
        return max(first, now) if isinstance(first, datetime) else now + timedelta(minutes=1)

    def _day(self, tx: Tx, day: date) -> DaySpending:
        limit = next(iter(tx.run(_LIMIT, {"the_limit": _CEILING})), None)
        return self._spending(day, _day_row(tx, day, lock=False), None if limit is None else limit.microdollars)

    def _spending(self, day: date, row: Any | None, ceiling: int | None) -> DaySpending:
        """`ceiling`: None where the settings say it."""
        amounts = () if row is None else (money.Micros(getattr(row, name)) for name in _AMOUNTS)
        return DaySpending(day, *self._limits(ceiling), *amounts)

    def _limits(self, ceiling: int | None) -> tuple[money.Micros, money.Micros]:
        """The ceiling, and the share of backfill."""
        whole = money.from_cents(self.model.daily_ceiling_cents) if ceiling is None else money.Micros(ceiling)
        return whole, money.Micros(whole * self.backfill.share_of_ceiling_percent // 100)


def _day_row(tx: Tx, day: date, *, lock: bool) -> Any | None:
    found = tx.run(_DAY, {"the_day": day}, lock=lock)
    if lock and not found:  # its first call
        tx.run(_new_day(tx.dialect), {"day": day, **dict.fromkeys(_AMOUNTS, 0)})
        found = tx.run(_DAY, {"the_day": day}, lock=True)
    return found[0] if found else None


def forgetting_reservations(database: Database) -> Callable[[datetime], Awaitable[int]]:
    """Deletes reservations that were settled long ago; the days keep their sums. An uncertain one stays."""

    async def forget(now: datetime) -> int:
        total = 0
        while count := await database.write(lambda tx: _forget(tx, now - _KEEP_SETTLED)):
            total += count
        return total

    return forget


def _forget(tx: Tx, before: datetime) -> int:
    over = (reservations.c.state == money.ReservationState.SETTLED) & (reservations.c.closed_at <= before)
    some = select(reservations.c.call_id).where(over).limit(_FORGET_AT_ONCE)
    return tx.execute(delete(reservations).where(reservations.c.call_id.in_(some))).rowcount


def _add(tx: Tx, day: date, *, reserved: int = 0, settled: int = 0, of_backfill: bool) -> None:
    """The caller holds the day's lock."""
    more = (reserved, settled, *((reserved, settled) if of_backfill else (0, 0)))
    changes = {f"more_{name}": amount for name, amount in zip(_AMOUNTS, more, strict=True)}
    tx.run(_ADD, {"the_day": day, **changes})


def _why_not(most: money.Micros, tight: money.DayBook | None) -> str:
    limit = money.format_dollars(tight.limit) if tight is not None else "nothing"
    if tight is not None and most > tight.limit:
        return (
            f"asking the model could cost {money.format_dollars(most)}, more than the {limit} that a whole day may cost"
        )
    return f"the ceiling of {limit} a day for all model spend is reached"

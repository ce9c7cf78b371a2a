"""Money is a whole number of micro-dollars; and what a model call may still take of it. Pure.

Floats never touch money; cents appear only at the contract's edge.

A call reserves the most that it can cost right before it is made, and is settled to its real cost right after it. So
only calls under way hold money. What is reserved and settled of a day never passes any of the limits it counts against:
the ceiling of the installation, the share of it that backfill may use, and the cap of a backfill job.

    reserved ──answer──► settled
        └──no answer by its deadline, or none that says its cost──► uncertain ──late answer, once──► settled

An uncertain call counts at its most: it may have been paid for. It is never released.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from decimal import ROUND_CEILING, Decimal, InvalidOperation
from enum import StrEnum
from typing import NewType

from postroom.domain.errors import BadInput

Micros = NewType("Micros", int)

NO_MONEY = Micros(0)
MICROS_PER_DOLLAR = 1_000_000
MICROS_PER_CENT = 10_000
_TOO_MUCH = 10**12
"""Dollars. A number of a few characters may have millions of digits; it is refused before anything is done with it."""


def from_cents(cents: int) -> Micros:
    return Micros(cents * MICROS_PER_CENT)


def to_cents(amount: Micros) -> int:
    """Whole cents, rounded up: a reported spend never hides a fraction of a cent."""
    return -(-amount // MICROS_PER_CENT)


def parse_dollars(text: str, field: str = "amount") -> Micros:
    """`"1.50"` or `"$1.50"` as micro-dollars; finer than a micro-dollar rounds up."""
    try:
        dollars = Decimal(text.strip().removeprefix("$"))
    except InvalidOperation:
        raise BadInput(field, f"{text!r} is not an amount in dollars; write for example 1.50") from None
    if not dollars.is_finite() or dollars.copy_abs() >= _TOO_MUCH:
        raise BadInput(field, f"{text[:50]!r} is not a possible amount")
    return Micros(int((dollars * MICROS_PER_DOLLAR).to_integral_value(ROUND_CEILING)))


def format_dollars(amount: Micros) -> str:
    """Dollars and cents, for people; what is less than a cent, and not nothing, is said to be so."""
    if 0 < abs(amount) < MICROS_PER_CENT:
        return "less than $0.01"
    dollars, cents = divmod((abs(amount) + MICROS_PER_CENT // 2) // MICROS_PER_CENT, 100)
    return f"{'-' if amount < 0 else ''}${dollars:,}.{cents:02d}"


class ReservationState(StrEnum):
    RESERVED = "reserved"
    SETTLED = "settled"
    UNCERTAIN = "uncertain"


class SpendLimit(StrEnum):
    """What a call's money counts against."""

    CEILING = "ceiling"
    """All model spend of the installation in a day."""
    BACKFILL_SHARE = "backfill_share"
    """The part of the ceiling that backfill jobs may use together."""
    JOB_CAP = "job_cap"
    """What one backfill job may spend in a day."""


@dataclass(frozen=True, slots=True)
class DayBook:
    """A day's money against one limit."""

    counts_against: SpendLimit
    limit: Micros
    reserved: Micros
    settled: Micros

    def fits(self, most: Micros) -> bool:
        return self.reserved + self.settled + most <= self.limit


class Room(StrEnum):
    FITS = "fits"
    WAITS = "waits"
    """Calls are under way whose settlement may make room."""
    FULL = "full"
    """Nothing is under way; only another day, or a higher limit, makes room."""
    NEVER = "never"
    """It could cost more than a whole day may."""


@dataclass(frozen=True, slots=True)
class RoomFound:
    room: Room
    tight: DayBook | None = None
    """The limit that binds, unless it fits."""


def room_for(most: Micros, books: tuple[DayBook, ...]) -> RoomFound:
    """Whether a call that can cost `most` may be made now."""
    for book in books:
        if most > book.limit > 0:  # a limit of nothing is a stop, which is lifted some day
            return RoomFound(Room.NEVER, book)
    tight = [book for book in books if not book.fits(most)]
    if not tight:
        return RoomFound(Room.FITS)
    for book in tight:
        if book.reserved == 0:
            return RoomFound(Room.FULL, book)
    return RoomFound(Room.WAITS, tight[0])


@dataclass(frozen=True, slots=True)
class MoneyMoved:
    """How a settlement changes the reservation's own day."""

    state: ReservationState
    reserved: int
    settled: int
    is_overrun: bool = False
    """It cost more than it could: a price or a bound is wrong."""


def settlement(state: ReservationState, most: Micros, cost: Micros | None) -> MoneyMoved | None:
    """What becomes of a reservation when its call ends; `cost` is None where it is not known. None: nothing changes,
    because it was settled before."""
    match state, cost:
        case ReservationState.RESERVED, None:
            return MoneyMoved(ReservationState.UNCERTAIN, -most, most)
        case ReservationState.RESERVED, int():
            return MoneyMoved(ReservationState.SETTLED, -most, cost, cost > most)
        case ReservationState.UNCERTAIN, int():
            return MoneyMoved(ReservationState.SETTLED, 0, cost - most, cost > most)
        case _:
            return None


@dataclass(frozen=True, slots=True)
class NewCall:
    """A model call that is about to be made."""

    most: Micros
    """The most that it can cost."""
    deadline: datetime
    """When its answer can no longer be waited for."""
    message_id: str | None = None
    """None: a trial of the model, about no message."""
    backfill_job_id: str | None = None
    queue_job_id: str | None = None
    """The job that is postponed if the call has to wait; None: the call never waits."""


@dataclass(frozen=True, slots=True)
class Reserved:
    call_id: str
    day: date


class Denial(StrEnum):
    WAIT = "wait"
    """It keeps its place and is asked about when there is room: the job is postponed until then."""
    NOT_ASKED = "not_asked"
    """The model is not asked about it; a person may."""
    RULES_ONLY = "rules_only"
    """Its backfill job was cancelled: what no rule decides is left as it is."""


@dataclass(frozen=True, slots=True)
class Denied:
    denial: Denial
    reason: str
    until: datetime
    """When it is looked at again at the latest; a settlement may wake it before."""


UNDECIDED_LIMIT = 200
"""So many messages of a backfill job may be undecided; then its connector waits."""

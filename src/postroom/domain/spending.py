"""Money for model calls: what a call may still take of its day, and what becomes of a reservation. Pure.

A call reserves the most that it can cost right before it is made, and is settled to its real cost right after it. So
only calls under way hold money. What is reserved and settled of a day never passes any of the limits it counts
against: the ceiling of the installation, the share of it that backfill may use, and the cap of a backfill job.

    reserved ──answer──► settled
        └──no answer by its deadline, or none that says its cost──► uncertain ──late answer, once──► settled

An uncertain call counts at its most: it may have been paid for. It is never released.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from enum import StrEnum

from postroom.domain.money import Micros


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

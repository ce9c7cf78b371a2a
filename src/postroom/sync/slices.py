"""The mailbox cut into slices of time. Pure: knows nothing of Gmail, databases or clocks."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

DAY_S = 86_400
_WEEK_S = 7 * DAY_S
_DAILY_ABOVE = 200_000
_MONTHLY_BELOW = 20_000
EARLIEST_CUT = 100_000_000
"""March 1973. A shorter number in a query could be taken for a date, so no slice is cut before."""


class Granularity(StrEnum):
    DAY = "day"
    WEEK = "week"
    MONTH = "month"


@dataclass(frozen=True, slots=True, order=True)
class Slice:
    """Mail dated from `start` up to and without `end`, in seconds since 1970; without an end, all that comes after."""

    start: int
    end: int | None


def granularity_for(messages: int) -> Granularity:
    """Full mailboxes in short slices, so that each stays a small piece of work."""
    if messages > _DAILY_ABOVE:
        return Granularity.DAY
    return Granularity.MONTH if messages < _MONTHLY_BELOW else Granularity.WEEK


def plan(oldest: int, until: int, granularity: Granularity) -> list[Slice]:
    """All of time in slices. The first begins at zero and reaches past `oldest`, before which no mail is known; the
    last has no end and holds what is dated `until` or later, in the last minutes or in the future."""
    slices: list[Slice] = []
    start, end = 0, next_boundary(max(oldest, EARLIEST_CUT), granularity)
    while end < until:
        slices.append(Slice(start, end))
        start, end = end, next_boundary(end, granularity)
    return [*slices, Slice(start, until), Slice(until, None)]


def next_boundary(instant: int, granularity: Granularity) -> int:
    """The first end of a day, week or month (in UTC) after the instant."""
    match granularity:
        case Granularity.DAY:
            return (instant // DAY_S + 1) * DAY_S
        case Granularity.WEEK:
            return (instant // _WEEK_S + 1) * _WEEK_S
        case Granularity.MONTH:
            date = datetime.fromtimestamp(instant, UTC)
            year, month = (date.year + 1, 1) if date.month == 12 else (date.year, date.month + 1)
            return int(datetime(year, month, 1, tzinfo=UTC).timestamp())


def split(whole: Slice) -> tuple[Slice, Slice] | None:
    """Two halves. None for what cannot be cut: a second, or a slice without an end, whose parts would have ends in the
    future and carry the frontier there."""
    if whole.end is None:
        return None
    middle = max((whole.start + whole.end) // 2, EARLIEST_CUT)
    if not whole.start < middle < whole.end:
        return None
    return Slice(whole.start, middle), Slice(middle, whole.end)

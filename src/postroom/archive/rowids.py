"""Row ids that follow the message's date, so that newest first needs no sort and a date range is a range of ids.

An id is the date in milliseconds, shifted by 16 bits, plus a slot that tells messages of the same millisecond apart.
Old mail that arrives late gets an id among its contemporaries, because the id is made from its date and not from its
arrival.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

SLOT_BITS = 16
SLOTS = 1 << SLOT_BITS
_LATEST_MS = (1 << (63 - SLOT_BITS)) - 1_025  # far past the year 6000, with room above for what flows over


def first_id(date_ms: int) -> int:
    """The smallest id of this millisecond; dates before 1970 share the first one."""
    return min(max(date_ms, 0), _LATEST_MS) << SLOT_BITS


def free_id(date_ms: int, largest_taken: Callable[[int], int | None]) -> int:
    """An id that nobody has: of this millisecond, or where that is full, of the next that is not.

    `largest_taken` is asked for the largest id taken in a millisecond, by its first.
    """
    first = first_id(date_ms)
    while (taken := largest_taken(first)) == first + SLOTS - 1:
        first += SLOTS
    return first if taken is None else taken + 1


def date_of(row_id: int) -> datetime:
    return datetime.fromtimestamp((row_id >> SLOT_BITS) / 1_000, UTC)

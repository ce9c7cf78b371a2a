"""Row ids that follow the message's date, so that newest first needs no sort and a date range is a range of ids.

An id is the date in milliseconds, shifted by 16 bits, plus a slot that tells messages of the same millisecond apart.
Old mail that arrives late gets an id among its contemporaries, because the id is made from its date and not from its
arrival.
"""

from __future__ import annotations

from datetime import UTC, datetime

SLOT_BITS = 16
SLOTS = 1 << SLOT_BITS
_LATEST_MS = (1 << (63 - SLOT_BITS)) - 1  # far past the year 6000; ids stay positive 64-bit integers


def first_id(date_ms: int) -> int:
    """The smallest id of this millisecond; dates before 1970 share the first one."""
    return min(max(date_ms, 0), _LATEST_MS) << SLOT_BITS


def next_id(date_ms: int, largest_taken: int | None) -> int:
    """A free id for this millisecond, given the largest one taken in it; a full one flows over into the next."""
    return first_id(date_ms) if largest_taken is None else largest_taken + 1


def date_of(row_id: int) -> datetime:
    return datetime.fromtimestamp((row_id >> SLOT_BITS) / 1_000, UTC)

"""When mail arrives: ten years that grow, with working days and nights, as a function from index to instant."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from datetime import UTC, datetime, timedelta
from functools import cache

from postroom.gmail.sim.mailbox.dice import derive

END = datetime(2026, 11, 1, tzinfo=UTC)
YEARS = 10
START = END - timedelta(days=365 * YEARS + 3)
_HOUR_MS = 3_600_000
_START_MS = int(START.timestamp()) * 1000
_WEEKDAY = (10, 11, 11, 10, 9, 4, 4)  # Monday first
_HOUR = (1, 1, 1, 1, 1, 2, 5, 9, 12, 12, 11, 10, 9, 10, 11, 10, 9, 8, 6, 5, 5, 4, 3, 2)
_JITTER_BITS = 20
_SALT = 0x7468796D


@cache
def _hours() -> array[int]:
    """The weight of all hours up to and including each; by the end three times as much arrives as at the start."""
    days = (END - START).days
    first_weekday = START.weekday()
    total = 0
    sums = array("q")
    for day in range(days):
        daily = (days + 2 * day) * _WEEKDAY[(first_weekday + day) % 7]
        for hour in _HOUR:
            total += daily * hour
            sums.append(total)
    return sums


def instant(seed: int, index: int, messages: int) -> int:
    """When the message at this index arrived, in epoch milliseconds; never falls as the index grows.

    The index plus a fraction of its own is a position in the ten years' worth of mail, so that no two messages need to
    know of each other. Whole numbers only: the same instant on every machine.
    """
    hours = _hours()
    scale = messages << _JITTER_BITS
    jitter = derive(seed, index, _SALT) >> (64 - _JITTER_BITS)
    whole, rest = divmod(((index << _JITTER_BITS) + jitter) * hours[-1], scale)
    hour = bisect_right(hours, whole)
    before = hours[hour - 1] if hour else 0
    within = ((whole - before) * scale + rest) * _HOUR_MS // ((hours[hour] - before) * scale)
    return _START_MS + hour * _HOUR_MS + within

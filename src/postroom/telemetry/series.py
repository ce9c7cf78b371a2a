"""Series over time: what is counted, measured and sampled, for how long it is kept, percentiles, and the recorder of
this process.

The names are a closed set, so no series can carry an id, an address or a text. Lengths of time are kept as a histogram
with a few fixed bounds: counts of several processes add up, and percentiles come out of the sum. Recording is cheap
and may happen in any thread. A process that is killed loses what it recorded since its last write, a few seconds; one
that never writes holds at most one small number for each series and bound.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum


class Series(StrEnum):
    MAIL_LIVE_HIGH_PRIORITY = "mail.live.high_priority"
    MAIL_LIVE_INTERACTIVE = "mail.live.interactive"
    MAIL_LIVE_DEFAULT = "mail.live.default"
    MAIL_HISTORY_HIGH_PRIORITY = "mail.history.high_priority"
    MAIL_HISTORY_INTERACTIVE = "mail.history.interactive"
    MAIL_HISTORY_DEFAULT = "mail.history.default"
    DECIDED_BY_RULE = "decided.deterministic"
    DECIDED_BY_LEARNING = "decided.learned"
    DECIDED_BY_MODEL = "decided.llm"
    DECIDED_BY_NONE = "decided.none"
    SPEND = "spend"
    """Counts model calls; the total is micro-dollars."""
    DEPTH_LIVE = "queue.depth.live"
    DEPTH_WORK = "queue.depth.work"
    DEPTH_HISTORY = "queue.depth.history"
    WAIT_LIVE = "queue.wait.live"
    WAIT_WORK = "queue.wait.work"
    WAIT_HISTORY = "queue.wait.history"
    JOBS_FAILED = "queue.failed"
    JOBS_RETRIED = "queue.retried"
    SYNC_REQUESTS = "sync.requests"
    SYNC_RETRIES = "sync.retries"
    SYNC_THROTTLED = "sync.throttled"
    SYNC_SPLITS = "sync.splits"
    SYNC_MESSAGES = "sync.messages"
    SYNC_BAD = "sync.bad"
    SYNC_LAG = "sync.lag"
    """How far the watermark of the account that is furthest behind lies in the past, in seconds."""
    DERIVED = "derived"
    """Up to when counts of mail, decisions and spend were taken from their tables."""


class Resolution(StrEnum):
    MINUTE = "minute"
    HOUR = "hour"
    DAY = "day"

    @property
    def length(self) -> timedelta:
        return _LENGTHS[self]

    @property
    def kept_for(self) -> timedelta:
        return _KEPT[self]

    def start_of(self, moment: datetime) -> datetime:
        """The start of the bucket that the moment (in UTC) lies in."""
        start = moment.replace(second=0, microsecond=0)
        if self is Resolution.MINUTE:
            return start
        start = start.replace(minute=0)
        return start if self is Resolution.HOUR else start.replace(hour=0)


_LENGTHS = {
    Resolution.MINUTE: timedelta(minutes=1),
    Resolution.HOUR: timedelta(hours=1),
    Resolution.DAY: timedelta(days=1),
}
_KEPT = {
    Resolution.MINUTE: timedelta(days=2),
    Resolution.HOUR: timedelta(days=60),
    Resolution.DAY: timedelta(days=3 * 365),
}


@dataclass(frozen=True, slots=True)
class Amount:
    """What one bucket holds. Amounts of the same bucket add up, in any order."""

    count: int = 0
    total: float = 0.0
    most: float = 0.0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.count + other.count, self.total + other.total, max(self.most, other.most))


NO_BOUND = 0
"""The bound of what is not a length of time."""
_SHORTEST_S = 0.001
_PER_DOUBLING = 2
_LAST_BOUND = 1 + _PER_DOUBLING * 28


def bound_of(seconds: float) -> int:
    """The number of the first bound that this length of time does not exceed."""
    if seconds <= _SHORTEST_S:
        return 1
    place = 1 + math.ceil(round(_PER_DOUBLING * math.log2(seconds / _SHORTEST_S), 9))
    return min(place, _LAST_BOUND)


def seconds_at(bound: int) -> float:
    return _SHORTEST_S * 2 ** ((bound - 1) / _PER_DOUBLING)


def percentile(counts: Mapping[int, int], share: float) -> float | None:
    """Of a histogram by bound; None if it is empty. Exact to the distance of two bounds, a factor of 1.4."""
    wanted = share * sum(counts.values())
    if not wanted:
        return None
    reached = 0
    for bound in sorted(counts):
        reached += counts[bound]
        if reached >= wanted:
            upper = seconds_at(bound)
            lower = seconds_at(bound - 1) if bound > 1 else 0.0
            return upper - (upper - lower) * (reached - wanted) / counts[bound]
    raise AssertionError("the last bound reaches every share")


Key = tuple[Series, int]
"""A series and a bound."""


class SeriesRecorder:
    def __init__(self) -> None:
        self._amounts: dict[Key, Amount] = {}
        self._lock = threading.Lock()

    def count(self, series: Series, number: int = 1) -> None:
        """So many more happened."""
        if number:
            self._add((series, NO_BOUND), Amount(number, float(number), float(number)))

    def time(self, series: Series, seconds: float) -> None:
        """Something took so long."""
        seconds = max(seconds, 0.0)
        self._add((series, bound_of(seconds)), Amount(1, seconds, seconds))

    def times(self, series: Series, lengths: Mapping[float, int]) -> None:
        """Several things took so long; by length, how many."""
        for seconds, number in lengths.items():
            seconds = max(seconds, 0.0)
            self._add((series, bound_of(seconds)), Amount(number, seconds * number, seconds))

    def take(self) -> Mapping[Key, Amount]:
        """What was recorded since the last call."""
        with self._lock:
            amounts, self._amounts = self._amounts, {}
        return amounts

    def _add(self, key: Key, amount: Amount) -> None:
        with self._lock:
            self._amounts[key] = self._amounts.get(key, Amount()) + amount


RECORDER = SeriesRecorder()
"""Of this process."""

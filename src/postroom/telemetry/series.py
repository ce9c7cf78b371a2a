"""Collects what this process adds to the series over time, until it is written to the database.

Recording is cheap and may happen in any thread. A process that is killed loses what it recorded since its last write,
a few seconds; one that never writes holds at most one small number for each series and bound.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

from postroom.domain.series import NO_BOUND, Amount, Series, bound_of

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

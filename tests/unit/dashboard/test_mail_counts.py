"""Counts beside the list of mail: bounded, kept for a while, and never waited for."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

import pytest

from postroom.archive.search import Search, SearchCount
from postroom.dashboard.mail.sidebar import MailCounts
from postroom.domain.clock import ManualClock
from postroom.domain.errors import BadInput

pytestmark = pytest.mark.req("UX-1")


class SlowSearch:
    """Counts 7 of everything; each count takes a second."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.asked: list[str] = []
        self.is_late = False

    def count(self, query: str, *, patience_s: float, **given: Any) -> SearchCount:
        self.asked.append(query)
        self.clock.advance(1)
        if self.is_late:
            raise BadInput("query", "this takes too long")
        return SearchCount(7, is_exact=True)


def test_what_does_not_fit_into_the_time_is_counted_for_the_next_page() -> None:
    clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
    slow = SlowSearch(clock)
    search, counts = cast(Search, slow), MailCounts(time_s=1.5)
    wanted = [("a", None), ("b", None), ("c", None)]
    assert {query for query, _ in counts.of(search, clock, wanted)} == {"a", "b"}
    assert {query for query, _ in counts.of(search, clock, wanted)} == {"a", "b", "c"}
    assert slow.asked == ["a", "b", "c"]
    clock.advance(30)
    slow.is_late = True
    found = counts.of(search, clock, wanted)
    assert [str(each) for each in found.values()] == ["7", "7", "7"]  # the last known, where counting takes too long
    assert slow.asked == ["a", "b", "c", "a", "b"]

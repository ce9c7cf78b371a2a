"""The map of what is in the archive has no hole and no overlap, and claims no more than the watermark."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from postroom.dashboard.archive.routes import Coverage, gap_map
from postroom.sync.slices import Slice
from postroom.sync.state import SliceRow

FIRST, NOW = datetime(2020, 1, 1, tzinfo=UTC), datetime(2021, 1, 1, tzinfo=UTC)
LEFT, RIGHT = int(FIRST.timestamp()), int(NOW.timestamp())

moments = st.integers(LEFT - 1_000_000, RIGHT + 1_000_000)


@given(moments, st.lists(moments, max_size=12, unique=True), st.lists(st.booleans(), min_size=12, max_size=12))
def test_the_spans_cover_the_time_exactly_once(watermark: int, cuts: list[int], done: list[bool]) -> None:
    edges = sorted(cuts)
    slices = [SliceRow(Slice(a, b), is_done, 0) for (a, b), is_done in zip(pairwise(edges), done, strict=False)]
    spans = gap_map(watermark, slices, FIRST, NOW)
    assert spans[0].start == FIRST
    assert spans[-1].end == NOW
    assert all(one.end == other.start and one.holding != other.holding for one, other in pairwise(spans))
    proven = [span for span in spans if span.holding is Coverage.PROVEN]
    assert all(span.end.timestamp() <= watermark for span in proven)


def test_what_is_done_beyond_a_gap_is_ahead_and_what_nobody_listed_is_said_so() -> None:
    third = (RIGHT - LEFT) // 3
    rows = [
        SliceRow(Slice(LEFT, LEFT + third), False, 0),
        SliceRow(Slice(LEFT + third, LEFT + 2 * third), True, 0),
        SliceRow(Slice(LEFT + 2 * third, None), False, 0),
    ]
    found = [span.holding for span in gap_map(0, rows, FIRST, NOW)]
    assert found == [Coverage.OPEN, Coverage.AHEAD, Coverage.UNLISTED]

"""The sliding hour, as arithmetic."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.switchboard.backfill.rate import HOUR, Admitted, rounded, used, wait

START = datetime(2026, 1, 1, tzinfo=UTC)

# Steps of whole and of awkward lengths, so that exact hours and near misses both happen.
steps = st.lists(
    st.sampled_from([0, 1, 59, 600, 1_799, 1_800, 3_599, 3_600, 3_601, 7_200])
    | st.floats(0, 4_000, allow_nan=False).map(lambda seconds: round(seconds, 6)),
    max_size=60,
)


@pytest.mark.req("BF-10")
@given(limit=st.integers(1, 6), steps=steps)
def test_no_sliding_hour_ever_holds_more_than_the_limit(limit: int, steps: list[float]) -> None:
    now, admitted = START, list[Admitted]()
    for step in steps:
        now += timedelta(seconds=step)
        if not wait(admitted, limit, now):
            admitted.append(Admitted(now, 1))
    for first in admitted:
        assert sum(first.at <= other.at < first.at + HOUR for other in admitted) <= limit


@pytest.mark.req("BF-10")
@given(limit=st.integers(1, 6), steps=steps)
def test_the_wait_is_exactly_long_enough(limit: int, steps: list[float]) -> None:
    now, admitted = START, list[Admitted]()
    for step in steps:
        now += timedelta(seconds=step)
        if delay := wait(admitted, limit, now):
            assert wait(admitted, limit, now + delay) == timedelta()
            assert wait(admitted, limit, now + delay - timedelta(microseconds=1)) > timedelta()
        else:
            assert used(admitted, now) < limit
            admitted.append(Admitted(now, 1))


@given(seconds=st.floats(0, 200_000, allow_nan=False), limit=st.integers(1, 1_000_000))
def test_an_admission_is_never_kept_as_earlier_than_it_was(seconds: float, limit: int) -> None:
    now = START + timedelta(seconds=seconds)
    kept = rounded(now, limit)
    assert now <= kept < now + timedelta(seconds=3.6)
    assert rounded(kept, limit) == kept
    assert limit > 1_000 or kept == now

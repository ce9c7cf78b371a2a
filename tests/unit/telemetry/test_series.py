"""Buckets and percentiles of the series over time."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.telemetry.series import Amount, Resolution, bound_of, percentile, seconds_at

SECONDS = st.floats(0.0, 200_000.0)
MOMENTS = st.integers(0, 4_000_000_000).map(lambda seconds: datetime.fromtimestamp(seconds, UTC))
AMOUNTS = st.builds(Amount, st.integers(0, 9), st.integers(0, 9).map(float), st.integers(0, 9).map(float))


@given(SECONDS)
def test_a_time_lies_at_or_below_its_bound_and_above_the_one_before(seconds: float) -> None:
    bound = bound_of(seconds)
    assert seconds <= seconds_at(bound) * (1 + 1e-6)
    assert bound == 1 or seconds > seconds_at(bound - 1) * (1 - 1e-6)


@pytest.mark.req("UX-5")
@given(st.lists(SECONDS, min_size=1, max_size=200), st.sampled_from([0.5, 0.95]))
def test_a_percentile_is_within_a_bound_of_the_exact_one(times: list[float], share: float) -> None:
    found = percentile(Counter(bound_of(each) for each in times), share)
    exact = sorted(times)[max(-(-int(share * 100) * len(times) // 100) - 1, 0)]
    assert found is not None
    assert exact / 1.42 - 0.001 <= found <= exact * 1.42 + 0.001


def test_an_empty_histogram_has_no_percentile() -> None:
    assert percentile({}, 0.5) is None


@given(AMOUNTS, AMOUNTS, AMOUNTS)
def test_amounts_add_up_in_any_order(one: Amount, two: Amount, three: Amount) -> None:
    assert (one + two) + three == three + (one + two) == one + (two + three)


@given(MOMENTS, st.sampled_from(Resolution))
def test_a_bucket_holds_its_moment(moment: datetime, resolution: Resolution) -> None:
    start = resolution.start_of(moment)
    assert start <= moment < start + resolution.length
    assert (start - datetime(2000, 1, 1, tzinfo=UTC)) % resolution.length == timedelta()

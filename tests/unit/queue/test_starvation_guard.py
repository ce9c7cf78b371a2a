"""The starvation guard, by itself."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.domain.terms import TIERS
from postroom.queue.plan import StarvationGuard

BUSY = [[1], [1], [1]]
waiting_sets = st.lists(st.lists(st.booleans(), min_size=3, max_size=3), max_size=400)


def serve(guard: StarvationGuard, lines: list[list[int]]) -> int:
    rank = guard.choose(lines)
    assert rank is not None
    guard.served(rank)
    return rank


@pytest.mark.req("PQ-7")
def test_three_busy_tiers_are_served_100_to_10_to_1() -> None:
    guard = StarvationGuard(10)
    counts = Counter(serve(guard, BUSY) for _ in range(11_100))
    assert [counts[rank] for rank in range(3)] == [10_000, 1_000, 100]


@pytest.mark.req("PQ-7")
def test_after_ten_in_a_row_the_highest_waiting_lower_tier_is_next() -> None:
    guard = StarvationGuard(10)
    assert [serve(guard, BUSY) for _ in range(12)] == [0] * 10 + [1, 0]
    guard = StarvationGuard(10)
    assert [serve(guard, [[1], [], [1]]) for _ in range(12)] == [0] * 10 + [2, 0]


@pytest.mark.req("PQ-7")
def test_a_tier_goes_on_while_nothing_lower_waits_and_yields_as_soon_as_something_does() -> None:
    guard = StarvationGuard(10)
    assert [serve(guard, [[1], [], []]) for _ in range(50)] == [0] * 50
    assert serve(guard, [[1], [], [1]]) == 2


@pytest.mark.req("PQ-6", "PQ-7")
@given(st.integers(1, 6), waiting_sets)
def test_without_an_exhausted_run_the_most_urgent_waiting_tier_is_served(limit: int, history: list[list[bool]]) -> None:
    guard = StarvationGuard(limit)
    for waiting in history:
        lines = [[1] if present else [] for present in waiting]
        exhausted = any(guard.runs[rank] >= limit and any(waiting[rank + 1 :]) for rank in range(len(TIERS) - 1))
        rank = guard.choose(lines)
        if not any(waiting):
            assert rank is None
            continue
        assert rank is not None
        assert waiting[rank]
        if not exhausted:
            assert rank == waiting.index(True)
        guard.served(rank)


@pytest.mark.req("PQ-7")
@given(st.integers(2, 5), st.integers(0, 2), waiting_sets)
def test_every_waiting_tier_is_served_within_n_squared_plus_n_services_of_others(
    limit: int, patient: int, history: list[list[bool]]
) -> None:
    """For N = 1 the rule itself allows three: the middle tier may see a high, a low and a high one go first."""
    guard = StarvationGuard(limit)
    waited = 0
    for waiting in history:
        lines = [[1] if present or rank == patient else [] for rank, present in enumerate(waiting)]
        if serve(guard, lines) == patient:
            waited = 0
        else:
            waited += 1
        assert waited <= limit * limit + limit


@pytest.mark.req("PQ-7")
def test_the_bound_is_reached_but_not_passed_when_all_tiers_are_busy() -> None:
    guard = StarvationGuard(10)
    order = [serve(guard, BUSY) for _ in range(1_000)]
    places = [place for place, rank in enumerate(order) if rank == 2]
    assert places[0] == 110
    assert {after - before for before, after in itertools.pairwise(places)} == {111}

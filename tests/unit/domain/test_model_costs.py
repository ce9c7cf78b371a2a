"""The arithmetic of an estimate: the worked examples of the specification, and what a duration hangs on."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.domain.model_costs import Binds, FixedTariff, TokenCounts, classification_cost, days_for, job_duration
from postroom.domain.money import Micros, format_dollars

TOKENS, BLENDED = TokenCounts(9_000, 1_000), FixedTariff(Decimal("3.00"), Decimal("3.00"))


@pytest.mark.req("BF-19")
@pytest.mark.parametrize(
    ("full", "expected"),
    [
        (50_000, "$1,500.00"),  # naive: everything
        (50_000 * 30 // 100, "$450.00"),  # selective: 70 % metadata only or skipped
        (200 * 25, "$150.00"),  # on demand: 200 queries a year with 25 results each
    ],
)
def test_the_worked_examples(full: int, expected: str) -> None:
    assert format_dollars(classification_cost(full, TOKENS, BLENDED)) == expected


@pytest.mark.req("BF-19")
def test_the_savings_of_the_worked_examples() -> None:
    naive, selective, on_demand = (classification_cost(full, TOKENS, BLENDED) for full in (50_000, 15_000, 5_000))
    assert (naive - selective, naive - on_demand) == (1_050_000_000, 1_350_000_000)
    assert (selective * 10, on_demand * 10) == (naive * 3, naive)


def lasts(**changes: int) -> tuple[int, Binds]:
    values = {"messages": 1_000, "rate": 100, "days": 1, "units": 0, "per_minute": 6_000} | changes
    found = job_duration(
        messages=values["messages"],
        rate_per_hour=values["rate"],
        days=values["days"],
        quota_units=values["units"],
        units_per_minute=values["per_minute"] or None,
    )
    return found.seconds, found.binds


@pytest.mark.req("BF-19")
@pytest.mark.parametrize(
    ("changes", "seconds", "binds"),
    [
        ({}, 36_000, Binds.RATE),
        ({"days": 2}, 86_400, Binds.COST_CAP),
        ({"days": 3}, 2 * 86_400, Binds.COST_CAP),
        ({"units": 6_000_000}, 60_000, Binds.QUOTA),
        ({"units": 6_000_000, "per_minute": 0}, 36_000, Binds.RATE),
        ({"messages": 0}, 0, Binds.NOTHING),
        ({"messages": 1, "rate": 3_600}, 1, Binds.RATE),
    ],
)
def test_a_job_takes_as_long_as_its_tightest_limit(changes: dict[str, int], seconds: int, binds: Binds) -> None:
    assert lasts(**changes) == (seconds, binds)


@given(st.integers(0, 10**6), st.integers(1, 10**6), st.integers(1, 10**4))
def test_more_of_anything_never_takes_less(messages: int, rate: int, days: int) -> None:
    def seconds(more_messages: int = 0, more_days: int = 0) -> int:
        return job_duration(
            messages=messages + more_messages,
            rate_per_hour=rate,
            days=days + more_days,
            quota_units=messages * 20,
            units_per_minute=6_000,
        ).seconds

    assert seconds() <= seconds(more_messages=1)
    assert seconds() <= seconds(more_days=1)


calls = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)).map(sorted).map(tuple), max_size=60)


@pytest.mark.req("BF-8", "BF-19")
@given(calls, st.integers(1, 30))
def test_a_day_is_used_until_the_most_of_the_next_call_no_longer_fits(made: list[Any], limit: int) -> None:
    days = days_for(made, Micros(limit))
    possible = [(cost, most) for cost, most in made if most <= limit]
    spent = sum(cost for cost, _ in possible)
    dearest = max((most for _, most in possible), default=0)
    assert days >= -(-spent // limit), "no day has more than its limit"
    assert (days - 1) * (limit - dearest) <= spent, "each day but the last is used up to the next call's most"

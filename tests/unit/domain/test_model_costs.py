"""The arithmetic of an estimate: the worked examples of the specification, and what a duration hangs on."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.domain.model_costs import Binds, FixedTariff, TokenCounts, classification_cost, job_duration
from postroom.domain.money import Micros, format_dollars, from_cents

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
    values = {"messages": 1_000, "rate": 100, "cost": 0, "cap": 500, "units": 0, "per_minute": 6_000} | changes
    found = job_duration(
        messages=values["messages"],
        rate_per_hour=values["rate"],
        cost=from_cents(values["cost"]),
        cap_per_day=from_cents(values["cap"]),
        quota_units=values["units"],
        units_per_minute=values["per_minute"] or None,
    )
    return found.seconds, found.binds


@pytest.mark.req("BF-19")
@pytest.mark.parametrize(
    ("changes", "seconds", "binds"),
    [
        ({}, 36_000, Binds.RATE),
        ({"cost": 500}, 36_000, Binds.RATE),
        ({"cost": 501}, 86_400, Binds.COST_CAP),
        ({"cost": 1_500}, 2 * 86_400, Binds.COST_CAP),
        ({"units": 6_000_000}, 60_000, Binds.QUOTA),
        ({"units": 6_000_000, "per_minute": 0}, 36_000, Binds.RATE),
        ({"messages": 0}, 0, Binds.NOTHING),
        ({"messages": 1, "rate": 3_600}, 1, Binds.RATE),
    ],
)
def test_a_job_takes_as_long_as_its_tightest_limit(changes: dict[str, int], seconds: int, binds: Binds) -> None:
    assert lasts(**changes) == (seconds, binds)


@given(st.integers(0, 10**6), st.integers(1, 10**6), st.integers(0, 10**9), st.integers(1, 10**6))
def test_more_of_anything_never_takes_less(messages: int, rate: int, cost: int, cap: int) -> None:
    def seconds(more_messages: int = 0, more_cost: int = 0) -> int:
        return job_duration(
            messages=messages + more_messages,
            rate_per_hour=rate,
            cost=Micros(cost + more_cost),
            cap_per_day=from_cents(cap),
            quota_units=messages * 20,
            units_per_minute=6_000,
        ).seconds

    assert seconds() <= seconds(more_messages=1)
    assert seconds() <= seconds(more_cost=10_000)

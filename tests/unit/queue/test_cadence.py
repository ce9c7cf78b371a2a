"""When recurring schedules are due."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.domain.errors import BadInput
from postroom.queue.schedules import parse_cadence

instants = st.datetimes(datetime(2020, 1, 1), datetime(2035, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
cadences = st.sampled_from(
    ["every 45s", "every 15m", "every 1h", "every 1d", "daily 06:00", "daily 02:30 Europe/Zagreb"]
)


@pytest.mark.req("JB-6")
@given(cadences, instants, st.timedeltas(timedelta(), timedelta(days=400)))
def test_the_next_tick_lies_after_now_and_within_one_period(text: str, due: datetime, downtime: timedelta) -> None:
    now = due + downtime
    period = timedelta(days=1, hours=1) if text.startswith("daily") else parse_cadence(text).next_after(due, due) - due
    assert now < parse_cadence(text).next_after(due, now) <= now + period


@pytest.mark.req("JB-6")
@given(instants, st.integers(1, 500))
def test_an_interval_keeps_its_rhythm_through_downtime(due: datetime, missed: int) -> None:
    late = due + timedelta(minutes=15 * missed, seconds=7)
    assert (parse_cadence("every 15m").next_after(due, late) - due) % timedelta(minutes=15) == timedelta()


@pytest.mark.req("JB-6")
def test_a_daily_time_follows_the_wall_clock_through_the_change_of_summer_time() -> None:
    sentinel = parse_cadence("daily 06:00 Europe/Zagreb")
    before = sentinel.first(datetime(2026, 3, 27, 12, tzinfo=UTC))
    after = sentinel.next_after(before, before)
    assert (before, after) == (datetime(2026, 3, 28, 5, tzinfo=UTC), datetime(2026, 3, 29, 4, tzinfo=UTC))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hourly",
        "every 0m",
        "every 5",
        "every 5w",
        "daily 24:00",
        "daily 6:00",
        "daily 06:00 Mars/Base",
        "daily 06:00 ../x",
    ],
)
def test_a_cadence_that_is_not_understood_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(BadInput, match="write for example"):
        parse_cadence(text)

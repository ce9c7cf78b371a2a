"""The one backoff: delays grow, stay within their bounds, and yield to what the other side asks for."""

from __future__ import annotations

from datetime import timedelta
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from postroom.domain.clock import EQUAL_JITTER, Backoff, ManualClock, retry
from postroom.domain.errors import Fatal, Retryable


@st.composite
def backoffs(draw: st.DrawFn, *, jitter: bool = True, asked_may_shorten: bool = False) -> Backoff:
    first_s = draw(st.floats(0.001, 100))
    low = draw(st.floats(0, 1)) if jitter else 1.0
    return Backoff(
        first_s,
        first_s * draw(st.floats(1, 10_000)),
        factor=draw(st.floats(1, 10)),
        jitter=(low, low + (draw(st.floats(0, 1)) if jitter else 0.0)),
        longest_asked_s=draw(st.floats(0, 1_000_000)),
        asked_may_shorten=asked_may_shorten,
    )


ATTEMPTS = st.integers(1, 10_000)
ASKED = st.timedeltas(timedelta(days=-1), timedelta(days=30))


@given(backoffs(jitter=False), ATTEMPTS)
def test_delays_start_at_the_first_never_shrink_and_never_pass_the_longest(backoff: Backoff, attempt: int) -> None:
    assert backoff.delay_s(1) == pytest.approx(backoff.first_s)
    assert backoff.delay_s(attempt) <= backoff.delay_s(attempt + 1) <= backoff.longest_s


@given(backoffs(), ATTEMPTS, st.integers())
@example(Backoff(1.0, 125.0, factor=1.015625, jitter=(0.0, 1.0)), 312, 0)
def test_jitter_stays_within_its_bounds_and_comes_from_the_given_random(
    backoff: Backoff, attempt: int, seed: int
) -> None:
    low, high = backoff.jitter
    try:
        grown = min(backoff.first_s * backoff.factor ** (attempt - 1), backoff.longest_s)
    except OverflowError:
        grown = backoff.longest_s
    delay = backoff.delay_s(attempt, random=Random(seed))
    assert grown * low * 0.999_999 <= delay <= grown * high * 1.000_001
    assert delay == backoff.delay_s(attempt, random=Random(seed))


@given(backoffs(), ATTEMPTS, ASKED, st.integers())
def test_what_was_asked_for_wins_where_it_is_longer(
    backoff: Backoff, attempt: int, asked: timedelta, seed: int
) -> None:
    own = backoff.delay_s(attempt, random=Random(seed))
    delay = backoff.delay_s(attempt, asked, random=Random(seed))
    assert delay == max(own, min(asked.total_seconds(), backoff.longest_asked_s))


@given(backoffs(asked_may_shorten=True), ATTEMPTS, ASKED)
def test_where_it_may_shorten_what_was_asked_for_always_wins(backoff: Backoff, attempt: int, asked: timedelta) -> None:
    assert backoff.delay_s(attempt, asked) == min(max(asked.total_seconds(), 0.0), backoff.longest_asked_s)


def test_doubling_in_figures() -> None:
    assert [Backoff(1, 60).delay_s(attempt) for attempt in range(1, 9)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert Backoff(0.25, 8).delay_s(1.5) == pytest.approx(0.25 * 2**0.5)


@pytest.mark.parametrize(("first_s", "longest_s", "factor"), [(0, 1, 2), (2, 1, 2), (1, 2, 0.5)])
def test_figures_that_make_no_sense_are_refused(first_s: float, longest_s: float, factor: float) -> None:
    with pytest.raises(ValueError, match="does not grow"):
        Backoff(first_s, longest_s, factor)


class Unsteady:
    """Fails a number of times, then answers."""

    def __init__(self, failures: int, error: Exception | None = None) -> None:
        self.calls = 0
        self._failures = failures
        self._error = error or Retryable("busy")

    async def __call__(self) -> str:
        self.calls += 1
        if self.calls <= self._failures:
            raise self._error
        return "answer"


async def test_a_retried_call_answers_in_the_end_and_waited_in_between() -> None:
    clock, work, waits = ManualClock(), Unsteady(3), list[float]()
    answer = await retry(work, Backoff(1, 60), clock, on_wait=lambda error, delay_s: waits.append(delay_s))
    assert (answer, waits, clock.monotonic()) == ("answer", [1, 2, 4], 7)


async def test_after_the_last_attempt_the_error_is_raised_without_another_wait() -> None:
    clock, work = ManualClock(), Unsteady(9)
    with pytest.raises(Retryable, match="busy"):
        await retry(work, Backoff(1, 60), clock, attempts=3)
    assert (work.calls, clock.monotonic()) == (3, 3)


async def test_when_patience_is_over_the_error_is_raised() -> None:
    clock, work = ManualClock(), Unsteady(1_000)
    with pytest.raises(Retryable, match="busy"):
        await retry(work, Backoff(1, 1), clock, patience_s=60)
    assert clock.monotonic() == 60
    with pytest.raises(Retryable, match="busy"):
        await retry(work, Backoff(1, 1), clock, patience_s=0)
    assert clock.monotonic() == 60


async def test_the_pause_asked_for_is_kept_and_other_errors_are_not_retried() -> None:
    clock = ManualClock()
    await retry(Unsteady(1, Retryable("busy", retry_after=timedelta(seconds=90))), Backoff(1, 60), clock)
    assert clock.monotonic() == 90
    with pytest.raises(Fatal):
        await retry(Unsteady(1, Fatal("no")), Backoff(1, 60, jitter=EQUAL_JITTER), clock)
    assert clock.monotonic() == 90

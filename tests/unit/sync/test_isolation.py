"""A few bad messages among many good ones: found, exactly those, in few steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from math import ceil, log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.domain.errors import Fatal, PostroomError, Retryable
from postroom.sync.slice_ledger import Again, Bad, Done, FetchJob, Split, judge_attempt

BUDGET = 5
Attempt = Callable[[tuple[str, ...]], Mapping[str, PostroomError]]


def isolate(ids: list[str], attempt: Attempt) -> tuple[set[str], int]:
    """The bad ones, and how many attempts it took to name them."""
    jobs, bad, steps = deque([FetchJob(1, tuple(ids))]), set[str](), 0
    while jobs:
        job = jobs.popleft()
        steps += 1
        match judge_attempt(job, attempt(job.ids), BUDGET):
            case Again(left, tries, _):
                jobs.append(FetchJob(1, left, tries))
            case Split(halves, tries):
                jobs.extend(FetchJob(1, half, tries) for half in halves)
            case Bad(gmail_id, _):
                bad.add(gmail_id)
            case Done():
                pass
    return bad, steps


def bound(bad: int, of: int) -> int:
    """Each level of the search has at most two attempts for each bad message; the whole is tried a few times first."""
    return BUDGET + 2 * bad * ceil(log2(max(of, 2)))


@st.composite
def mailboxes(draw: st.DrawFn) -> tuple[list[str], set[str]]:
    count = draw(st.integers(1, 300))
    bad = draw(st.sets(st.integers(0, count - 1), max_size=12))
    return [f"m{number}" for number in range(count)], {f"m{number}" for number in bad}


@pytest.mark.req("SY-5")
@given(mailboxes())
def test_where_a_job_fails_as_a_whole_splitting_finds_exactly_the_bad(mailbox: tuple[list[str], set[str]]) -> None:
    ids, poison = mailbox

    def attempt(asked: tuple[str, ...]) -> Mapping[str, PostroomError]:
        return dict.fromkeys(asked, Retryable("it hangs")) if poison.intersection(asked) else {}

    bad, steps = isolate(ids, attempt)
    assert bad == poison
    assert steps <= bound(len(poison), len(ids))


@pytest.mark.req("SY-5")
@given(mailboxes(), st.booleans())
def test_where_each_id_is_answered_for_only_the_failed_are_tried_again(
    mailbox: tuple[list[str], set[str]], is_worth_a_retry: bool
) -> None:
    ids, poison = mailbox
    error = Retryable("not now") if is_worth_a_retry else Fatal("never")
    asked_for: list[str] = []

    def attempt(asked: tuple[str, ...]) -> Mapping[str, PostroomError]:
        asked_for.extend(asked)
        return {each: error for each in asked if each in poison}

    bad, steps = isolate(ids, attempt)
    assert bad == poison
    assert steps <= bound(len(poison), len(ids))
    assert all(asked_for.count(each) == 1 for each in set(ids) - poison)


@pytest.mark.req("SY-5")
def test_a_failing_job_is_tried_five_times_with_growing_pauses_before_it_is_split() -> None:
    job, pauses = FetchJob(1, ("a", "b")), []
    failed: dict[str, PostroomError] = {"a": Retryable("no"), "b": Retryable("no")}
    while isinstance(verdict := judge_attempt(job, failed, BUDGET), Again):
        pauses.append(verdict.pause_s)
        job = FetchJob(1, verdict.ids, verdict.tries)
    assert pauses == [2, 4, 8, 16]
    assert verdict == Split((("a",), ("b",)), BUDGET)


def test_what_can_never_succeed_is_not_tried_again() -> None:
    assert isinstance(judge_attempt(FetchJob(1, ("a", "b")), {"a": Fatal("never")}, BUDGET), Bad)


def test_an_error_that_passes_costs_nobody() -> None:
    left = 3

    def attempt(asked: tuple[str, ...]) -> Mapping[str, PostroomError]:
        nonlocal left
        left -= 1
        return dict.fromkeys(asked, Retryable("not now")) if left > 0 else {}

    assert isolate(["a", "b", "c"], attempt) == (set(), 3)

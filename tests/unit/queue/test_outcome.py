"""What becomes of a job after an attempt."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.domain.errors import BadInput, Fatal, NotAllowed, Retryable
from postroom.domain.jobs import JobState, RetryPolicy
from postroom.domain.terms import Tier
from postroom.queue.job import (
    ClaimedJob,
    Interrupted,
    Outcome,
    Postponed,
    QueueName,
    Raised,
    Settlement,
    Succeeded,
    TimedOut,
    describe,
    settle,
)

NOW = datetime(2026, 3, 1, tzinfo=UTC)


def job(attempt: int = 1, max_attempts: int = 5) -> ClaimedJob:
    return ClaimedJob("id", "noop", QueueName.WORK, Tier.DEFAULT, "{}", attempt, max_attempts, 1, 0.0)


def settled(outcome: Outcome, attempt: int = 1) -> Settlement:
    return settle(job(attempt), outcome, RetryPolicy(), NOW, Random(1))


def test_an_error_that_was_raised_from_itself_or_says_the_same_is_told_once() -> None:
    error, wrapped = Fatal("no such label"), Fatal("no such label")
    error.__cause__ = wrapped
    wrapped.__cause__ = error
    assert describe(error) == "Fatal: no such label"
    outer = Retryable("later")
    outer.__cause__ = error
    assert describe(outer) == "Retryable: later <- Fatal: no such label"


@pytest.mark.req("JB-4")
@pytest.mark.parametrize("error", [Fatal("no"), BadInput("url", "no"), NotAllowed("no")])
def test_a_fatal_error_stops_at_once(error: Exception) -> None:
    result = settled(Raised(error))
    assert result.state is JobState.FAILED
    assert result.error is not None
    assert "no" in result.error


@pytest.mark.parametrize(
    ("ended", "counted"),
    [
        (Succeeded(), "completed"),
        (Raised(Fatal("no")), "failed"),
        (Raised(Retryable("throttled")), "retried"),
        (TimedOut(timedelta(seconds=1)), "retried"),
        (Raised(Postponed(timedelta(minutes=1))), "put_back"),
        (Interrupted(), "put_back"),
    ],
)
def test_a_job_that_only_waits_is_not_counted_as_retried(ended: Outcome, counted: str) -> None:
    assert settled(ended).outcome == counted


@pytest.mark.req("JB-4")
def test_retry_after_wins_over_the_back_off() -> None:
    result = settled(Raised(Retryable("busy", retry_after=timedelta(minutes=7))))
    assert (result.state, result.not_before) == (JobState.QUEUED, NOW + timedelta(minutes=7))


@pytest.mark.req("JB-4")
def test_an_error_nobody_planned_for_is_retried_and_described_with_its_cause() -> None:
    try:
        try:
            raise OSError("connection reset")
        except OSError as cause:
            raise RuntimeError("could not fetch") from cause
    except RuntimeError as error:
        result = settled(Raised(error))
    assert result.state is JobState.QUEUED
    assert result.error == "RuntimeError: could not fetch <- OSError: connection reset"


@pytest.mark.req("JB-4")
def test_an_exhausted_job_fails_and_says_how_often_it_was_tried() -> None:
    result = settled(TimedOut(timedelta(seconds=3)), attempt=5)
    assert result.state is JobState.FAILED
    assert result.error == "gave up after 5 attempts; the last: ran longer than its time limit of 3 s"


def test_an_interrupted_attempt_does_not_count() -> None:
    assert settled(Interrupted(), attempt=2) == Settlement(JobState.QUEUED, attempts=1)


def test_a_result_that_is_not_json_is_the_handlers_fault_and_is_not_retried() -> None:
    result = settled(Succeeded({"when": NOW}))
    assert result.state is JobState.FAILED
    assert "not JSON" in (result.error or "")


def test_an_error_text_that_no_database_could_store_is_made_storable() -> None:
    result = settled(Raised(ValueError("nul \0, lone surrogate \ud800, " + "long " * 5_000)))
    assert result.error is not None
    assert len(result.error) <= 4_000
    result.error.encode()
    assert "\0" not in result.error


@pytest.mark.req("JB-4")
@given(st.integers(1, 10_000), st.integers(0, 2**32))
def test_back_off_grows_stays_within_its_jitter_and_never_passes_the_longest_delay(attempt: int, seed: int) -> None:
    policy = RetryPolicy()
    delay = policy.delay(attempt, Random(seed)).total_seconds()
    middle = min(10 * 4.0 ** min(attempt - 1, 60), 3_600)
    assert middle * 0.75 <= delay <= middle * 1.25 + 1e-6


@pytest.mark.req("JB-4")
def test_the_default_attempts_outlive_an_outage_of_ten_minutes() -> None:
    policy = RetryPolicy(jitter=0)
    horizon = sum(policy.delay(n, Random(0)).total_seconds() for n in range(1, policy.max_attempts))
    assert horizon > 600


@pytest.mark.req("WB-10")
@pytest.mark.parametrize("attempt", [1, 5])
def test_a_postponed_job_comes_back_and_the_attempt_does_not_count(attempt: int) -> None:
    result = settled(Raised(Postponed(timedelta(minutes=3), "not its turn")), attempt)
    assert result == Settlement(JobState.QUEUED, attempt - 1, not_before=NOW + timedelta(minutes=3))


@pytest.mark.parametrize(("wait", "kept"), [(timedelta(days=-1), timedelta()), (timedelta(days=90), timedelta(days=7))])
def test_a_postponement_is_neither_in_the_past_nor_for_ever(wait: timedelta, kept: timedelta) -> None:
    assert settled(Raised(Postponed(wait))).not_before == NOW + kept

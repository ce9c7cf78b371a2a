"""Cancelling jobs, and retrying failed ones by hand."""

from __future__ import annotations

from datetime import datetime

import pytest

from postroom.db import Database
from postroom.domain.clock import ManualClock
from postroom.domain.errors import BadInput, NotFound
from postroom.queue import CancelOutcome, FailedJobs, JobQueue, JobState, NewJob
from tests.support.queues import claim, complete, count_jobs, fail, later, make_queue, record_of

MISSING = "01990000-0000-7000-8000-000000000000"


@pytest.mark.req("JB-6")
async def test_cancelling_a_waiting_job_means_it_never_runs(database: Database, clock: ManualClock) -> None:
    queue = make_queue(database, clock)
    [answer] = await queue.enqueue(NewJob("noop", not_before=later(clock, 60)))
    assert await queue.cancel(answer.job_id) is CancelOutcome.CANCELED
    clock.advance(120)
    assert await claim(queue) == []
    assert (await record_of(queue, answer.job_id)).state is JobState.CANCELED


@pytest.mark.req("JB-6")
async def test_cancelling_a_running_job_takes_away_the_right_to_complete_it(
    database: Database, clock: ManualClock
) -> None:
    queue = make_queue(database, clock)
    await queue.enqueue(NewJob("noop"))
    [job] = await claim(queue)
    assert await queue.cancel(job.id) is CancelOutcome.CANCELED
    assert await complete(queue, job) == {job.id}
    assert (await record_of(queue, job.id)).state is JobState.CANCELED


@pytest.mark.req("JB-6")
async def test_cancelling_a_finished_or_unknown_job_says_so_and_changes_nothing(
    database: Database, clock: ManualClock
) -> None:
    queue = make_queue(database, clock)
    await queue.enqueue(NewJob("noop"))
    [job] = await claim(queue)
    await complete(queue, job)
    assert await queue.cancel(job.id) is CancelOutcome.NOT_RUNNING
    assert (await record_of(queue, job.id)).state is JobState.COMPLETED
    assert await queue.cancel(MISSING) is CancelOutcome.JOB_NOT_FOUND


async def test_an_id_in_another_spelling_is_the_same_job(database: Database, clock: ManualClock) -> None:
    queue = make_queue(database, clock)
    [answer] = await queue.enqueue(NewJob("noop"))
    assert await queue.cancel(answer.job_id.upper()) is CancelOutcome.CANCELED
    assert (await record_of(queue, answer.job_id.upper())).state is JobState.CANCELED
    await queue.retry(answer.job_id.upper())
    assert (await record_of(queue, answer.job_id)).state is JobState.QUEUED


async def test_a_dry_run_of_cancel_and_retry_changes_nothing(database: Database, clock: ManualClock) -> None:
    queue = make_queue(database, clock)
    [answer] = await queue.enqueue(NewJob("noop"))
    assert await queue.cancel(answer.job_id, dry_run=True) is CancelOutcome.CANCELED
    [job] = await claim(queue)
    await fail(queue, job)
    await queue.retry(job.id, dry_run=True)
    assert await queue.retry_failed(FailedJobs(type="noop"), dry_run=True) == [job.id]
    assert (await record_of(queue, job.id)).state is JobState.FAILED


@pytest.mark.req("JB-4")
async def test_a_failed_job_retried_by_hand_has_all_its_attempts_again(database: Database, clock: ManualClock) -> None:
    queue = make_queue(database, clock)
    await queue.enqueue(NewJob("brief"))
    [job] = await claim(queue)
    await fail(queue, job, "no network")
    await queue.retry(job.id)
    record = await record_of(queue, job.id)
    assert (record.state, record.attempts, record.last_error) == (JobState.QUEUED, 0, "no network")
    [again] = await claim(queue)
    assert (again.attempt, again.fence) == (1, job.fence + 1)


@pytest.mark.req("JB-4")
async def test_only_failed_and_cancelled_jobs_can_be_retried(database: Database, clock: ManualClock) -> None:
    queue = make_queue(database, clock)
    [answer] = await queue.enqueue(NewJob("noop"))
    with pytest.raises(BadInput, match="is queued"):
        await queue.retry(answer.job_id)
    with pytest.raises(NotFound):
        await queue.retry(MISSING)
    with pytest.raises(BadInput, match="is not an id"):
        await queue.retry("17")


@pytest.mark.req("JB-4")
async def test_failures_of_a_type_or_a_window_are_retried_together(database: Database, clock: ManualClock) -> None:
    queue = make_queue(database, clock)
    start = clock.now()
    failed = await fail_one_each_minute(queue, clock, ["noop", "brief", "noop", "brief"])
    window = FailedJobs(since=start, until=later(clock, -120))

    assert await queue.retry_failed(FailedJobs(type="brief", since=start), dry_run=True) == [failed[1], failed[3]]
    assert await queue.retry_failed(window) == failed[:2]
    assert await count_jobs(database, state=JobState.QUEUED) == 2
    assert await queue.retry_failed(FailedJobs(type="noop")) == [failed[2]]


@pytest.mark.parametrize(
    ("field", "which"),
    [
        ("type", {}),
        ("since", {"since": datetime(2026, 1, 1)}),  # noqa: DTZ001 (that is the point)
        ("since", {"since": ManualClock().now(), "until": later(ManualClock(), -1)}),
    ],
)
def test_a_vague_or_impossible_choice_of_failed_jobs_is_refused(field: str, which: dict[str, datetime]) -> None:
    with pytest.raises(BadInput) as refusal:
        FailedJobs(**which)  # type: ignore[arg-type]
    assert refusal.value.field == field


async def fail_one_each_minute(queue: JobQueue, clock: ManualClock, types: list[str]) -> list[str]:
    failed = []
    for job_type in types:
        await queue.enqueue(NewJob(job_type))
        [job] = await claim(queue)
        await fail(queue, job)
        failed.append(job.id)
        clock.advance(60)
    return failed

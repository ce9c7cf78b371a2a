"""Forgetting finished jobs without forgetting their keys."""

from __future__ import annotations

from datetime import timedelta

import pytest

from postroom.db import Database
from postroom.domain.clock import ManualClock
from postroom.queue import JobQueue, JobState, NewJob
from postroom.queue.retention import Retention, prune
from tests.support.queues import CATALOGUE, claim, complete, count_jobs, fail, make_queue

RETENTION = Retention(completed=timedelta(days=14), failed=timedelta(days=90))


async def finish(queue: JobQueue, job: NewJob, *, failed: bool = False) -> str:
    [answer] = await queue.enqueue(job)
    [claimed] = await claim(queue)
    await (fail(queue, claimed) if failed else complete(queue, claimed))
    return answer.job_id


async def test_old_jobs_go_and_young_or_unfinished_ones_stay(database: Database, clock: ManualClock) -> None:
    queue = make_queue(database, clock)
    await finish(queue, NewJob("noop"))
    await finish(queue, NewJob("noop"), failed=True)
    clock.advance(timedelta(days=15).total_seconds())
    await finish(queue, NewJob("noop"))
    await queue.enqueue(NewJob("noop"))

    assert await prune(database, CATALOGUE, RETENTION, clock, dry_run=True) == 1
    assert await count_jobs(database) == 4
    assert await prune(database, CATALOGUE, RETENTION, clock) == 1
    assert await count_jobs(database) == 3
    clock.advance(timedelta(days=90).total_seconds())
    assert await prune(database, CATALOGUE, RETENTION, clock) == 2
    assert await count_jobs(database, state=JobState.QUEUED) == await count_jobs(database) == 1


@pytest.mark.req("JB-5")
async def test_a_once_key_outlives_its_pruned_job(database: Database, clock: ManualClock) -> None:
    queue = make_queue(database, clock)
    job_id = await finish(queue, NewJob("noop", key="gmail:me:1"))
    await finish(queue, NewJob("hourly", key="labels:me"))
    clock.advance(timedelta(days=15).total_seconds())
    assert await prune(database, CATALOGUE, RETENTION, clock) == 2

    [again] = await queue.enqueue(NewJob("noop", key="gmail:me:1"))
    assert (again.duplicate, again.job_id) == (True, job_id)
    [hourly] = await queue.enqueue(NewJob("hourly", key="labels:me"))
    assert not hourly.duplicate
    assert await count_jobs(database) == 1


async def test_a_type_may_keep_only_its_newest_jobs(database: Database, clock: ManualClock) -> None:
    queue = make_queue(database, clock)
    for failed in (False, True):
        for _ in range(5):
            await finish(queue, NewJob("brief"), failed=failed)
            clock.advance(1)
    assert await prune(database, CATALOGUE, RETENTION, clock) == 2 + 3
    assert await count_jobs(database, state=JobState.COMPLETED) == 3
    assert await count_jobs(database, state=JobState.FAILED) == 2

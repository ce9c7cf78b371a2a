"""Slots of a worker: many brief jobs are in flight at once, but few that wait, and urgent mail passes those."""

from __future__ import annotations

import asyncio

import pytest

from postroom.db import Database
from postroom.domain.clock import SystemClock
from postroom.domain.terms import Tier
from postroom.queue import JobContext, JobQueue, JobState, NewJob, QueueName
from postroom.settings import WorkerSettings
from tests.support.queues import count_jobs, make_queue, running, until


@pytest.fixture
def queue(database: Database) -> JobQueue:
    return make_queue(database, SystemClock())


@pytest.mark.req("PQ-6", "JB-2")
async def test_brief_jobs_that_come_to_wait_hold_no_more_than_the_slots_and_urgent_mail_is_next(
    queue: JobQueue,
) -> None:
    """As mail that needs the model after a burst that rules decided: many are taken at once, few may wait."""
    slow, order = "slow", list[str]()
    waiting, waited, let_one_go = 0, list[int](), asyncio.Semaphore(0)

    async def decide(context: JobContext) -> None:
        nonlocal waiting
        kind = str(context.job.payload["kind"])
        if kind == slow:
            context.take_slot()
            waiting += 1
            waited.append(waiting)
            await let_one_go.acquire()
            waiting -= 1
        order.append(kind)

    def mail(kind: str, tier: Tier = Tier.DEFAULT) -> NewJob:
        return NewJob("short", {"kind": kind}, QueueName.LIVE, tier)

    await queue.enqueue(*(mail("by rule") for _ in range(40)), *(mail(slow) for _ in range(20)))
    async with running(queue, {"short": decide}, WorkerSettings(concurrency=4, poll_s=30)):
        await until(lambda: waiting == 4)
        while await count_jobs(queue.database, state=JobState.RUNNING) > 4:
            await asyncio.sleep(0.005)
        assert order == ["by rule"] * 40
        await queue.enqueue(mail("urgent", Tier.HIGH_PRIORITY))
        let_one_go.release()
        await until(lambda: "urgent" in order)
        assert order[40:] == [slow, "urgent"]
        for _ in range(19):
            let_one_go.release()
        await until(lambda: len(order) == 61)
    assert max(waited) == 4
    assert order.count(slow) == 20
    assert await count_jobs(queue.database, state=JobState.COMPLETED, attempts=1) == 61


@pytest.mark.req("BF-11")
async def test_history_that_waits_leaves_slots_to_live_mail(queue: JobQueue) -> None:
    waiting, over = list[QueueName](), asyncio.Event()

    async def decide(context: JobContext) -> None:
        context.take_slot()
        waiting.append(context.job.queue)
        await over.wait()

    await queue.enqueue(*(NewJob("short", {}, QueueName.HISTORY) for _ in range(30)))
    async with running(queue, {"short": decide}, WorkerSettings(concurrency=4, poll_s=30)):
        await until(lambda: len(waiting) == 3)
        await queue.enqueue(NewJob("short", {}, QueueName.LIVE))
        await until(lambda: len(waiting) == 4)
        assert waiting == [QueueName.HISTORY] * 3 + [QueueName.LIVE]
        over.set()
        await until(lambda: len(waiting) == 31)
    assert await count_jobs(queue.database, state=JobState.COMPLETED, attempts=1) == 31

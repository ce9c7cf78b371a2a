"""Recurring schedules: each tick once, whoever fires it."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import update

from postroom.db import Database, connect
from postroom.db.tables.queue import schedules
from postroom.domain.clock import ManualClock, SystemClock
from postroom.domain.errors import BadInput
from postroom.domain.jobs import JobType, KeyUse
from postroom.queue import JobCatalogue, JobContext, JobQueue, NewJob, Schedule
from postroom.queue.job import QueueName
from postroom.queue.schedules import next_schedule_due
from tests.support.queues import CATALOGUE, claim, complete, count_jobs, later, make_queue, running

LABELS = Schedule("labels", "hourly", "every 1h", {"account": "me"}, key="labels.sync.gmail:me")

pytestmark = pytest.mark.req("JB-6")


async def test_a_schedule_fires_at_once_and_then_each_hour(database: Database, clock: ManualClock) -> None:
    queue = make_queue(database, clock)
    await queue.declare_schedules(LABELS)
    for _ in range(4):
        assert await database.write(queue.fire_schedules) == ["labels"]
        assert await database.write(queue.fire_schedules) == []
        [job] = await claim(queue)
        assert job.payload == {"account": "me"}
        await complete(queue, job)
        clock.advance(3_600)
    assert await count_jobs(database) == 1, "one repeatable job, armed again each hour"


async def test_ticks_missed_during_downtime_fire_once(database: Database, clock: ManualClock) -> None:
    queue = make_queue(database, clock)
    await queue.declare_schedules(LABELS)
    await database.write(queue.fire_schedules)
    clock.advance(36 * 3_600 + 5)
    assert await database.write(queue.fire_schedules) == ["labels"]
    due = await database.read(lambda tx: next_schedule_due(tx, CATALOGUE, clock.now()))
    assert due is not None
    assert (due - clock.now()).total_seconds() == 3_595


async def test_many_workers_fire_each_tick_once(database_url: str, clock: ManualClock) -> None:
    databases = [await connect(database_url) for _ in range(5)]
    queues = [make_queue(database, clock) for database in databases]
    await queues[0].declare_schedules(LABELS)
    fired = await asyncio.gather(*(queue.database.write(queue.fire_schedules) for queue in queues))
    assert sorted(name for names in fired for name in names) == ["labels"]
    for database in databases:
        await database.close()


async def test_workers_that_start_together_declare_the_same_schedules_without_conflict(
    database_url: str, clock: ManualClock
) -> None:
    databases = [await connect(database_url) for _ in range(5)]
    await asyncio.gather(*(make_queue(database, clock).declare_schedules(LABELS) for database in databases))
    assert await databases[0].write(make_queue(databases[0], clock).fire_schedules) == ["labels"]
    for database in databases:
        await database.close()


async def test_declaring_again_keeps_the_rhythm_unless_the_cadence_changes(
    database: Database, clock: ManualClock
) -> None:
    queue = make_queue(database, clock)
    await queue.declare_schedules(LABELS)
    await database.write(queue.fire_schedules)
    clock.advance(60)
    await queue.declare_schedules(LABELS)
    assert await database.write(queue.fire_schedules) == [], "a restart does not fire it early"
    await queue.declare_schedules(Schedule("labels", "hourly", "every 10m", key="labels.sync.gmail:me"))
    assert await database.write(queue.fire_schedules) == ["labels"]


async def test_a_tick_while_the_job_still_runs_does_not_double_it(database: Database, clock: ManualClock) -> None:
    queue = make_queue(database, clock)
    await queue.declare_schedules(LABELS)
    await database.write(queue.fire_schedules)
    await claim(queue)
    clock.advance(30)
    await queue.declare_schedules(Schedule("labels", "hourly", "every 10s", key="labels.sync.gmail:me"))
    assert await database.write(queue.fire_schedules) == ["labels"]
    assert await claim(queue) == []


async def test_a_job_type_of_the_history_lane_recurs_there(database: Database, clock: ManualClock) -> None:
    kind = JobType("slow", KeyUse.REPEATABLE, in_history=True)
    queue = JobQueue(database, JobCatalogue([kind]), clock)
    await queue.declare_schedules(Schedule("slow", "slow", "every 1h"))
    await database.write(queue.fire_schedules)
    [job] = await claim(queue)
    assert job.queue is QueueName.HISTORY


async def test_only_repeatable_types_can_recur(database: Database, clock: ManualClock) -> None:
    with pytest.raises(BadInput, match="runs once a key"):
        await make_queue(database, clock).declare_schedules(Schedule("x", "noop", "every 1h"))


async def test_a_clock_set_back_does_not_put_a_schedule_to_sleep(database: Database, clock: ManualClock) -> None:
    queue = make_queue(database, clock)
    await queue.declare_schedules(LABELS)
    clock.advance(10 * 365 * 86_400)
    await database.write(queue.fire_schedules)
    clock.advance(-10 * 365 * 86_400)
    assert await database.write(queue.fire_schedules) == []
    due = await database.read(lambda tx: next_schedule_due(tx, CATALOGUE, clock.now()))
    assert due == later(clock, 3_600)


async def test_a_cadence_of_a_newer_version_is_left_for_it_and_stops_nobody(
    database: Database, clock: ManualClock
) -> None:
    queue = make_queue(database, clock)
    await queue.declare_schedules(LABELS, Schedule("newer", "hourly", "every 1h"))
    change = update(schedules).where(schedules.c.name == "newer").values(cadence="weekly mon 06:00")
    await database.write(lambda tx: tx.execute(change))
    assert await database.write(queue.fire_schedules) == ["labels"]


async def test_a_schedule_that_is_no_longer_declared_fires_no_more(database: Database, clock: ManualClock) -> None:
    queue = make_queue(database, clock)
    await queue.declare_schedules(LABELS, Schedule("other", "hourly", "every 1h"))
    await queue.declare_schedules(LABELS)
    assert await database.write(queue.fire_schedules) == ["labels"]


async def test_the_schedules_of_a_newer_version_survive_an_older_one(database: Database, clock: ManualClock) -> None:
    await make_queue(database, clock).declare_schedules(LABELS)
    older = JobQueue(database, JobCatalogue([]), clock)
    await older.declare_schedules()
    assert await database.write(make_queue(database, clock).fire_schedules) == ["labels"]


async def test_a_running_worker_fires_what_is_due(database: Database) -> None:
    queue = make_queue(database, SystemClock())
    ran = asyncio.Event()

    async def note(context: JobContext) -> None:
        ran.set()

    await queue.declare_schedules(LABELS)
    async with running(queue, {"hourly": note}):
        await ran.wait()
    [duplicate] = await queue.enqueue(NewJob("hourly", key="labels.sync.gmail:me"))
    assert not duplicate.duplicate

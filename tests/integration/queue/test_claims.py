"""Claiming, leases and fences, on both databases."""

from __future__ import annotations

import asyncio

import pytest

from postroom.db import Database, connect
from postroom.domain.clock import ManualClock
from postroom.domain.terms import Tier
from postroom.queue import JobState, NewJob, QueueName
from postroom.queue.claims import Claimant
from postroom.queue.job import Settlement
from tests.support.queues import LEASE, claim, complete, later, make_queue, record_of, take_turn

HIGH, MIDDLE, LOW = Tier


@pytest.mark.req("PQ-6")
async def test_mail_is_served_by_tier_then_by_accepted_order(database: Database, clock: ManualClock) -> None:
    queue = make_queue(database, clock)
    tiers = [LOW, MIDDLE, HIGH, LOW, HIGH, MIDDLE]
    await queue.enqueue(*(NewJob("noop", {"n": n}, QueueName.LIVE, tier) for n, tier in enumerate(tiers)))
    assert [job.payload["n"] for job in await claim(queue, 10)] == [2, 4, 1, 5, 0, 3]


@pytest.mark.req("PQ-6")
async def test_work_is_served_by_priority_within_its_tier(database: Database, clock: ManualClock) -> None:
    queue = make_queue(database, clock)
    priorities = [0, 5, -1, 5, 1_000]
    await queue.enqueue(*(NewJob("noop", {"n": n}, priority=value) for n, value in enumerate(priorities)))
    assert [job.payload["n"] for job in await claim(queue, 10)] == [4, 1, 3, 0, 2]


@pytest.mark.req("PQ-6", "PQ-7")
async def test_order_and_guard_hold_across_workers_and_restarts(database_url: str, clock: ManualClock) -> None:
    """Every claim is made by another worker over a connection of its own; the guard's count goes on all the same."""
    database = await connect(database_url)
    tiers = [HIGH] * 25 + [LOW] * 2
    await make_queue(database, clock).enqueue(*(NewJob("noop", queue=QueueName.LIVE, tier=tier) for tier in tiers))
    await database.close()

    served = []
    for turn in range(9):
        database = await connect(database_url)
        served += await claim(make_queue(database, clock), 3, worker=f"w{turn}")
        await database.close()
    assert [job.tier for job in served] == [HIGH] * 10 + [LOW] + [HIGH] * 10 + [LOW] + [HIGH] * 5


@pytest.mark.req("JB-2")
async def test_many_workers_never_claim_the_same_job(database_url: str, clock: ManualClock) -> None:
    databases = [await connect(database_url) for _ in range(6)]
    queues = [make_queue(database, clock) for database in databases]
    await queues[0].enqueue(*(NewJob("noop", queue=QueueName.LIVE, tier=Tier(list(Tier)[n % 3])) for n in range(300)))

    async def worker(number: int) -> list[str]:
        mine: list[str] = []
        while jobs := await claim(queues[number], 7, worker=f"w{number}"):
            mine += [job.id for job in jobs]
        return mine

    claimed = [job_id for ids in await asyncio.gather(*map(worker, range(6))) for job_id in ids]
    assert len(claimed) == len(set(claimed)) == 300
    for database in databases:
        await database.close()


@pytest.mark.req("JB-3")
async def test_a_silent_workers_job_is_claimed_by_another_when_its_lease_ends(
    database: Database, clock: ManualClock
) -> None:
    queue = make_queue(database, clock)
    await queue.enqueue(NewJob("noop"))
    [lost] = await claim(queue, worker="dies")
    clock.advance(LEASE.total_seconds() + 0.001)
    turn = await take_turn(queue, 1, worker="lives")
    assert [stale.job_id for stale in turn.recovered] == [lost.id]
    [(_, found)] = turn.claimed
    assert (found.id, found.attempt, found.fence) == (lost.id, 2, lost.fence + 1)


@pytest.mark.req("JB-3")
async def test_what_a_worker_works_on_it_never_takes_from_itself_but_what_it_let_go_it_does(
    database: Database, clock: ManualClock
) -> None:
    queue = make_queue(database, clock)
    await queue.enqueue(NewJob("noop"), NewJob("noop"))
    held, let_go = await claim(queue, 2, worker="w")
    clock.advance(LEASE.total_seconds() + 0.001)
    turn = await take_turn(queue, 2, worker="w", held=[held.id])
    assert [stale.job_id for stale in turn.recovered] == [job.id for _, job in turn.claimed] == [let_go.id]


@pytest.mark.req("JB-3")
async def test_a_worker_that_lost_its_lease_cannot_complete_the_job(database: Database, clock: ManualClock) -> None:
    queue = make_queue(database, clock)
    await queue.enqueue(NewJob("noop"))
    [stale] = await claim(queue, worker="slow")
    clock.advance(LEASE.total_seconds() + 1)
    [fresh] = await claim(queue, worker="other")

    assert await complete(queue, stale) == {stale.id}
    assert (await record_of(queue, stale.id)).state is JobState.RUNNING
    assert await complete(queue, fresh) == set()
    assert await complete(queue, fresh) == {fresh.id}, "a second report of the same claim changes nothing"


@pytest.mark.req("JB-3")
async def test_a_heartbeat_keeps_the_lease_and_tells_what_is_lost(database: Database, clock: ManualClock) -> None:
    queue = make_queue(database, clock)
    await queue.enqueue(NewJob("noop"), NewJob("noop"))
    kept, lost = await claim(queue, 2)
    await queue.cancel(lost.id)
    claimant = Claimant("w", LEASE, 10)
    for _ in range(5):
        clock.advance(LEASE.total_seconds() / 2)
        ours = await database.write(lambda tx: claimant.heartbeat(tx, clock.now(), [kept, lost]))
        assert ours == {kept.id}
        assert (await take_turn(queue, 1, worker="other")).claimed == []
    assert (await record_of(queue, kept.id)).heartbeat_at == clock.now()


@pytest.mark.req("JB-3", "JB-4")
async def test_a_job_that_kills_its_workers_fails_when_its_attempts_are_spent(
    database: Database, clock: ManualClock
) -> None:
    queue = make_queue(database, clock)
    [poison] = await queue.enqueue(NewJob("brief"))
    for number in (1, 2):
        assert len(await claim(queue, worker=f"victim-{number}")) == 1
        clock.advance(LEASE.total_seconds() + 1)
    assert await claim(queue) == []
    job = await record_of(queue, poison.job_id)
    assert job.state is JobState.FAILED
    assert job.last_error == "worker victim-2 went silent in attempt 2"


@pytest.mark.req("JB-4")
async def test_a_retried_job_waits_for_its_back_off_and_then_takes_its_old_place(
    database: Database, clock: ManualClock
) -> None:
    queue = make_queue(database, clock)
    first, second = await queue.enqueue(NewJob("noop", {"n": 1}), NewJob("noop", {"n": 2}))
    [job] = await claim(queue)
    retry = Settlement(JobState.QUEUED, 1, not_before=later(clock, 10), error="busy")
    turn = await take_turn(queue, settlements=[(job, retry)])
    assert turn.refused == set()
    assert (await record_of(queue, first.job_id)).last_error == "busy"
    clock.advance(10)
    assert [job.id for job in await claim(queue, 5)] == [first.job_id, second.job_id]


@pytest.mark.req("PQ-6")
async def test_thousands_of_jobs_that_ripen_at_once_are_served_in_tier_order(
    database: Database, clock: ManualClock
) -> None:
    queue = make_queue(database, clock)
    await queue.enqueue(*(NewJob("noop", queue=QueueName.LIVE, not_before=later(clock, 1)) for _ in range(6_000)))
    await queue.enqueue(NewJob("noop", queue=QueueName.LIVE, tier=HIGH, not_before=later(clock, 2)))
    clock.advance(3)
    assert [job.tier for job in await claim(queue, 2)] == [HIGH, LOW]


@pytest.mark.req("JB-3")
async def test_a_lease_taken_by_a_clock_that_was_set_back_since_does_not_hold_its_job_for_ever(
    database: Database, clock: ManualClock
) -> None:
    queue = make_queue(database, clock)
    await queue.enqueue(NewJob("noop"))
    clock.advance(86_400)
    [held] = await claim(queue, worker="dies")
    clock.advance(-86_000)
    assert [job.id for job in await claim(queue, worker="lives")] == [held.id]


@pytest.mark.req("JB-2")
async def test_jobs_scheduled_ahead_are_not_claimed_and_tell_when_they_will_be(
    database: Database, clock: ManualClock
) -> None:
    queue = make_queue(database, clock)
    await queue.enqueue(*(NewJob("noop", not_before=later(clock, 1_000 + n)) for n in range(50)))
    turn = await take_turn(queue, 10)
    assert turn.claimed == []
    assert turn.next_ripe == later(clock, 1_000)


async def test_a_released_job_is_claimed_again_at_once_and_the_attempt_is_not_counted(
    database: Database, clock: ManualClock
) -> None:
    queue = make_queue(database, clock)
    await queue.enqueue(NewJob("noop"))
    [job] = await claim(queue)
    await take_turn(queue, settlements=[(job, Settlement(JobState.QUEUED, attempts=0))])
    [again] = await claim(queue)
    assert (again.id, again.attempt) == (job.id, 1)


async def test_waiting_time_runs_from_when_a_job_could_first_have_been_claimed(
    database: Database, clock: ManualClock
) -> None:
    queue = make_queue(database, clock)
    await queue.enqueue(NewJob("noop"), NewJob("noop", not_before=later(clock, 30)))
    clock.advance(45)
    assert [job.waited_s for job in await claim(queue, 2)] == [45.0, 15.0]

"""Transactions that meet in the middle, on PostgreSQL: what one does between two steps of the other changes nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy import text

from postroom.db import Database, Tx, connect
from postroom.domain.clock import ManualClock
from postroom.domain.errors import BadInput
from postroom.domain.ids import new_id
from postroom.queue import CancelOutcome, JobContext, JobQueue, JobState, LeaseLost, NewJob, retention
from postroom.queue.claims import Claimant
from postroom.queue.retention import Retention, prune
from postroom.queue.sql import bind_ids, heads, statements
from postroom.settings import DatabaseSettings, WorkerSettings
from tests.support.queues import (
    CATALOGUE,
    LEASE,
    claim,
    complete,
    count_jobs,
    count_writes,
    fail,
    make_queue,
    run_until_idle,
)

KEEP_NOTHING = Retention(completed=timedelta(), failed=timedelta())


@pytest.fixture
async def queue(url: str, clock: ManualClock) -> AsyncIterator[JobQueue]:
    database = await connect(url)
    yield make_queue(database, clock)
    await database.close()


async def waiting(task: asyncio.Task[Any], rival: psycopg.Connection[Any]) -> None:
    """Until the task waits for a lock of the rival's."""
    blocked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    while rival.execute(blocked).fetchone() != (1,):
        assert not task.done(), "it went on although the rival holds the lock"
        await asyncio.sleep(0.01)


@pytest.mark.req("JB-5")
async def test_a_job_armed_again_while_prune_looks_is_not_pruned(
    queue: JobQueue, clock: ManualClock, rival: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    await queue.enqueue(NewJob("hourly", key="labels:me"))
    [job] = await claim(queue)
    await complete(queue, job)
    clock.advance(10)
    look = retention._ids

    def look_and_be_overtaken(tx: Tx, query: Any) -> list[str]:
        ids = look(tx, query)
        rival.execute("UPDATE jobs SET state = 'queued', ready = TRUE, finished_at = NULL")
        rival.commit()
        return ids

    monkeypatch.setattr(retention, "_ids", look_and_be_overtaken)
    assert await prune(queue.database, CATALOGUE, KEEP_NOTHING, clock) == 0
    assert await count_jobs(queue.database, state=JobState.QUEUED) == 1


@pytest.mark.req("JB-5")
async def test_a_once_key_buried_while_an_enqueue_waits_for_it_stays_spent(
    queue: JobQueue, clock: ManualClock, rival: psycopg.Connection[Any]
) -> None:
    [first] = await queue.enqueue(NewJob("noop", key="k"))
    [job] = await claim(queue)
    await complete(queue, job)
    ids = bind_ids(queue.database.dialect, [job.id])
    rival.execute(statements(queue.database.dialect).bury.encode(), {"ids": ids})
    rival.execute("DELETE FROM jobs")
    enqueue = asyncio.create_task(queue.enqueue(NewJob("noop", key="k")))
    await waiting(enqueue, rival)
    rival.commit()
    [again] = await enqueue
    assert (again.duplicate, again.job_id) == (True, first.job_id)
    assert await count_jobs(queue.database) == 0
    assert await prune(queue.database, CATALOGUE, KEEP_NOTHING, clock) == 0


@pytest.mark.req("JB-4")
async def test_a_retry_by_hand_that_comes_too_late_does_not_double_a_running_job(
    queue: JobQueue, rival: psycopg.Connection[Any]
) -> None:
    await queue.enqueue(NewJob("brief"))
    [job] = await claim(queue)
    await fail(queue, job)
    rival.execute("UPDATE jobs SET state = 'running', lease_expires_at = now() + interval '1 hour'")
    retry = asyncio.create_task(queue.retry(job.id))
    await waiting(retry, rival)
    rival.commit()
    with pytest.raises(BadInput, match="is running"):
        await retry


@pytest.mark.req("JB-6")
async def test_a_cancel_and_a_completion_that_meet_agree_on_one_outcome(
    queue: JobQueue, rival: psycopg.Connection[Any]
) -> None:
    await queue.enqueue(NewJob("noop"))
    [job] = await claim(queue)
    rival.execute("UPDATE jobs SET state = 'completed', lease_expires_at = NULL, finished_at = now()")
    cancel = asyncio.create_task(queue.cancel(job.id))
    await waiting(cancel, rival)
    rival.commit()
    assert await cancel is CancelOutcome.NOT_RUNNING


@pytest.mark.req("JB-3")
async def test_a_handler_whose_job_is_being_taken_away_waits_and_is_refused(
    queue: JobQueue, rival: psycopg.Connection[Any]
) -> None:
    await queue.enqueue(NewJob("noop"))
    [job] = await claim(queue)
    rival.execute("UPDATE jobs SET fence = fence + 1")
    write = asyncio.create_task(JobContext(queue, job).write(lambda tx: None))
    await waiting(write, rival)
    rival.commit()
    with pytest.raises(LeaseLost):
        await write


@pytest.mark.req("PQ-6", "PQ-7")
async def test_claims_of_several_workers_take_turns_at_the_guard(
    queue: JobQueue, rival: psycopg.Connection[Any]
) -> None:
    await queue.enqueue(NewJob("noop"))
    rival.execute(statements(queue.database.dialect).guards.encode())
    claiming = asyncio.create_task(claim(queue))
    await waiting(claiming, rival)
    rival.commit()
    assert len(await claiming) == 1


@pytest.mark.req("JB-3")
async def test_a_job_inside_its_handlers_long_transaction_neither_blocks_heartbeats_nor_is_taken_away(
    queue: JobQueue, clock: ManualClock, rival: psycopg.Connection[Any]
) -> None:
    await queue.enqueue(NewJob("noop"), NewJob("noop"))
    busy, other = await claim(queue, 2)
    rival.execute("SELECT id FROM jobs WHERE id = %s FOR UPDATE", (busy.id,))
    claimant = Claimant("w", LEASE, 10)
    ours = await queue.database.write(lambda tx: claimant.heartbeat(tx, clock.now(), [busy, other]))
    assert ours == {busy.id, other.id}
    clock.advance(LEASE.total_seconds() * 2)
    assert [job.id for job in await claim(queue, 5, worker="thief")] == [other.id]


async def test_enqueues_of_the_same_keys_in_opposite_order_do_not_deadlock(url: str, clock: ManualClock) -> None:
    databases = [await connect(url) for _ in range(4)]
    keys = [f"k{n}" for n in range(200)]

    async def enqueue(number: int) -> None:
        order = keys if number % 2 else list(reversed(keys))
        await make_queue(databases[number], clock).enqueue(*(NewJob("hourly", key=key) for key in order))

    for _ in range(3):
        await asyncio.gather(*(enqueue(number) for number in range(4)))
    deadlocks = text("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
    assert await databases[0].read(lambda tx: tx.execute(deadlocks).scalar_one()) == 0
    for database in databases:
        await database.close()


async def test_a_claim_reads_the_index_of_ready_jobs_whatever_else_there_is(
    database: Database, clock: ManualClock
) -> None:
    queue = make_queue(database, clock)
    await queue.enqueue(*(NewJob("noop") for _ in range(500)))
    read_heads, parameters = heads(database.dialect, 10)[0]
    explain = "EXPLAIN " if database.dialect == "postgresql" else "EXPLAIN QUERY PLAN "

    def plan(tx: Tx) -> str:
        if database.dialect == "postgresql":
            tx.rows("ANALYZE jobs")
            tx.rows("SET LOCAL enable_seqscan = off")
        return str(tx.rows(explain + read_heads, parameters))

    shown = await database.write(plan)
    assert shown.count("jobs_ready_idx") == 9
    assert "jobs_pkey" not in shown


@pytest.mark.req("JB-3")
async def test_many_outcomes_are_written_while_the_next_jobs_are_claimed(
    queue: JobQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def noop(context: JobContext) -> None:
        return None

    await queue.enqueue(*(NewJob("noop") for _ in range(600)))
    writes = count_writes(queue, monkeypatch)
    await run_until_idle(queue, {"noop": noop}, WorkerSettings(concurrency=500))
    assert max(writes) == 2
    assert await count_jobs(queue.database, state=JobState.COMPLETED) == 600


@pytest.mark.req("JB-3")
async def test_outcomes_are_written_with_the_next_claim_where_other_workers_claim_too(
    queue: JobQueue, rival: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def noop(context: JobContext) -> None:
        return None

    write = queue.database.write

    async def write_and_be_overtaken(transaction: Any) -> Any:
        try:
            return await write(transaction)
        finally:
            rival.execute("SELECT nextval('jobs_fence')")  # as a claim does

    monkeypatch.setattr(queue.database, "write", write_and_be_overtaken)
    await queue.enqueue(*(NewJob("noop") for _ in range(600)))
    writes = count_writes(queue, monkeypatch)
    await run_until_idle(queue, {"noop": noop}, WorkerSettings(concurrency=500))
    assert max(writes) == 1
    assert await count_jobs(queue.database, state=JobState.COMPLETED) == 600


async def test_a_claim_of_any_size_is_one_of_a_few_statements_and_reads_enough(database: Database) -> None:
    found = {count: heads(database.dialect, count) for count in range(1, 251)}
    assert all(count <= most < 2 * count for count, (_, most) in found.items())
    assert len({sql for (sql, _), _ in found.values()}) <= 9
    assert all(not parameters for (_, parameters), _ in found.values()) or database.dialect != "postgresql"


@pytest.mark.parametrize("name", ["claim", "complete", "settle", "held"])
async def test_a_claim_is_found_by_its_id_however_many_jobs_are_finished(
    queue: JobQueue, clock: ManualClock, rival: psycopg.Connection[Any], name: str
) -> None:
    rival.execute(
        "INSERT INTO jobs (id, type, queue_name, policy_tier, seq, payload_json, state, ready, repeatable, finished_at,"
        " created_at, queued_at, updated_at) SELECT gen_random_uuid(), 'noop', 'live', 'default', n, '{}',"
        " 'completed', FALSE, FALSE, now(), now(), now(), now() FROM generate_series(1, 20000) AS n"
    )
    rival.execute("ANALYZE jobs")
    now, ids = clock.now(), [new_id() for _ in range(50)]
    given = {
        "ids": bind_ids(queue.database.dialect, ids),
        "fences": json.dumps(dict.fromkeys(ids, 1)),
        "rows": json.dumps([{"id": job_id, "fence": 1, "state": "failed"} for job_id in ids]),
        "fence": 1,
        "result": None,
        "now": now,
        "lease_expires_at": now,
        "worker_id": "w",
    }
    found = getattr(statements(queue.database.dialect), name)
    sql = found if isinstance(found, str) else found[0]
    plan = "\n".join(line for (line,) in rival.execute(f"EXPLAIN {sql}".encode(), given))
    assert "jobs_pkey" in plan
    assert "Seq Scan" not in plan


async def test_a_write_that_is_given_up_while_it_waits_leaves_no_connection_behind(
    url: str, clock: ManualClock, rival: psycopg.Connection[Any]
) -> None:
    database = await connect(url, DatabaseSettings(pool_size=1))
    queue = make_queue(database, clock)
    await queue.enqueue(NewJob("noop"))
    rival.execute(statements(database.dialect).guards.encode())
    claiming = asyncio.create_task(claim(queue))
    await waiting(claiming, rival)
    claiming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await claiming
    rival.commit()
    assert len(await claim(queue)) == 1
    await database.close()

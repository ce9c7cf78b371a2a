"""Marks of the lines, on PostgreSQL: a claim begins to read at them, and yet no job is passed over or late."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from postroom.db import Dialect, Tx, connect
from postroom.domain.clock import ManualClock
from postroom.domain.ids import new_id
from postroom.domain.terms import Tier
from postroom.queue import ClaimedJob, JobQueue, JobState, NewJob, QueueName
from postroom.queue.job import Settlement
from postroom.queue.marks import Marks
from postroom.queue.sql import LINES, heads, mark_name, statements
from tests.support.queues import LEASE, later, make_queue, take_turn

SQL = statements(Dialect.POSTGRESQL)
LINE = mark_name(QueueName.LIVE, Tier.DEFAULT)


@pytest.fixture
async def queue(url: str, clock: ManualClock) -> AsyncIterator[JobQueue]:
    database = await connect(url)
    yield make_queue(database, clock)
    await database.close()


def live(count: int) -> list[NewJob]:
    return [NewJob("noop", {"text": "x" * 1_000}, QueueName.LIVE) for _ in range(count)]


async def enqueue(queue: JobQueue, count: int) -> list[str]:
    return [answer.job_id for answer in await queue.enqueue(*live(count))]


async def claim(queue: JobQueue, marks: Marks, count: int = 1) -> list[ClaimedJob]:
    turn = await take_turn(queue, count, marks=marks)
    return [job for _, job in turn.claimed]


async def settle(queue: JobQueue, *jobs: ClaimedJob, state: JobState = JobState.COMPLETED) -> None:
    attempts_back = state is JobState.QUEUED
    await take_turn(queue, settlements=[(job, Settlement(state, job.attempt - attempts_back)) for job in jobs])


async def rows(queue: JobQueue, sql: str) -> list[Any]:
    return [row[0] for row in await queue.database.read(lambda tx: tx.rows(sql))]


async def mark(queue: JobQueue) -> int:
    [value] = await rows(queue, f"SELECT value FROM queue_marks WHERE line = '{LINE}'")  # noqa: S608
    return int(value)


async def ready_numbers(queue: JobQueue) -> list[int]:
    return await rows(queue, "SELECT seq FROM jobs WHERE ready ORDER BY seq")


async def test_every_line_has_a_mark(queue: JobQueue) -> None:
    lines = await rows(queue, "SELECT line FROM queue_marks")
    assert sorted(lines) == sorted([*(mark_name(*line) for line in LINES), "running"])


async def test_the_mark_follows_what_is_claimed(queue: JobQueue) -> None:
    await enqueue(queue, 10)
    marks = Marks(step=1)
    for count in (2, 2, 3):
        assert len(await claim(queue, marks, count)) == count
    assert await mark(queue) == (await ready_numbers(queue))[0]


async def test_another_worker_begins_where_the_first_one_left_off(queue: JobQueue) -> None:
    ids = await enqueue(queue, 6)
    first = Marks(step=1)
    for _ in range(3):
        await claim(queue, first)
    assert [job.id for job in await claim(queue, Marks(step=1), 5)] == ids[3:]


@pytest.mark.parametrize("is_inserted", [False, True], ids=["number drawn", "row inserted"])
async def test_a_job_whose_transaction_commits_late_goes_before_those_accepted_after_it(
    queue: JobQueue, rival: psycopg.Connection[Any], is_inserted: bool
) -> None:
    await enqueue(queue, 4)
    [(late,)] = rival.execute(SQL.next_seqs.encode(), {"n": 1}).fetchall()
    job_id = new_id()

    def insert() -> None:
        rival.execute(
            "INSERT INTO jobs (id, type, queue_name, policy_tier, seq, payload_json, state, ready, repeatable,"
            " created_at, queued_at, updated_at)"
            " VALUES (%s, 'noop', 'live', 'default', %s, '{}', 'queued', TRUE, FALSE, now(), now(), now())",
            (job_id, late),
        )

    if is_inserted:
        insert()
    await enqueue(queue, 6)
    marks = Marks(step=1)
    for _ in range(6):
        assert len(await claim(queue, marks)) == 1
    assert await mark(queue) <= late
    if not is_inserted:
        insert()
    rival.commit()
    assert [job.id for job in await claim(queue, marks)] == [job_id]
    for _ in range(2):
        assert len(await claim(queue, marks)) == 1
    assert await mark(queue) > late


@pytest.mark.parametrize("way", ["handed back", "lease expired", "its time has come", "released"])
async def test_a_job_that_is_ready_again_keeps_its_place_before_the_mark(
    queue: JobQueue, clock: ManualClock, way: str
) -> None:
    marks = Marks(step=1)
    is_scheduled = way in ("its time has come", "released")
    not_before = later(clock, 10) if is_scheduled else None
    [early] = await queue.enqueue(NewJob("noop", queue=QueueName.LIVE, not_before=not_before))
    first = [] if is_scheduled else await claim(queue, marks)
    others_ids = await enqueue(queue, 8)
    others = [job for _ in range(4) for job in await claim(queue, marks)]
    assert [job.id for job in others] == others_ids[:4]
    assert await mark(queue) == (await ready_numbers(queue))[0]
    await settle(queue, *others)

    if way == "handed back":
        await settle(queue, *first, state=JobState.QUEUED)
    elif way == "lease expired":
        clock.advance(LEASE.total_seconds() + 1)
    elif way == "its time has come":
        clock.advance(10)
    else:
        await queue.database.write(lambda tx: queue.release_within(tx, [early.job_id]))
    assert [job.id for job in await claim(queue, marks, 2)] == [early.job_id, others_ids[4]]


async def test_a_job_of_lower_priority_that_was_accepted_first_is_not_left_behind(queue: JobQueue) -> None:
    low = await queue.enqueue(*(NewJob("noop", priority=-1) for _ in range(2)))
    high = await queue.enqueue(*(NewJob("noop", priority=5) for _ in range(6)))
    marks = Marks(step=1)
    claimed = [job.id for _ in range(8) for job in await claim(queue, marks)]
    assert claimed == [answer.job_id for answer in [*high, *low]]


async def test_a_job_that_was_made_ready_by_hand_is_found_within_sixty_looks(
    queue: JobQueue, rival: psycopg.Connection[Any]
) -> None:
    marks = Marks(step=1)
    [early, *_] = await enqueue(queue, 4)
    for job in [job for _ in range(3) for job in await claim(queue, marks)]:
        await settle(queue, job)
    assert await mark(queue) > 1
    rival.execute("UPDATE jobs SET state = 'queued', ready = TRUE, finished_at = NULL WHERE id = %s", (early,))
    rival.commit()
    looked = [job.id for _ in range(60) for job in await claim(queue, marks)]
    assert early in looked


async def test_numbers_seen_in_a_transaction_that_fails_move_no_mark(queue: JobQueue) -> None:
    """A server that fails may use them again."""
    await enqueue(queue, 3)
    marks = Marks(step=1)

    def see_and_fail(tx: Tx) -> None:
        marks.see(tx, 1_000, 1, 1)
        raise InterruptedError

    with pytest.raises(InterruptedError):
        await queue.database.write(see_and_fail)
    await claim(queue, marks)
    assert await mark(queue) == 0


async def test_behind_an_open_transaction_a_claim_does_not_read_what_was_worked_off(
    queue: JobQueue, rival: psycopg.Connection[Any]
) -> None:
    rival.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    rival.execute("SELECT count(*) FROM jobs")
    marks = Marks(step=50)
    for _ in range(8):
        await enqueue(queue, 250)
        while jobs := await claim(queue, marks, 50):
            await settle(queue, *jobs)
    await enqueue(queue, 20)

    now = queue.clock.now()
    read_heads, _ = heads(Dialect.POSTGRESQL, 10)
    stale = {"now": now, "absurd": now + timedelta(days=1), "ids": "{}"}
    read = {"heads": read_heads, "depth": (SQL.depth, {}), "recover": (SQL.recover[0], stale)}
    for name, (sql, parameters) in read.items():
        from_mark = await pages_read(queue, sql, parameters)
        from_the_start = await pages_read(queue, sql, parameters, before="UPDATE queue_marks SET value = 0")
        assert from_mark * 5 < from_the_start, name


async def pages_read(queue: JobQueue, sql: str, parameters: Mapping[str, Any], before: str = "SELECT 1") -> int:
    """How often the statement reads a page. What it changes is rolled back."""
    found: list[int] = []

    def explain(tx: Tx) -> None:
        tx.rows(before)
        [(shown,)] = tx.rows(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}", parameters)
        [plan] = json.loads(shown) if isinstance(shown, str) else shown
        found.append(plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"])
        raise InterruptedError

    with pytest.raises(InterruptedError):
        await queue.database.write(explain)
    return found[-1]

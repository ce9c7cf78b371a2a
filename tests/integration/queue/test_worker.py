"""The worker, with real time and real databases."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections.abc import Callable
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy import update

from postroom.db import Database, Tx, connect
from postroom.db.database import Topic
from postroom.db.tables.queue import jobs
from postroom.domain.clock import ManualClock, SystemClock
from postroom.domain.errors import Fatal, Retryable
from postroom.domain.ids import new_id
from postroom.domain.terms import Tier
from postroom.queue import CancelOutcome, JobContext, JobQueue, JobState, LeaseLost, NewJob, QueueName
from postroom.queue.inspection import show_job
from postroom.queue.job import plain_completion
from postroom.queue.worker import Worker
from postroom.settings import WorkerSettings
from tests.support.databases import PostgresFactory, SqliteFactory
from tests.support.queues import claim, count_jobs, make_queue, record_of, run_until_idle, running, until


@pytest.fixture
def queue(database: Database) -> JobQueue:
    return make_queue(database, SystemClock())


async def nothing(context: JobContext) -> None:
    """A handler that has nothing to do."""


async def test_jobs_run_and_their_results_are_kept(queue: JobQueue) -> None:
    async def double(context: JobContext) -> dict[str, int]:
        return {"double": 2 * int(context.job.payload["n"])}

    answers = await queue.enqueue(*(NewJob("noop", {"n": n}) for n in range(20)))
    await run_until_idle(queue, {"noop": double})
    for n, answer in enumerate(answers):
        job = await record_of(queue, answer.job_id)
        assert (job.state, job.result, job.attempts) == (JobState.COMPLETED, {"double": 2 * n}, 1)


async def test_what_a_handler_leaves_in_its_context_is_not_there_for_the_next(queue: JobQueue) -> None:
    mark: ContextVar[str] = ContextVar("mark", default="clean")
    seen = []

    async def leave(context: JobContext) -> None:
        seen.append(mark.get())
        mark.set("dirty")

    await queue.enqueue(*(NewJob("noop") for _ in range(30)))
    await run_until_idle(queue, {"noop": leave}, WorkerSettings(concurrency=30))
    assert seen == ["clean"] * 30


async def test_short_jobs_share_a_task_and_those_that_wait_run_at_once(queue: JobQueue) -> None:
    tasks = []
    all_wait = asyncio.Barrier(20)

    async def short(context: JobContext) -> None:
        tasks.append(asyncio.current_task())

    async def meet(context: JobContext) -> None:
        await all_wait.wait()

    await queue.enqueue(*(NewJob("noop") for _ in range(20)))
    await run_until_idle(queue, {"noop": short}, WorkerSettings(concurrency=20))
    assert len(tasks) == 20
    assert len(set(tasks)) == 1
    await queue.enqueue(*(NewJob("noop") for _ in range(20)))
    await run_until_idle(queue, {"noop": meet}, WorkerSettings(concurrency=20))
    assert await count_jobs(queue.database, state=JobState.COMPLETED) == 40


async def test_the_event_loop_turns_while_many_short_jobs_run(queue: JobQueue) -> None:
    """Else nothing would be claimed meanwhile."""
    turns, seen = 0, set[int]()

    async def short(context: JobContext) -> None:
        seen.add(turns)

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    await queue.enqueue(*(NewJob("noop") for _ in range(200)))
    counting = asyncio.create_task(count_turns())
    await run_until_idle(queue, {"noop": short}, WorkerSettings(concurrency=200))
    counting.cancel()
    assert len(seen) >= 5


async def test_jobs_that_wait_behind_short_ones_run_at_once_too(queue: JobQueue) -> None:
    all_wait = asyncio.Barrier(60)

    async def meet(context: JobContext) -> None:
        if context.job.payload["n"] >= 40:
            await all_wait.wait()

    await queue.enqueue(*(NewJob("noop", {"n": n}) for n in range(100)))
    await run_until_idle(queue, {"noop": meet}, WorkerSettings(concurrency=100))
    assert await count_jobs(queue.database, state=JobState.COMPLETED) == 100


async def test_what_is_claimed_is_begun_however_long_the_database_is_busy(sqlite_factory: SqliteFactory) -> None:
    url = sqlite_factory.url()
    database = await connect(url)
    queue, begun, are_all_begun = make_queue(database, SystemClock()), list[int](), asyncio.Event()
    other = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)

    async def begin(context: JobContext) -> None:
        number = context.job.payload["n"]
        begun.append(number)
        if number == 0:
            other.execute("BEGIN IMMEDIATE")
        if len(begun) == 90:
            other.execute("ROLLBACK")
            are_all_begun.set()
        if number in (32, 65):
            await are_all_begun.wait()

    await queue.enqueue(*(NewJob("noop", {"n": n}) for n in range(90)))
    try:
        await asyncio.wait_for(run_until_idle(queue, {"noop": begin}, WorkerSettings(concurrency=100)), 60)
        assert sorted(begun) == list(range(90)), "each once: none had to wait for another turn at the database"
    finally:
        other.close()
        await database.close()


async def test_never_more_jobs_run_at_once_than_there_are_slots(queue: JobQueue) -> None:
    running_now = most = 0

    async def count(context: JobContext) -> None:
        nonlocal running_now, most
        running_now += 1
        most = max(most, running_now)
        await asyncio.sleep(0)
        running_now -= 1

    await queue.enqueue(*(NewJob("noop") for _ in range(50)))
    await run_until_idle(queue, {"noop": count}, WorkerSettings(concurrency=3))
    assert most == 3
    assert await count_jobs(queue.database, state=JobState.COMPLETED) == 50


@pytest.mark.req("JB-4")
async def test_a_crash_is_retried_and_a_fatal_error_is_not(queue: JobQueue) -> None:
    async def crash(context: JobContext) -> None:
        raise ZeroDivisionError("surprise")

    async def refuse(context: JobContext) -> None:
        raise Fatal("the mailbox is gone")

    crashed, refused = await queue.enqueue(NewJob("noop"), NewJob("brief"))
    await run_until_idle(queue, {"noop": crash, "brief": refuse})
    first, second = await record_of(queue, crashed.job_id), await record_of(queue, refused.job_id)
    assert (first.state, first.last_error, first.attempts) == (JobState.QUEUED, "ZeroDivisionError: surprise", 1)
    assert first.not_before is not None
    assert (second.state, second.last_error) == (JobState.FAILED, "Fatal: the mailbox is gone")


@pytest.mark.req("JB-4")
async def test_a_job_is_tried_as_often_as_its_type_says_and_then_stays_visible(queue: JobQueue) -> None:
    attempts = []

    async def busy(context: JobContext) -> None:
        attempts.append(context.job.attempt)
        raise Retryable("busy", retry_after=timedelta(milliseconds=1))

    [answer] = await queue.enqueue(NewJob("brief"))
    async with running(queue, {"brief": busy}):
        await wait_for_state(queue, answer.job_id, JobState.FAILED)
    assert attempts == [1, 2]
    assert "gave up after 2 attempts" in str((await record_of(queue, answer.job_id)).last_error)


async def test_a_hung_job_is_stopped_at_its_time_limit(queue: JobQueue) -> None:
    async def hang(context: JobContext) -> None:
        await asyncio.Event().wait()

    [answer] = await queue.enqueue(NewJob("quick"))
    await run_until_idle(queue, {"quick": hang})
    job = await record_of(queue, answer.job_id)
    assert job.state is JobState.FAILED
    assert "time limit of 0.05 s" in str(job.last_error)


async def test_a_job_of_a_type_that_nobody_handles_fails_at_once_and_says_so(queue: JobQueue) -> None:
    known, unknown = await queue.enqueue(NewJob("noop"), NewJob("noop"))
    rename = update(jobs).where(jobs.c.id == unknown.job_id).values(type="from.the.future")
    await queue.database.write(lambda tx: tx.execute(rename))
    await run_until_idle(queue, {})
    for job_id, name in ((known.job_id, "noop"), (unknown.job_id, "from.the.future")):
        job = await record_of(queue, job_id)
        assert job.state is JobState.FAILED
        assert f"no handler for job type '{name}'" in str(job.last_error)


async def test_a_damaged_payload_fails_its_own_job_and_no_other(queue: JobQueue) -> None:
    async def read(context: JobContext) -> int:
        return int(context.job.payload["n"])

    answers = await queue.enqueue(*(NewJob("brief", {"n": n}) for n in range(3)))
    damage = update(jobs).where(jobs.c.id == answers[1].job_id).values(payload_json='{"n": ')
    await queue.database.write(lambda tx: tx.execute(damage))
    await run_until_idle(queue, {"brief": read})
    states = [(await record_of(queue, answer.job_id)).state for answer in answers]
    assert states == [JobState.COMPLETED, JobState.QUEUED, JobState.COMPLETED]


async def test_a_broken_side_task_ends_the_worker_after_its_jobs_and_is_raised(
    queue: JobQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, broke = asyncio.Event(), asyncio.Event()

    async def patient(context: JobContext) -> str:
        started.set()
        await broke.wait()
        return "finished"

    async def breaks(self: Worker) -> None:
        await started.wait()
        broke.set()
        raise ZeroDivisionError("a bug in measuring")

    monkeypatch.setattr(Worker, "_measure_depth", breaks)
    [answer] = await queue.enqueue(NewJob("noop"))
    with pytest.raises(ZeroDivisionError):
        await Worker(queue, {"noop": patient}).run()
    assert (await record_of(queue, answer.job_id)).result == "finished"


class Panic(BaseException):
    """What native libraries raise when they panic: not an Exception."""


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.req("JB-4")
@pytest.mark.parametrize("misdeed", ["panic", "exit", "mute", "endless wait", "deep result"])
async def test_whatever_a_handler_does_the_other_jobs_of_its_worker_go_on(queue: JobQueue, misdeed: str) -> None:
    async def misbehave(context: JobContext) -> Any:
        match misdeed:
            case "panic":
                raise Panic
            case "exit":
                sys.exit(3)
            case "mute":
                raise Mute
            case "endless wait":
                raise Retryable("later", retry_after=timedelta.max)
            case _:
                return nested(100_000)

    async def behave(context: JobContext) -> str:
        await asyncio.sleep(0.01)
        return "done"

    bad, good = await queue.enqueue(NewJob("brief"), NewJob("noop"))
    await run_until_idle(queue, {"brief": misbehave, "noop": behave})
    assert (await record_of(queue, good.job_id)).result == "done"
    assert (await record_of(queue, bad.job_id)).state in (JobState.QUEUED, JobState.FAILED)


@pytest.mark.parametrize("drain_s", [0.0, 0.05])
async def test_a_worker_stopped_while_it_claims_hands_everything_back(
    queue: JobQueue, monkeypatch: pytest.MonkeyPatch, drain_s: float
) -> None:
    async def endless(context: JobContext) -> None:
        await asyncio.Event().wait()

    answers = await queue.enqueue(*(NewJob("noop") for _ in range(5)))
    worker = Worker(queue, {"noop": endless}, WorkerSettings(drain_s=drain_s))
    start = worker._start

    def stop_first(*arguments: Any) -> None:
        worker.stop()
        start(*arguments)

    monkeypatch.setattr(worker, "_start", stop_first)
    await worker.run()
    for answer in answers:
        job = await record_of(queue, answer.job_id)
        assert (job.state, job.attempts) == (JobState.QUEUED, 0)


async def test_a_handler_that_goes_on_after_completing_its_job_is_stopped_too(queue: JobQueue) -> None:
    async def linger(context: JobContext) -> None:
        await context.complete(lambda tx: "told")
        await asyncio.Event().wait()

    [answer] = await queue.enqueue(NewJob("lingering"))
    await run_until_idle(queue, {"lingering": linger})
    job = await record_of(queue, answer.job_id)
    assert (job.state, job.result) == (JobState.COMPLETED, "told")


class Unwilling:
    """A database whose writes can be made to fail, or to hang for a while, from outside."""

    def __init__(self, database: Database) -> None:
        self._write = database.write
        self.mood = "willing"

    async def write(self, transaction: Callable[[Tx], Any]) -> Any:
        if self.mood == "failing":
            raise Retryable("the database is away")
        await until(lambda: self.mood != "hanging")
        return await self._write(transaction)


async def test_what_a_job_did_is_remembered_until_the_database_is_back(
    queue: JobQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    unwilling = Unwilling(queue.database)
    monkeypatch.setattr(queue.database, "write", unwilling.write)

    async def finish_in_bad_times(context: JobContext) -> str:
        unwilling.mood = "failing"
        asyncio.get_running_loop().call_later(0.1, setattr, unwilling, "mood", "willing")
        return "finished"

    [answer] = await queue.enqueue(NewJob("noop"))
    async with running(queue, {"noop": finish_in_bad_times}):
        await wait_for_state(queue, answer.job_id, JobState.COMPLETED)
    job = await record_of(queue, answer.job_id)
    assert (job.result, job.attempts) == ("finished", 1)


@pytest.mark.req("JB-3")
@pytest.mark.parametrize("mood", ["failing", "hanging"])
async def test_a_worker_that_cannot_reach_the_database_lets_its_jobs_go_and_takes_them_up_again_later(
    queue: JobQueue, monkeypatch: pytest.MonkeyPatch, mood: str
) -> None:
    unwilling = Unwilling(queue.database)
    monkeypatch.setattr(queue.database, "write", unwilling.write)

    async def oblivious(context: JobContext) -> str:
        if context.job.attempt > 1:
            return "finished"
        unwilling.mood = mood
        try:
            await asyncio.Event().wait()
        finally:
            unwilling.mood = "willing"
        raise AssertionError("it waits for ever")

    [answer] = await queue.enqueue(NewJob("noop"))
    async with running(queue, {"noop": oblivious}, WorkerSettings(lease_s=0.3, poll_s=0.1, drain_s=0)):
        await wait_for_state(queue, answer.job_id, JobState.COMPLETED)
    assert (await record_of(queue, answer.job_id)).attempts == 2


@pytest.mark.req("JB-3")
async def test_a_clock_that_jumps_ahead_does_not_make_a_worker_run_its_own_job_twice(database: Database) -> None:
    class Jumping(SystemClock):
        ahead = timedelta()

        def now(self) -> datetime:
            return super().now() + self.ahead

    clock = Jumping()
    queue = make_queue(database, clock)
    attempts: list[int] = []
    go_on = asyncio.Event()

    async def slow(context: JobContext) -> None:
        attempts.append(context.job.attempt)
        await go_on.wait()

    [answer] = await queue.enqueue(NewJob("noop"))
    async with running(queue, {"noop": slow}, WorkerSettings(poll_s=0.05)) as worker:
        await until(lambda: attempts == [1])
        clock.ahead = timedelta(hours=2)
        worker._recover_next = 0
        await queue.enqueue(NewJob("brief"))
        await wait_for_state(queue, (await queue.enqueue(NewJob("brief", key="last")))[0].job_id, JobState.FAILED)
        go_on.set()
        await wait_for_state(queue, answer.job_id, JobState.COMPLETED)
    assert attempts == [1]


@pytest.mark.req("JB-3")
async def test_jobs_whose_outcome_is_being_written_are_not_taken_back(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an outage that outlasted their leases, on a database that claims beside it."""
    clock = ManualClock()
    queue = make_queue(database, clock)
    monkeypatch.setattr(database, "writes_at_once", True)
    answers = await queue.enqueue(*(NewJob("noop") for _ in range(60)))
    worker = Worker(queue, {"noop": nothing}, WorkerSettings(concurrency=200))
    worker._settles_apart = True
    claimed = await claim(queue, 60)
    clock.advance(3_600)
    write, claims_first = database.write, asyncio.Event()

    async def settle_last(transaction: Callable[[Tx], Any]) -> Any:
        if not claims_first.is_set():  # the first of the two writes is the settlement
            claims_first.set()
            await claimed_more.wait()
            return await write(transaction)
        found = await write(transaction)
        claimed_more.set()
        return found

    claimed_more = asyncio.Event()
    monkeypatch.setattr(database, "write", settle_last)
    worker._settlements = [(job, plain_completion(job.attempt)) for job in claimed]
    turn = await worker._take_turn(worker._slots())
    assert turn is not None
    assert (turn.recovered, turn.claimed) == ([], [])
    assert {(await record_of(queue, answer.job_id)).state for answer in answers} == {JobState.COMPLETED}


@pytest.mark.req("JB-6")
async def test_cancelling_a_running_job_stops_it_at_once_and_it_stays_cancelled(queue: JobQueue) -> None:
    started, stopped = asyncio.Event(), asyncio.Event()

    async def long(context: JobContext) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    [answer] = await queue.enqueue(NewJob("noop"))
    async with running(queue, {"noop": long}):
        await started.wait()
        assert await queue.cancel(answer.job_id) is CancelOutcome.CANCELED
        await stopped.wait()
    assert (await record_of(queue, answer.job_id)).state is JobState.CANCELED


async def test_a_stopping_worker_lets_its_jobs_finish(queue: JobQueue) -> None:
    started, go_on = asyncio.Event(), asyncio.Event()

    async def patient(context: JobContext) -> str:
        started.set()
        await go_on.wait()
        return "finished"

    first, second = await queue.enqueue(NewJob("noop"), NewJob("noop"))
    async with running(queue, {"noop": patient}, WorkerSettings(concurrency=1)) as worker:
        await started.wait()
        worker.stop()
        go_on.set()
    assert (await record_of(queue, first.job_id)).result == "finished"
    assert (await record_of(queue, second.job_id)).state is JobState.QUEUED


async def test_a_stopping_worker_hands_back_what_does_not_finish_in_time(queue: JobQueue) -> None:
    started = asyncio.Event()

    async def endless(context: JobContext) -> None:
        started.set()
        await asyncio.Event().wait()

    [answer] = await queue.enqueue(NewJob("noop"))
    async with running(queue, {"noop": endless}, WorkerSettings(drain_s=0)) as worker:
        await started.wait()
        worker.stop()
    job = await record_of(queue, answer.job_id)
    assert (job.state, job.attempts) == (JobState.QUEUED, 0)
    assert [again.id for again in await claim(queue)] == [answer.job_id]


@pytest.mark.req("JB-3")
async def test_a_worker_that_lost_its_lease_stops_the_handler_and_says_nothing(queue: JobQueue) -> None:
    """The lease is taken away behind the worker's back, as another worker would after a long silence."""
    started, stopped = asyncio.Event(), asyncio.Event()

    async def oblivious(context: JobContext) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    [answer] = await queue.enqueue(NewJob("noop"))
    steal = update(jobs).where(jobs.c.id == answer.job_id).values(fence=jobs.c.fence + 1, worker_id="thief")
    async with running(queue, {"noop": oblivious}):
        await started.wait()
        await queue.database.write(lambda tx: tx.execute(steal))
        await queue.database.wake.send(Topic.CANCEL)
        await stopped.wait()
    job = await record_of(queue, answer.job_id)
    assert (job.state, job.worker_id) == (JobState.RUNNING, "thief")


@pytest.mark.req("JB-3")
async def test_heartbeats_outlast_a_short_lease(database_url: str) -> None:
    """Another worker looks for stale jobs all the while; a job that takes several leases is never taken away."""
    first, second, clock = await connect(database_url), await connect(database_url), ManualClock()
    queue, other = make_queue(first, clock), make_queue(second, clock)
    settings = WorkerSettings(lease_s=0.6, poll_s=0.05)
    attempts = []

    async def slow(context: JobContext) -> None:
        attempts.append(context.job.attempt)
        for _ in range(5):
            clock.advance(0.4)
            while (await record_of(queue, context.job.id)).heartbeat_at != clock.now():
                await asyncio.sleep(0.005)

    [answer] = await queue.enqueue(NewJob("noop"))
    async with running(queue, {"noop": slow}, settings), running(other, {"noop": slow}, settings):
        await wait_for_state(queue, answer.job_id, JobState.COMPLETED)
    assert attempts == [1]
    await first.close()
    await second.close()


@pytest.mark.req("JB-1")
async def test_steps_are_recorded_with_their_results_and_errors(queue: JobQueue) -> None:
    async def steps(context: JobContext) -> None:
        async with context.step("fetch") as step:
            step.result = {"bytes": 12}
        async with context.step("store"):
            raise Fatal("disk is full")

    [answer] = await queue.enqueue(NewJob("noop"))
    await run_until_idle(queue, {"noop": steps})
    _, recorded = await queue.database.read(lambda tx: show_job(tx, answer.job_id))
    assert [(s.name, s.attempt, s.result, s.error) for s in recorded] == [
        ("fetch", 1, {"bytes": 12}, None),
        ("store", 1, None, "Fatal: disk is full"),
    ]
    assert all(s.finished_at is not None and s.finished_at >= s.started_at for s in recorded)


@pytest.mark.req("JB-3")
async def test_steps_and_writes_of_a_job_that_is_no_longer_ours_are_refused(queue: JobQueue) -> None:
    await queue.enqueue(NewJob("noop"))
    [job] = await claim(queue)
    context = JobContext(queue, job)
    await queue.cancel(job.id)
    effect = NewJob("noop", {"effect": True})

    def act(tx: Tx) -> None:
        queue.add(tx, effect)

    with pytest.raises(LeaseLost):
        await context.write(act)
    with pytest.raises(LeaseLost):
        await context.complete(act)
    with pytest.raises(LeaseLost):
        async with context.step("send"):
            pytest.fail("the step must not begin")
    assert await count_jobs(queue.database) == 1


async def test_effect_and_completion_are_one_transaction(queue: JobQueue) -> None:
    async def follow_up(context: JobContext) -> None:
        def act(tx: Tx) -> str:
            context.queue.add(tx, NewJob("brief"))
            return "told"

        await context.complete(act)

    [answer] = await queue.enqueue(NewJob("noop"))
    await run_until_idle(queue, {"noop": follow_up, "brief": nothing})
    job = await record_of(queue, answer.job_id)
    assert (job.state, job.result) == (JobState.COMPLETED, "told")
    assert await count_jobs(queue.database, type="brief", state=JobState.COMPLETED) == 1


async def test_history_runs_only_in_slots_that_live_mail_leaves_idle(queue: JobQueue) -> None:
    order: list[str] = []
    gate = asyncio.Event()

    async def note(context: JobContext) -> None:
        order.append(context.job.queue)
        await gate.wait()

    await queue.enqueue(*(NewJob("noop", queue=QueueName.HISTORY) for _ in range(20)))
    await queue.enqueue(*(NewJob("noop", queue=QueueName.LIVE) for _ in range(5)))
    async with running(queue, {"noop": note}, WorkerSettings(concurrency=8)):
        await until(lambda: len(order) == 8)
        assert order == ["live"] * 5 + ["history"] * 3
        gate.set()
        await until_drained(queue)
    assert order.count("history") == 20


async def test_urgent_mail_finds_a_slot_while_history_is_being_worked(queue: JobQueue) -> None:
    started: list[Tier] = []
    gate, urgent = asyncio.Event(), asyncio.Event()

    async def note(context: JobContext) -> None:
        started.append(context.job.tier)
        if context.job.queue is QueueName.LIVE:
            urgent.set()
        await gate.wait()

    await queue.enqueue(*(NewJob("noop", queue=QueueName.HISTORY) for _ in range(20)))
    async with running(queue, {"noop": note}, WorkerSettings(concurrency=8)):
        await until(lambda: len(started) == 6)
        await queue.enqueue(NewJob("noop", queue=QueueName.LIVE, tier=Tier.HIGH_PRIORITY))
        await urgent.wait()
        gate.set()
        await until_drained(queue)


async def test_a_job_enqueued_by_another_process_starts_at_once(database_url: str) -> None:
    """Two connections stand for two processes. The worker would look by itself only after an hour: it is woken up.
    `make bench` measures how soon."""
    first, second = await connect(database_url), await connect(database_url)
    queue, elsewhere = make_queue(first, SystemClock()), make_queue(second, SystemClock())
    started = asyncio.Event()

    async def note(context: JobContext) -> None:
        started.set()

    async with running(queue, {"noop": note}, WorkerSettings(poll_s=3_600)):
        for _ in range(9):
            started.clear()
            await elsewhere.enqueue(NewJob("noop"))
            await asyncio.wait_for(started.wait(), 30)
    await first.close()
    await second.close()


async def test_a_scheduled_job_starts_when_it_is_ripe_and_not_at_the_next_poll(queue: JobQueue) -> None:
    started = asyncio.Event()

    async def note(context: JobContext) -> None:
        started.set()

    async with running(queue, {"noop": note}, WorkerSettings(poll_s=3_600)):
        due = queue.clock.now() + timedelta(milliseconds=300)
        await queue.enqueue_scheduled("noop", {}, None, 0, due)
        await started.wait()
        assert queue.clock.now() >= due


async def test_a_worker_outlives_the_loss_of_all_its_connections(postgres_factory: PostgresFactory) -> None:
    url = postgres_factory.url()
    database = await connect(url)
    queue = make_queue(database, SystemClock())
    done = 0

    async def count(context: JobContext) -> None:
        nonlocal done
        done += 1

    def cut_all_connections() -> None:
        with psycopg.connect(url, autocommit=True) as other:
            other.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
                "AND pid <> pg_backend_pid()"
            )

    async with running(queue, {"noop": count}, WorkerSettings(concurrency=5, lease_s=2, poll_s=0.2)):
        for round in range(1, 4):
            await asyncio.to_thread(cut_all_connections)
            await enqueue_when_possible(queue, 200)
            await until(lambda round=round: done >= 200 * round)  # type: ignore[misc]
    await until_drained(queue)
    await database.close()


async def enqueue_when_possible(queue: JobQueue, count: int) -> None:
    """As any caller would: a broken connection is retried, and a key keeps the retry from doubling the jobs."""
    jobs = [NewJob("noop", key=new_id()) for _ in range(count)]
    while True:
        try:
            await queue.enqueue(*jobs)
        except Retryable:
            await asyncio.sleep(0.01)
        else:
            return


async def wait_for_state(queue: JobQueue, job_id: str, state: JobState) -> None:
    while (await record_of(queue, job_id)).state is not state:
        await asyncio.sleep(0.005)


async def until_drained(queue: JobQueue) -> None:
    while await count_jobs(queue.database, state=JobState.COMPLETED) < await count_jobs(queue.database):
        await asyncio.sleep(0.005)

"""The way into the queue, on both databases."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.db import Database, Tx
from postroom.domain.clock import ManualClock
from postroom.domain.errors import BadInput, NotFound
from postroom.domain.terms import Tier
from postroom.queue import JobContext, JobState, NewJob, QueueName
from postroom.queue.enqueue import encode_payload
from postroom.queue.inspection import JobFilter, list_jobs, show_job
from tests.support.queues import claim, complete, count_jobs, count_writes, fail, later, make_queue, record_of

pytestmark = pytest.mark.req("JB-1")


async def test_a_job_is_stored_as_it_was_given(database: Database, clock: ManualClock) -> None:
    queue = make_queue(database, clock)
    payload = {"text": "žluťoučký \u2028 \0 'quote' %s :name", "n": 2**60, "nested": [None, {"x": 1.5}]}
    [answer] = await queue.enqueue(
        NewJob("noop", payload, QueueName.WORK, Tier.INTERACTIVE, 7, "k:1", later(clock, 60))
    )
    job = await record_of(queue, answer.job_id)
    assert (job.type, job.state, job.queue, job.tier) == ("noop", JobState.QUEUED, QueueName.WORK, Tier.INTERACTIVE)
    assert (job.priority, job.key, job.payload, job.attempts, job.max_attempts) == (7, "k:1", payload, 0, 5)
    assert (job.not_before, job.created_at) == (later(clock, 60), clock.now())


async def test_the_same_key_twice_is_one_job_and_a_success(database: Database, clock: ManualClock) -> None:
    queue = make_queue(database, clock)
    [first] = await queue.enqueue(NewJob("noop", {"n": 1}, key="k"))
    [second] = await queue.enqueue(NewJob("noop", {"n": 2}, key="k"))
    assert (first.duplicate, second.duplicate) == (False, True)
    assert second.job_id == first.job_id
    assert (await record_of(queue, first.job_id)).payload == {"n": 1}


async def test_a_batch_answers_in_order_and_keeps_one_job_for_each_key(database: Database, clock: ManualClock) -> None:
    queue = make_queue(database, clock)
    [old] = await queue.enqueue(NewJob("noop", key="b"))
    answers = await queue.enqueue(
        NewJob("noop", {"n": 0}, key="a"),
        NewJob("noop", {"n": 1}, key="b"),
        NewJob("noop", {"n": 2}),
        NewJob("noop", {"n": 3}, key="a"),
        NewJob("noop", {"n": 4}),
    )
    assert [answer.duplicate for answer in answers] == [False, True, False, True, False]
    assert answers[1].job_id == old.job_id
    assert answers[3].job_id == answers[0].job_id
    claimed = await claim(queue, 10)
    assert [job.payload for job in claimed] == [{}, {"n": 0}, {"n": 2}, {"n": 4}]


async def test_an_empty_batch_is_nothing(database: Database, clock: ManualClock) -> None:
    assert await make_queue(database, clock).enqueue() == []


@pytest.mark.req("JB-5")
@pytest.mark.parametrize("ending", ["complete", "fail", "cancel"])
async def test_a_once_key_is_never_used_again(database: Database, clock: ManualClock, ending: str) -> None:
    queue = make_queue(database, clock)
    [first] = await queue.enqueue(NewJob("noop", key="k"))
    await finish(queue, ending, first.job_id)
    [second] = await queue.enqueue(NewJob("noop", key="k"))
    assert second.duplicate
    assert second.job_id == first.job_id
    assert await count_jobs(database, state=JobState.QUEUED) == 0


@pytest.mark.req("JB-5")
@pytest.mark.parametrize("ending", ["complete", "fail", "cancel"])
async def test_a_repeatable_key_arms_its_finished_job_again(
    database: Database, clock: ManualClock, ending: str
) -> None:
    queue = make_queue(database, clock)
    [first] = await queue.enqueue(NewJob("hourly", {"n": 1}, key="labels.sync.gmail:me"))
    await finish(queue, ending, first.job_id)
    clock.advance(3_600)
    [second] = await queue.enqueue(NewJob("hourly", {"n": 2}, key="labels.sync.gmail:me"))
    assert not second.duplicate
    assert second.job_id == first.job_id
    job = await record_of(queue, first.job_id)
    assert (job.state, job.attempts, job.payload, job.last_error) == (JobState.QUEUED, 0, {"n": 2}, None)
    [again] = await claim(queue)
    assert await complete(queue, again) == set()


@pytest.mark.req("JB-5")
@pytest.mark.parametrize("claimed", [False, True])
async def test_a_repeatable_job_that_waits_or_runs_is_not_doubled(
    database: Database, clock: ManualClock, claimed: bool
) -> None:
    queue = make_queue(database, clock)
    [first] = await queue.enqueue(NewJob("hourly", {"n": 1}, key="k"))
    if claimed:
        await claim(queue)
    [second] = await queue.enqueue(NewJob("hourly", {"n": 2}, key="k"))
    assert (second.duplicate, second.job_id) == (True, first.job_id)
    assert (await record_of(queue, first.job_id)).payload == {"n": 1}


@pytest.mark.req("JB-5")
async def test_a_repeatable_type_cannot_take_over_a_spent_key(database: Database, clock: ManualClock) -> None:
    queue = make_queue(database, clock)
    [first] = await queue.enqueue(NewJob("noop", key="k"))
    await finish(queue, "complete", first.job_id)
    [second] = await queue.enqueue(NewJob("hourly", key="k"))
    assert (second.duplicate, second.job_id) == (True, first.job_id)
    assert (await record_of(queue, first.job_id)).type == "noop"


@pytest.mark.req("JB-1")
async def test_steps_of_an_earlier_run_are_forgotten_when_the_job_is_armed_again(
    database: Database, clock: ManualClock
) -> None:
    queue = make_queue(database, clock)
    for _ in range(3):
        [answer] = await queue.enqueue(NewJob("hourly", key="k"))
        [job] = await claim(queue)
        async with JobContext(queue, job).step("look"):
            pass
        await complete(queue, job)
    _, steps = await database.read(lambda tx: show_job(tx, answer.job_id))
    assert len(steps) == 1


async def test_a_job_armed_again_takes_a_new_place_in_line(database: Database, clock: ManualClock) -> None:
    queue = make_queue(database, clock)
    [old] = await queue.enqueue(NewJob("hourly", key="k"))
    await finish(queue, "complete", old.job_id)
    [other] = await queue.enqueue(NewJob("noop"))
    await queue.enqueue(NewJob("hourly", key="k"))
    assert [job.id for job in await claim(queue, 2)] == [other.job_id, old.job_id]


async def test_a_job_exists_exactly_if_its_transaction_was_committed(database: Database, clock: ManualClock) -> None:
    queue = make_queue(database, clock)

    def change_of_mind(tx: Tx) -> None:
        queue.add(tx, NewJob("noop"))
        raise RuntimeError("change of mind")

    with pytest.raises(RuntimeError, match="change of mind"):
        await database.write(change_of_mind)
    assert await count_jobs(database) == 0


def deep(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"x": value}
    return value


@pytest.mark.parametrize(
    ("field", "job"),
    [
        ("type", NewJob("no.such.type")),
        ("payload", NewJob("noop", {"when": datetime(2026, 1, 1)})),  # noqa: DTZ001 (no zone, and not JSON at all)
        ("payload", NewJob("noop", {"ratio": float("nan")})),
        ("payload", NewJob("noop", {"lone": "\ud800"})),
        ("payload", NewJob("noop", ["not", "an", "object"])),  # type: ignore[arg-type]
        ("payload", NewJob("noop", {"big": "x" * 1_100_000})),
        ("payload", NewJob("noop", deep(100_000))),
        ("priority", NewJob("noop", priority=1_001)),
        ("priority", NewJob("noop", priority=-1_001)),
        ("priority", NewJob("noop", priority=1.5)),  # type: ignore[arg-type]
        ("priority", NewJob("noop", queue=QueueName.LIVE, priority=1)),
        ("key", NewJob("noop", key="k" * 513)),
        ("key", NewJob("noop", key=" ")),
        ("key", NewJob("noop", key="a\0b")),
        ("not_before", NewJob("noop", not_before=datetime(2026, 1, 1))),  # noqa: DTZ001 (that is the point)
        ("queue", NewJob("noop", queue="fast")),  # type: ignore[arg-type]
        ("tier", NewJob("noop", tier="urgent")),  # type: ignore[arg-type]
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_bad_input_is_refused_with_the_fields_name_and_nothing_is_written(
    database: Database, clock: ManualClock, field: str, job: NewJob
) -> None:
    queue = make_queue(database, clock)
    with pytest.raises(BadInput) as refusal:
        await queue.enqueue(NewJob("noop"), job)
    assert refusal.value.field == field
    assert await count_jobs(database) == 0


@pytest.mark.parametrize("where", [{"state": "finished"}, {"queue": "fast"}, {"limit": 0}, {"limit": 100_000}])
def test_an_unknown_state_queue_or_limit_is_refused_by_name(where: dict[str, Any]) -> None:
    with pytest.raises(BadInput) as refusal:
        JobFilter(**where)
    assert refusal.value.field == next(iter(where))


async def test_listing_filters_and_shows_the_newest_first(database: Database, clock: ManualClock) -> None:
    queue = make_queue(database, clock)
    first, second, third = await queue.enqueue(NewJob("noop"), NewJob("hourly"), NewJob("noop", queue=QueueName.LIVE))
    await finish(queue, "cancel", first.job_id)

    async def listed(**where: Any) -> list[str]:
        return [job.id for job in await database.read(lambda tx: list_jobs(tx, JobFilter(**where)))]

    assert await listed() == [third.job_id, second.job_id, first.job_id]
    assert await listed(limit=1) == [third.job_id]
    assert await listed(state="canceled") == [first.job_id]
    assert await listed(type="noop") == [third.job_id, first.job_id]
    assert await listed(queue="live") == [third.job_id]


async def test_a_job_that_does_not_exist_is_named(database: Database, clock: ManualClock) -> None:
    missing = "01990000-0000-7000-8000-000000000000"
    with pytest.raises(NotFound, match=missing):
        await record_of(make_queue(database, clock), missing)


@pytest.mark.req("JB-6")
async def test_enqueue_scheduled_waits_for_its_time(database: Database, clock: ManualClock) -> None:
    queue = make_queue(database, clock)
    job_id = await queue.enqueue_scheduled("noop", {"n": 1}, "wake:1", 0, later(clock, 60))
    assert await claim(queue) == []
    clock.advance(59.9)
    assert await claim(queue) == []
    clock.advance(0.1)
    assert [job.id for job in await claim(queue)] == [job_id]


@pytest.mark.req("JB-6")
async def test_a_time_that_has_passed_already_is_no_wait(database: Database, clock: ManualClock) -> None:
    queue = make_queue(database, clock)
    job_id = await queue.enqueue_scheduled("noop", {}, None, 0, clock.now() - timedelta(days=1))
    assert [job.id for job in await claim(queue)] == [job_id]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), json_values, max_size=5))
def test_any_json_object_survives(payload: dict[str, Any]) -> None:
    assert json.loads(encode_payload(payload)) == payload


async def finish(queue: Any, ending: str, job_id: str) -> None:
    if ending == "cancel":
        await queue.cancel(job_id)
        return
    [job] = await claim(queue)
    assert job.id == job_id
    await (complete(queue, job) if ending == "complete" else fail(queue, job))


async def test_enqueues_that_wait_at_the_same_time_share_a_transaction(
    database: Database, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = make_queue(database, clock)
    writes = count_writes(queue, monkeypatch)
    wanted = [NewJob("noop", {"n": n}, key=f"k{n % 15}") for n in range(20)]
    answers = await asyncio.gather(*(queue.enqueue(job) for job in wanted))
    assert writes == [1, 1]
    assert [answer.duplicate for [answer] in answers] == [n >= 15 for n in range(20)]
    assert [answer.job_id for [answer] in answers[15:]] == [answer.job_id for [answer] in answers[:5]]
    assert len(await queue.enqueue(NewJob("noop"), NewJob("noop"))) == 2  # what comes later finds the way free


async def test_an_enqueue_that_is_refused_is_refused_alone(database: Database, clock: ManualClock) -> None:
    queue = make_queue(database, clock)
    good, bad = NewJob("noop"), NewJob("noop", priority=5_000)
    answers = await asyncio.gather(*(queue.enqueue(job) for job in (good, good, bad, good)), return_exceptions=True)
    assert [isinstance(answer, BadInput) for answer in answers] == [False, False, True, False]
    assert await count_jobs(queue.database, state=JobState.QUEUED) == 3


async def test_a_caller_that_gave_up_while_it_waited_enqueues_nothing(database: Database, clock: ManualClock) -> None:
    queue = make_queue(database, clock)
    first, gone, last = (asyncio.create_task(queue.enqueue(NewJob("noop", {"n": n}))) for n in range(3))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.gather(first, last)
    assert await count_jobs(queue.database, state=JobState.QUEUED) == 2

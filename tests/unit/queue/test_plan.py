"""What a worker claims, decided without a database."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.domain.terms import TIERS, Tier
from postroom.queue.job import QueueName
from postroom.queue.plan import Pick, Row, Slots, StarvationGuard, Width, first_after, plan

Heads = dict[tuple[QueueName, Tier], list[Row]]


def guards() -> dict[QueueName, StarvationGuard]:
    return {queue: StarvationGuard(3) for queue in QueueName}


@st.composite
def waiting(draw: st.DrawFn) -> Heads:
    return {
        (queue, tier): [f"{queue}/{tier}/{n}" for n in range(draw(st.integers(0, 12)))]
        for queue in QueueName
        for tier in TIERS
    }


@pytest.mark.req("JB-2", "PQ-6", "PQ-7")
@given(waiting(), st.integers(0, 40))
def test_a_batch_is_what_single_claims_would_have_given(heads: Heads, free: int) -> None:
    batch = plan(Slots(free, history=free), heads, guards())

    remaining = {place: list(ids) for place, ids in heads.items()}
    state, first, singles = guards(), QueueName.LIVE, list[Pick]()
    for _ in range(free):
        for pick in plan(Slots(1, history=1, first=first), remaining, state):
            remaining[pick.queue, pick.tier].remove(pick.row)
            singles.append(pick)
            first = first_after([pick])
    assert batch == singles


@given(waiting(), st.integers(0, 40), st.integers(0, 40))
def test_history_gets_only_slots_that_the_others_leave_idle(heads: Heads, free: int, history: int) -> None:
    picks = plan(Slots(free, history), heads, guards())
    from_history = sum(pick.queue is QueueName.HISTORY for pick in picks)
    others = len(picks) - from_history
    waiting_elsewhere = sum(len(ids) for (queue, _), ids in heads.items() if queue is not QueueName.HISTORY)
    assert others == min(free, waiting_elsewhere)
    assert from_history <= min(history, free - others)


def test_a_worker_takes_more_jobs_while_they_are_brief_and_as_many_as_it_has_slots_otherwise() -> None:
    width = Width(16)
    assert width.jobs == 16
    width.claimed(16, [True] * 16, holders=0)
    assert width.jobs == 32
    width.claimed(16, [True] * 10, holders=0)  # there were no more: nothing is gained by asking for more
    width.claimed(0, [], holders=0)
    assert width.jobs == 32
    width.claimed(32, [True] * 32, holders=8)
    width.claimed(64, [True] * 64, holders=0)
    assert width.jobs == 64
    assert not width.offers_slot(QueueName.LIVE, Counter([QueueName.LIVE] * 16))
    assert width.jobs == 16
    width.claimed(16, [True] * 16, holders=0)  # the next ones may have to wait as well
    assert width.jobs == 16
    for _ in range(15):
        width.claimed(16, [True] * 16, holders=9)  # they would soon meet those that wait
    width.claimed(16, [True] * 15 + [False], holders=0)
    assert width.jobs == 16
    width.claimed(16, [True] * 16, holders=0)
    assert width.jobs == 32


def test_where_transactions_are_not_shared_no_more_jobs_are_taken_than_there_are_slots() -> None:
    width = Width(16, shares=False)
    width.claimed(16, [True] * 16, holders=0)
    assert width.jobs == 16


def test_one_slot_means_one_job_at_a_time() -> None:
    width = Width(1)
    width.claimed(1, [True], holders=0)
    assert (width.jobs, width.kept_from_history) == (1, 0)
    assert width.offers_slot(QueueName.HISTORY, Counter())


@pytest.mark.req("BF-11")
def test_slots_are_held_by_no_more_jobs_than_there_are_and_history_leaves_some() -> None:
    width = Width(4)
    width.claimed(4, [True] * 4, holders=0)
    assert width.jobs == 8
    assert width.offers_slot(QueueName.HISTORY, Counter([QueueName.HISTORY] * 2))
    assert not width.offers_slot(QueueName.HISTORY, Counter([QueueName.HISTORY] * 3))
    assert width.jobs == 4
    assert width.offers_slot(QueueName.LIVE, Counter([QueueName.HISTORY] * 3))
    assert not width.offers_slot(QueueName.LIVE, Counter([QueueName.LIVE] * 4))


def test_live_mail_and_work_take_turns_so_that_neither_waits_for_the_other_to_run_dry() -> None:
    heads: Heads = {
        (QueueName.LIVE, Tier.DEFAULT): ["l1", "l2", "l3"],
        (QueueName.WORK, Tier.DEFAULT): ["w1", "w2", "w3"],
    }
    picks = plan(Slots(4, history=0, first=QueueName.WORK), heads, guards())
    assert [pick.row for pick in picks] == ["w1", "l1", "w2", "l2"]
    assert first_after(picks) is QueueName.WORK


def test_a_pick_says_when_a_lower_tier_overtook_a_waiting_higher_one() -> None:
    heads: Heads = {
        (QueueName.LIVE, Tier.HIGH_PRIORITY): [f"h{n}" for n in range(5)],
        (QueueName.LIVE, Tier.DEFAULT): ["d"],
    }
    picks = plan(Slots(6, history=0), heads, guards())
    assert [(pick.row, pick.override) for pick in picks] == [
        ("h0", False),
        ("h1", False),
        ("h2", False),
        ("d", True),
        ("h3", False),
        ("h4", False),
    ]

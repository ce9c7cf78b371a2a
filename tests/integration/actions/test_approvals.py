"""Questions to a person: answered once, by whoever comes first, and in the books; on both databases."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from postroom.actions import approvals
from postroom.actions.approvals import ApprovalVerdict
from postroom.actions.discord.notices import asking
from postroom.db import Database
from postroom.domain.actions import ActionStatus
from postroom.domain.clock import ManualClock
from postroom.domain.errors import BadInput, NotFound
from postroom.domain.ids import new_id
from postroom.domain.jobs import ACTION, APPROVALS_EXPIRE
from postroom.queue import NewJob
from tests.support.actions import ANA, BEN, PendingApprovals

pytestmark = pytest.mark.req("JB-16")


@pytest.fixture
def office(database: Database, clock: ManualClock) -> PendingApprovals:
    return PendingApprovals(database, clock)


async def test_an_approved_action_is_put_to_work_and_in_the_books(office: PendingApprovals) -> None:
    action_id = await office.ask()
    answer = await office.answer(action_id, ApprovalVerdict.APPROVE, note="fine by me")
    action = await office.action(action_id)
    assert answer.counted
    assert (action.status, action.answered_by, action.answered_at) == (
        ActionStatus.QUEUED,
        "dashboard cli ana",
        office.clock.now(),
    )
    assert await office.jobs_of(ACTION.name) == ["queued"]
    (entry,) = await office.audited(action_id)
    assert (entry.action, entry.actor, entry.before, entry.after) == (
        "action.approve",
        ANA,
        {"status": "approved_pending"},
        {"status": "queued", "note": "fine by me"},
    )


async def test_a_rejected_action_is_never_done(office: PendingApprovals) -> None:
    action_id = await office.ask()
    await office.answer(action_id, ApprovalVerdict.REJECT)
    assert (await office.action(action_id)).status is ActionStatus.REJECTED
    assert await office.jobs_of(ACTION.name) == []
    assert [entry.action for entry in await office.audited(action_id)] == ["action.reject"]


async def test_of_two_persons_at_once_one_wins_and_the_other_is_told_who(office: PendingApprovals) -> None:
    action_id = await office.ask()
    first, second = await asyncio.gather(
        office.answer(action_id, ApprovalVerdict.APPROVE, ANA), office.answer(action_id, ApprovalVerdict.REJECT, BEN)
    )
    winner, loser = (first, second) if first.counted else (second, first)
    assert (winner.counted, loser.counted) == (True, False)
    assert loser.said == winner.said
    assert ("ana" if first.counted else "ben") in loser.said
    assert len(await office.audited(action_id)) == 1


async def test_a_question_that_nobody_answers_expires(office: PendingApprovals, clock: ManualClock) -> None:
    old = await office.ask()
    clock.advance(timedelta(days=6).total_seconds())
    young = await office.ask()
    clock.advance(timedelta(days=1).total_seconds())
    await office.queue.enqueue(NewJob(APPROVALS_EXPIRE.name))
    await office.notify(None)
    assert (await office.action(old)).status is ActionStatus.EXPIRED
    assert (await office.action(young)).status is ActionStatus.APPROVED_PENDING
    (entry,) = await office.audited(old)
    assert (entry.action, entry.actor.role) == ("action.expire", "system")


async def test_an_answer_that_comes_too_late_does_not_count(office: PendingApprovals, clock: ManualClock) -> None:
    action_id = await office.ask()
    clock.advance(timedelta(days=7).total_seconds())
    answer = await office.answer(action_id, ApprovalVerdict.APPROVE)
    assert not answer.counted
    assert answer.said == "expired: no answer in time"
    assert await office.jobs_of(ACTION.name) == []


async def test_open_questions_are_listed_with_what_is_needed_to_decide(office: PendingApprovals) -> None:
    first, second = await office.ask(), await office.ask("forward", {"to": ["a@b.example"]})
    await office.answer(first, ApprovalVerdict.REJECT)
    (question,) = await office.database.read(approvals.list_questions)
    assert question.action.id == second
    assert (question.account, question.sender, question.subject) == (
        "owner@example.com",
        "Ann <ann@friends.example>",
        "Dinner?",
    )
    assert len(question.action.reasons) == 2


async def test_who_approves_an_answer_is_told_where_it_would_go(office: PendingApprovals) -> None:
    asked = {"headers": {"reply-to": "eve@elsewhere.example"}}
    action_id = await office.ask("auto_reply", {"body": "The key is under the mat."}, **asked)
    question = await office.database.read(lambda tx: approvals.get_question(tx, action_id))
    assert question.answers_go_to == "eve@elsewhere.example"
    assert "`eve@elsewhere.example`" in asking(question)["content"]
    other = await office.ask("trash", **asked)
    assert (await office.database.read(lambda tx: approvals.get_question(tx, other))).answers_go_to is None


async def test_what_does_not_exist_cannot_be_answered(office: PendingApprovals) -> None:
    with pytest.raises(NotFound):
        await office.answer(new_id(), ApprovalVerdict.APPROVE)
    with pytest.raises(BadInput):
        await office.answer("nonsense", ApprovalVerdict.APPROVE)


@pytest.mark.req("JB-7")
async def test_without_discord_a_question_waits_in_the_queue(office: PendingApprovals) -> None:
    action_id = await office.ask()
    await office.notify(None)
    assert await office.jobs_of("approval.notify") == ["completed"]
    assert (await office.action(action_id)).status is ActionStatus.APPROVED_PENDING


async def test_an_approval_is_taken_back_before_the_action_begins(office: PendingApprovals) -> None:
    action_id = await office.ask()
    await office.answer(action_id, ApprovalVerdict.APPROVE)
    assert await office.take_back(action_id) == "waits for approval again"
    action = await office.action(action_id)
    assert (action.status, action.answered_by, action.answered_at) == (ActionStatus.APPROVED_PENDING, None, None)
    (question,) = await office.database.read(approvals.list_questions)
    assert question.action.id == action_id
    entries = {entry.action: (entry.before, entry.after) for entry in await office.audited(action_id)}
    before = {"status": "queued", "answered_by": "dashboard cli ana"}
    assert entries["action.reopen"] == (before, {"status": "approved_pending"})
    assert (await office.answer(action_id, ApprovalVerdict.APPROVE, BEN)).counted
    assert await office.jobs_of(ACTION.name) == ["queued"], "the same job does it, once"


async def test_an_open_question_and_the_rejection_of_somebody_else_are_not_taken_back(
    office: PendingApprovals,
) -> None:
    waiting, rejected = await office.ask(), await office.ask()
    await office.answer(rejected, ApprovalVerdict.REJECT, BEN)
    for action_id in (waiting, rejected):
        with pytest.raises(BadInput, match="only what you approved or ordered"):
            await office.take_back(action_id)
    assert (await office.action(rejected)).status is ActionStatus.REJECTED


async def test_a_rejection_is_taken_back_by_who_rejected(office: PendingApprovals) -> None:
    action_id = await office.ask()
    await office.answer(action_id, ApprovalVerdict.REJECT)
    assert await office.take_back(action_id) == "waits for approval again"
    action = await office.action(action_id)
    assert (action.status, action.answered_by, action.answered_at) == (ActionStatus.APPROVED_PENDING, None, None)
    assert (await office.answer(action_id, ApprovalVerdict.APPROVE, BEN)).counted
    assert await office.jobs_of(ACTION.name) == ["queued"]

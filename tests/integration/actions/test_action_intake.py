"""Orders become actions and jobs in one transaction; statuses change only along their table."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import select

from postroom.actions import lifecycle
from postroom.actions.scheduling import ActionIntake
from postroom.db import Database, Tx
from postroom.db.tables.queue import jobs
from postroom.db.tables.triage import actions
from postroom.domain.actions import ActionOrder, ActionStatus, Origin, Proposal, parse_action
from postroom.domain.clock import ManualClock
from postroom.domain.errors import NotFound
from postroom.domain.ids import new_id
from postroom.domain.jobs import ACTION
from postroom.queue import JobCatalogue, JobQueue, JobType, KeyUse
from postroom.settings import SafetySettings
from tests.support.actions import action_by_id, make_account, make_decision, make_message, rows_of

CATALOGUE = JobCatalogue([ACTION, JobType("approval.notify", KeyUse.REPEATABLE)])
LABEL, TRASH = parse_action("apply_label", {"label": "Receipts"}), parse_action("trash")


async def accept(database: Database, clock: ManualClock) -> list[str]:
    """A rule that labels by itself, and asks before it throws away."""
    account = await make_account(database, clock, "me@example.org", "http://127.0.0.1:1")
    message_id = await make_message(database, clock, account, "18c0")
    order = ActionOrder(
        account_id=account.id,
        message_id=message_id,
        gmail_id="18c0",
        thread_id="18c0",
        decision_id=await make_decision(database, clock, message_id, account.id),
        origin=Origin.RULE,
        wanted_by="rule Receipts",
        proposals=(Proposal(LABEL), Proposal(TRASH, ("trash is dangerous",))),
        rule_id=new_id(),
        rule_name="Receipts",
    )
    intake = ActionIntake(JobQueue(database, CATALOGUE, clock), SafetySettings(approval_days=3))
    return await database.write(lambda tx: intake.accept(tx, order))


@pytest.mark.req("JB-8", "JB-12")
async def test_each_proposal_becomes_an_action_with_its_job(database: Database, clock: ManualClock) -> None:
    ids = await accept(database, clock)

    label, trash = [await action_by_id(database, each) for each in ids]
    assert (label.status, label.type, label.parameters) == ("queued", "apply_label", {"label": "Receipts"})
    assert (trash.status, trash.reasons) == ("approved_pending", ("trash is dangerous",))
    assert (label.expires_at, trash.expires_at) == (None, clock.now() + timedelta(days=3))
    assert [each.position for each in (label, trash)] == [0, 1]
    found = {job.type: job for job in await rows_of(database, jobs)}
    assert found["action.gmail"].idempotency_key == f"action.gmail:{label.account_id}:{label.id}"
    assert found["action.gmail"].id == label.job_id
    assert found["approval.notify"].idempotency_key == f"approval.notify:{label.account_id}:{trash.id}"
    assert trash.job_id is None


async def test_a_status_is_compared_before_it_is_set(database: Database, clock: ManualClock) -> None:
    action_id = (await accept(database, clock))[0]
    queued, executing, done = ActionStatus.QUEUED, ActionStatus.EXECUTING, ActionStatus.COMPLETED

    def twice(tx: Tx) -> list[bool]:
        return [lifecycle.move_action(tx, action_id, queued, executing, clock.now(), job_id=new_id()) for _ in range(2)]

    assert await database.write(twice) == [True, False]
    assert not await database.write(
        lambda tx: lifecycle.move_action(tx, action_id, executing, done, clock.now(), held_by=new_id())
    ), "another job may not finish it"
    assert await database.write(lambda tx: lifecycle.move_action(tx, action_id, executing, done, clock.now()))
    assert (await action_by_id(database, action_id)).finished_at == clock.now()


async def test_an_illegal_change_is_a_fault_of_the_program(database: Database, clock: ManualClock) -> None:
    action_id = (await accept(database, clock))[1]
    pending, done = ActionStatus.APPROVED_PENDING, ActionStatus.COMPLETED
    with pytest.raises(AssertionError, match="never goes from approved_pending to completed"):
        await database.write(lambda tx: lifecycle.move_action(tx, action_id, pending, done, clock.now()))
    query = select(actions.c.status).where(actions.c.id == action_id)
    assert await database.read(lambda tx: tx.execute(query).scalar_one()) == "approved_pending"


async def test_an_unknown_action_is_named(database: Database) -> None:
    missing = new_id()
    with pytest.raises(NotFound, match=missing):
        await database.read(lambda tx: lifecycle.get_action(tx, missing))

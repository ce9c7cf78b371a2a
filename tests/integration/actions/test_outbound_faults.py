"""Sending when everything goes wrong: whatever fails and wherever the process dies, nothing is ever sent twice."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from sqlalchemy import delete, insert, select

from postroom.actions.outbound.record import UNCLEAR, SendStage
from postroom.db import Database, Tx
from postroom.db.tables.queue import jobs as queued
from postroom.db.tables.triage import actions, outbound
from postroom.domain.actions import ActionStatus
from postroom.domain.clock import ManualClock
from postroom.queue import JobState
from postroom.sim.gmail.faults import FaultRule, GmailFault
from tests.support.databases import on_sqlite
from tests.support.outbox import Outbox, outbox

pytestmark = pytest.mark.req("JB-14", "JB-7")

FLEETING = {
    "429": GmailFault(kind="error", code=429, reason="rateLimitExceeded"),
    "403 of rate": GmailFault(kind="error", code=403, reason="userRateLimitExceeded"),
    "503": GmailFault(kind="error", code=503),
    "503 after it was done": GmailFault(kind="error", code=503, after_effect=True),
    "a cut connection": GmailFault(kind="drop"),
    "a cut connection after it was done": GmailFault(kind="drop", after_effect=True),
    "half an answer": GmailFault(kind="truncate"),
    "an answer that is not JSON": GmailFault(kind="malformed"),
}
LASTING = {
    "403 of permission": (GmailFault(kind="error", code=403, reason="insufficientPermissions"), "needs the permission"),
    "400": (
        GmailFault(kind="error", code=400, reason="invalidArgument", message="Invalid To header"),
        "Invalid To header",
    ),
}
LOGIN = GmailFault(kind="error", code=401, reason="authError", message="Invalid Credentials")
CALLS = ("messages.get", "drafts.create", "drafts.send")


@pytest.fixture
async def box(database: Database, clock: ManualClock) -> AsyncIterator[Outbox]:
    async with outbox(database, clock) as opened:
        yield opened


async def _is_sent_exactly_once(box: Outbox, action_id: str) -> None:
    assert len(box.sent(action_id)) == 1
    assert box.drafts(action_id) == []
    assert (await box.action(action_id)).status is ActionStatus.COMPLETED


@on_sqlite
@pytest.mark.parametrize("call", CALLS)
async def test_a_passing_fault_of_any_call_ends_in_one_mail(box: Outbox, call: str) -> None:
    for times, fault in enumerate(FLEETING.values()):
        box.sim.control.add_fault(FaultRule(method=call, fault=fault, times=1 + times % 2))
        action_id = await box.reply_to()
        await box.work(hours=2)
        box.sim.control.clear_faults()
        await _is_sent_exactly_once(box, action_id)


@on_sqlite
@pytest.mark.parametrize("call", CALLS)
async def test_a_lasting_refusal_ends_the_action_and_a_retry_by_hand_sends_one_mail(box: Outbox, call: str) -> None:
    for fault, said in LASTING.values():
        box.sim.control.add_fault(FaultRule(method=call, fault=fault))
        action_id = await box.reply_to()
        await box.work(hours=1)
        box.sim.control.clear_faults()
        action = await box.action(action_id)
        assert action.status is ActionStatus.FAILED
        assert said in (action.error or "")
        assert box.sent(action_id) == []
        assert (await box.job(action_id)).state is JobState.FAILED
        await box.try_again(action_id)
        await box.work(hours=1)
        await _is_sent_exactly_once(box, action_id)


@on_sqlite
@pytest.mark.req("HW-7")
@pytest.mark.parametrize("call", CALLS)
async def test_a_mail_whose_login_is_refused_waits_for_a_new_login_and_is_sent_once(box: Outbox, call: str) -> None:
    box.sim.control.add_fault(FaultRule(method=call, fault=LOGIN))
    action_id = await box.reply_to()
    await box.work(hours=1)
    box.sim.control.clear_faults()
    assert (await box.action(action_id)).status is ActionStatus.EXECUTING
    assert box.sent(action_id) == []
    await box.log_in()
    await box.work(hours=1)
    await _is_sent_exactly_once(box, action_id)


@on_sqlite
@pytest.mark.parametrize("call", CALLS)
async def test_an_outage_without_end_fails_the_action_and_a_retry_by_hand_sends_one_mail(
    box: Outbox, call: str
) -> None:
    for fault in (FLEETING["503"], FLEETING["503 after it was done"]):
        box.sim.control.add_fault(FaultRule(method=call, fault=fault))
        action_id = await box.reply_to()
        await box.work(hours=4)
        box.sim.control.clear_faults()
        if (await box.action(action_id)).status is ActionStatus.FAILED:
            assert "gave up after" in ((await box.action(action_id)).error or "")
            await box.try_again(action_id)
            await box.work(hours=2)
        await _is_sent_exactly_once(box, action_id)


@on_sqlite
async def test_a_lost_answer_to_the_last_attempt_is_looked_into_at_once(box: Outbox) -> None:
    box.sim.control.add_fault(FaultRule(method="drafts.send", fault=FLEETING["503"], times=5))
    box.sim.control.add_fault(FaultRule(method="drafts.send", fault=FLEETING["503 after it was done"], skip=0, times=1))
    action_id = await box.forward()
    await box.work(hours=4)
    await _is_sent_exactly_once(box, action_id)


@on_sqlite
async def test_a_draft_that_is_gone_for_good_goes_to_a_person_and_is_never_sent_again(box: Outbox) -> None:
    """Somebody deletes it, or Gmail loses it: the one thing that is certain is that guessing could send it twice."""
    box.sim.control.add_fault(
        FaultRule(method="drafts.send", fault=GmailFault(kind="error", code=404, reason="notFound"))
    )
    action_id = await box.reply_to()
    await box.work(hours=4)
    box.sim.control.clear_faults()
    action, sending = await box.action(action_id), await box.record(action_id)
    assert sending is not None
    assert (action.status, action.error, sending.stage) == (ActionStatus.FAILED, UNCLEAR, SendStage.UNCLEAR)
    box.sim.control.add_fault(
        FaultRule(method="drafts.send", fault=GmailFault(kind="error", code=404, reason="notFound"))
    )
    await box.try_again(action_id)
    await box.work(hours=4)
    assert box.sent(action_id) == []
    assert (await box.action(action_id)).error == UNCLEAR


@on_sqlite
async def test_what_could_not_be_found_at_first_counts_as_sent_once_it_is(box: Outbox) -> None:
    """Gmail shows sent mail with a delay: the search goes on for as long as the job has attempts."""
    box.sim.control.add_fault(FaultRule(method="drafts.send", fault=FLEETING["503 after it was done"], times=1))
    gone = GmailFault(kind="error", code=404, reason="notFound")
    box.sim.control.add_fault(FaultRule(method="threads.get", fault=gone, times=1))
    action_id = await box.reply_to()
    await box.work(hours=2)
    await _is_sent_exactly_once(box, action_id)


@on_sqlite
async def test_a_process_that_dies_anywhere_sends_exactly_one_mail(box: Outbox) -> None:
    """A reply; what becomes of a forward is seen where real processes are killed."""
    point, died = 0, True
    while died:
        point += 1
        action_id = await box.reply_to()
        died = await box.die_at(point)
        await box.work(hours=1)
        await _is_sent_exactly_once(box, action_id)
    assert point > 15


@on_sqlite
async def test_a_process_that_dies_twice_sends_exactly_one_mail(box: Outbox) -> None:
    for first in range(9, 17, 2):
        action_id = await box.reply_to()
        await box.die_at(first)
        for second in (3, 6, 8):
            if (await box.job(action_id)).state in (JobState.QUEUED, JobState.RUNNING):
                await box.die_at(second)
        await box.work(hours=1)
        await _is_sent_exactly_once(box, action_id)


@pytest.mark.parametrize("kind", ["reply", "forward"])
async def test_what_was_sent_after_the_backup_that_was_restored_is_not_sent_again(
    box: Outbox, database: Database, kind: str
) -> None:
    action_id = await (box.reply_to() if kind == "reply" else box.forward())
    tables = (actions, outbound, queued)
    backup = await database.read(lambda tx: {table: [*tx.execute(select(table)).mappings()] for table in tables})
    await box.work(hours=1)
    await _is_sent_exactly_once(box, action_id)

    def restore(tx: Tx) -> None:
        for table in reversed(tables):
            tx.execute(delete(table))
        for table, rows in backup.items():
            if rows:
                tx.execute(insert(table), [dict(row) for row in rows])

    await database.write(restore)
    await box.work(hours=1)
    await _is_sent_exactly_once(box, action_id)

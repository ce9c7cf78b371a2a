"""Who gets a job, for how long, and what happens to one whose connector dies."""

from __future__ import annotations

from datetime import timedelta

import pytest

from postroom.db import Database
from postroom.domain.clock import ManualClock
from postroom.domain.errors import NotAllowed
from postroom.domain.money import UNDECIDED_LIMIT
from postroom.domain.roles import Caller, Role
from postroom.domain.terms import BackfillMode, BackfillStatus
from postroom.kill_switch import SwitchedOff
from postroom.queue import JobCatalogue, JobQueue, JobType, NewJob, QueueName
from postroom.switchboard.backfill.admission import AdmissionVerdict
from postroom.switchboard.backfill.leases import StaleFence
from tests.support.backfills import CONNECTOR, EMAIL, OPERATOR, RIVAL, BackfillRig

LEASE_S = 180


@pytest.mark.req("BF-4")
async def test_the_oldest_pending_job_of_the_identity_is_handed_out_with_all_that_is_needed(rig: BackfillRig) -> None:
    first = await rig.create(includes=["sent"], rate_limit_per_hour=7)
    rig.clock.advance(1)
    second = await rig.create()
    taken = await rig.take()
    assert taken is not None
    assert (taken.job_id, taken.fence, taken.lease_s, taken.cursor) == (first.id, 1, LEASE_S, None)
    assert (taken.includes, taken.rate_limit_per_hour, taken.target_categories) == (["sent"], 7, ["finance"])
    assert (await rig.job(first.id)).status is BackfillStatus.ACTIVE
    other = await rig.take(RIVAL)
    assert other is not None
    assert other.job_id == second.id
    assert await rig.take() is None


@pytest.mark.req("BF-4")
async def test_another_identity_gets_nothing(rig: BackfillRig) -> None:
    await rig.create()
    assert (await rig.service.poll(CONNECTOR, "gmail", "other@example.com")).job is None
    assert (await rig.service.poll(CONNECTOR, "imap", EMAIL)).job is None


@pytest.mark.req("BF-3")
async def test_a_token_of_one_mailbox_speaks_for_no_other(rig: BackfillRig) -> None:
    work = await rig.started()
    bound = Caller(Role.CONNECTOR, "other", "other@example.com")
    with pytest.raises(NotAllowed, match=r"speaks for other@example\.com"):
        await rig.service.poll(bound, "gmail", EMAIL)
    with pytest.raises(NotAllowed, match=r"speaks for other@example\.com"):
        await rig.report(work, bound, rows_processed=1)


@pytest.mark.req("BF-4", "BF-5")
async def test_the_start_is_noted_once_however_often_the_job_is_handed_out(rig: BackfillRig) -> None:
    began = rig.now
    work = await rig.started()
    rig.clock.advance(LEASE_S)
    again = await rig.take(RIVAL)
    assert again is not None
    assert (again.job_id, again.fence) == (work.job_id, 2)
    assert (await rig.job(work.job_id)).started_at == began


@pytest.mark.req("BF-5", "BF-22")
async def test_a_dead_connectors_job_is_handed_out_again_with_its_cursor_and_the_loss_is_audited(
    rig: BackfillRig,
) -> None:
    work = await rig.started()
    await rig.report(work, rows_processed=50, cursor={"page": 2})
    rig.clock.advance(LEASE_S - 1)
    assert await rig.take(RIVAL) is None
    rig.clock.advance(1)
    again = await rig.take(RIVAL)
    assert again is not None
    assert (again.cursor, again.fence) == ({"page": 2}, 2)
    assert await rig.actions(work.job_id) == ["create", "start", "lease_loss", "start"]
    loss = (await rig.entries(work.job_id))[2]
    assert loss.actor.role == "system"
    assert (loss.after or {})["reason"] == "gmail-one was silent for too long"


@pytest.mark.req("BF-5")
async def test_a_report_with_an_old_fence_is_refused_told_to_stop_and_changes_nothing(rig: BackfillRig) -> None:
    old = await rig.started()
    rig.clock.advance(LEASE_S)
    new = await rig.take(RIVAL)
    assert new is not None
    before = await rig.job(old.job_id)
    with pytest.raises(StaleFence, match=r"no longer yours.*Stop"):
        await rig.report(old, rows_processed=50, cursor={"page": 9}, status="completed")
    assert await rig.job(old.job_id) == before
    assert (await rig.report(new, RIVAL, rows_processed=1)).status is BackfillStatus.ACTIVE


@pytest.mark.req("BF-5")
async def test_without_anybody_polling_a_lost_job_does_not_look_active_for_ever(rig: BackfillRig) -> None:
    work = await rig.started()
    rig.clock.advance(LEASE_S)
    assert (await rig.service.upkeep())["leases_lost"] == 1
    assert (await rig.job(work.job_id)).status is BackfillStatus.PENDING


@pytest.mark.req("BF-5", "BF-6")
async def test_a_connector_that_comes_back_late_delivers_its_counts_and_polls_again(rig: BackfillRig) -> None:
    work = await rig.started()
    rig.clock.advance(LEASE_S)
    await rig.service.upkeep()
    reply = await rig.report(work, rows_processed=3, cursor={"page": 1}, status="completed")
    assert reply.status is BackfillStatus.PENDING
    job = await rig.job(work.job_id)
    assert (job.rows_processed, job.cursor) == (3, {"page": 1})


@pytest.mark.req("BF-5")
async def test_reports_and_mail_renew_the_lease(rig: BackfillRig) -> None:
    work = await rig.started()
    rig.clock.advance(LEASE_S - 1)
    assert (await rig.report(work)).status is BackfillStatus.ACTIVE
    rig.clock.advance(LEASE_S - 1)
    assert (await rig.admit(work.job_id)).is_admitted
    rig.clock.advance(LEASE_S - 1)
    assert await rig.take(RIVAL) is None


@pytest.mark.req("BF-18")
async def test_background_work_is_handed_out_and_goes_on_only_while_no_live_mail_waits(
    rig: BackfillRig, database: Database, clock: ManualClock
) -> None:
    queue = JobQueue(database, JobCatalogue([JobType("classify")]), clock)
    job = await rig.create(mode=BackfillMode.BACKGROUND)
    live = await queue.enqueue(NewJob("classify", queue=QueueName.LIVE))
    await queue.enqueue(NewJob("classify", queue=QueueName.HISTORY))
    assert await rig.take() is None
    await queue.cancel(live[0].job_id)
    work = await rig.take()
    assert work is not None
    assert (await rig.admit(job.id)).is_admitted
    await queue.enqueue(NewJob("classify", queue=QueueName.LIVE))
    answer = await rig.admit(job.id)
    assert (answer.verdict, answer.reason, answer.retry_after) == (AdmissionVerdict.WAIT, "live mail comes first", 30)
    reply = await rig.report(work)
    assert (reply.status, reply.reason, reply.retry_after) == (BackfillStatus.PENDING, "live mail comes first", 30)
    assert await rig.take() is None


@pytest.mark.req("BF-4", "BF-22")
async def test_a_job_that_waits_for_its_hour_lets_the_next_work_and_has_its_turn_again(rig: BackfillRig) -> None:
    first = await rig.started(rate_limit_per_hour=8)
    rig.clock.advance(1)
    second = await rig.create()
    for _ in range(8):
        assert (await rig.admit(first.job_id)).is_admitted
    reply = await rig.report(first, rows_processed=8, cursor={"page": 1})
    assert (reply.status, reply.retry_after) == (BackfillStatus.PENDING, 3_600)
    assert reply.reason == "this hour's limit of 8 messages is reached"
    job = await rig.job(first.job_id)
    assert (job.rows_processed, job.cursor, job.lease_expires_at) == (8, {"page": 1}, None)
    next_one = await rig.take()
    assert next_one is not None
    assert next_one.job_id == second.id
    await rig.report(next_one, status="completed")
    rig.clock.advance(3_599)
    assert await rig.take() is None
    rig.clock.advance(1)
    again = await rig.take()
    assert again is not None
    assert (again.job_id, again.fence, again.cursor) == (first.job_id, 2, {"page": 1})
    assert await rig.actions(first.job_id) == ["create", "start", "wait", "start"]


@pytest.mark.req("BF-4")
async def test_a_job_is_handed_out_again_when_a_quarter_of_its_hour_is_free_not_for_every_message(
    rig: BackfillRig,
) -> None:
    work = await rig.started(rate_limit_per_hour=8)
    for _ in range(8):
        assert (await rig.admit(work.job_id)).is_admitted
        rig.clock.advance(10)
    await rig.report(work, rows_processed=8)
    rig.clock.advance(3_600 - 80)
    assert await rig.take() is None
    waiting = (await rig.service.show(work.job_id)).waiting
    assert waiting is not None
    assert waiting.text.startswith("This hour's limit of 8 messages is nearly reached; it goes on from ")
    rig.clock.advance(10)
    assert await rig.take() is not None


@pytest.mark.req("BF-4")
async def test_a_job_with_much_undecided_mail_is_handed_out_again_when_a_quarter_is_decided(rig: BackfillRig) -> None:
    work = await rig.started(rate_limit_per_hour=1_000)
    mails = [await rig.mail(work.job_id) for _ in range(UNDECIDED_LIMIT)]
    rig.clock.advance(60)
    reply = await rig.report(work)
    assert (reply.status, reply.reason) == (BackfillStatus.PENDING, "200 of its messages are not decided yet")
    for mail in mails[:50]:
        await rig.decide(mail)
    assert await rig.take() is None
    waiting = (await rig.service.show(work.job_id)).waiting
    assert waiting is not None
    assert waiting.text == "150 of its messages are not decided yet; it goes on when some are."
    await rig.decide(mails[50])
    assert await rig.take() is not None


@pytest.mark.req("BF-4")
async def test_a_job_whose_mail_is_decided_quickly_is_kept_and_waits_as_long_as_a_quarter_takes(
    rig: BackfillRig,
) -> None:
    work = await rig.started(rate_limit_per_hour=1_000_000)
    mails = []
    for _ in range(UNDECIDED_LIMIT):
        mails.append(await rig.mail(work.job_id))
        rig.clock.advance(0.1)
    refused = await rig.admit(work.job_id)
    assert not refused.is_admitted
    assert refused.retry_after == pytest.approx(5.0)
    assert (await rig.report(work)).status is BackfillStatus.ACTIVE
    await rig.decide(mails[0])
    assert (await rig.admit(work.job_id)).is_admitted


@pytest.mark.req("BF-4")
async def test_a_job_that_never_fills_its_hour_takes_turns_with_the_others(rig: BackfillRig) -> None:
    first = await rig.started(rate_limit_per_hour=1_000_000)
    rig.clock.advance(599)
    assert (await rig.report(first, rows_skipped=50)).status is BackfillStatus.ACTIVE
    rig.clock.advance(1)
    assert (await rig.report(first)).status is BackfillStatus.ACTIVE, "no other job waits"
    second, third = await rig.create(), await rig.create(rate_limit_per_hour=1)
    reply = await rig.report(first, cursor={"page": 2})
    assert (reply.status, reply.reason) == (BackfillStatus.PENDING, "another job of its mailbox has its turn")
    waiting = (await rig.service.show(first.job_id)).waiting
    assert waiting is not None
    assert waiting.text == "It waits for its turn: other jobs of this mailbox come first. It is number 3 of 3 in line."
    served = []
    for _ in range(4):
        work = await rig.take()
        assert work is not None
        served.append(work.job_id)
        if work.job_id == third.id:
            assert (await rig.admit(third.id)).is_admitted
        rig.clock.advance(60)
        assert (await rig.report(work)).status is (
            BackfillStatus.PENDING if work.job_id == third.id else BackfillStatus.ACTIVE
        )
        if work.job_id != third.id:
            rig.clock.advance(540)
            assert (await rig.report(work)).status is BackfillStatus.PENDING
    assert served == [second.id, third.id, first.job_id, second.id]
    assert (await rig.job(first.job_id)).cursor == {"page": 2}


@pytest.mark.req("BF-4")
async def test_a_job_says_why_it_waits_until_when_and_where_it_stands_in_line(rig: BackfillRig) -> None:
    full = await rig.started(rate_limit_per_hour=1)
    await rig.admit(full.job_id)
    await rig.report(full, rows_processed=1)
    rig.clock.advance(60)
    later = await rig.create()
    waiting = (await rig.service.show(later.id)).waiting
    assert waiting is not None
    assert (waiting.reason, waiting.until, waiting.place) == ("in_line", None, 1)
    assert waiting.text == (
        "It waits for its connector, which asks for work every minute. It is number 1 of 2 in line."
    )
    waiting = (await rig.service.show(full.job_id)).waiting
    assert waiting is not None
    assert (waiting.reason, waiting.until, waiting.place) == ("hour_full", rig.now + timedelta(seconds=3_540), 2)
    assert waiting.text.startswith("This hour's limit of one message is reached; it goes on from 2026-01-01 01:00 UTC.")
    await rig.take()
    last = await rig.create()
    waiting = (await rig.service.show(last.id)).waiting
    assert waiting is not None
    assert waiting.text.startswith("It waits for its turn: another job of this mailbox is at work.")
    await rig.service.turn_switch(OPERATOR, False)
    waiting = (await rig.service.show(full.job_id)).waiting
    assert waiting is not None
    assert waiting.reason == "switched_off"
    assert "off: switched off by olivia" in waiting.text
    assert "`postroom backfill switch on`" in waiting.text


@pytest.mark.req("WB-6")
async def test_turning_the_switch_off_stops_what_runs_and_on_again_hands_it_out(rig: BackfillRig) -> None:
    work = await rig.started()
    state = await rig.service.turn_switch(OPERATOR, False)
    assert not state.in_force
    assert (await rig.job(work.job_id)).status_reason == "backfill is off: switched off by olivia"
    refused = await rig.admit(work.job_id)
    assert (refused.verdict, refused.backfill_enabled) == (AdmissionVerdict.STOPPED, False)
    reply = await rig.report(work, rows_processed=4, cursor={"page": 4})
    assert (reply.status, reply.backfill_enabled) == (BackfillStatus.PENDING, False)
    poll = await rig.service.poll(CONNECTOR, "gmail", EMAIL)
    assert (poll.backfill_enabled, poll.job) == (False, None)
    await rig.service.turn_switch(OPERATOR, True)
    again = await rig.take()
    assert again is not None
    assert again.cursor == {"page": 4}
    assert (await rig.job(work.job_id)).rows_processed == 4
    assert await rig.actions(work.job_id) == ["create", "start", "switched_off", "start"]


@pytest.mark.req("WB-6")
async def test_the_environment_alone_keeps_backfill_off_and_stops_a_job_between_two_messages(
    rig: BackfillRig, database: Database, clock: ManualClock
) -> None:
    work = await rig.started()
    off = BackfillRig(database, clock, enabled=False)
    answer = await off.admit(work.job_id)
    assert (answer.verdict, answer.status) == (AdmissionVerdict.STOPPED, BackfillStatus.PENDING)
    assert answer.reason == "backfill is off: the settings do not allow it"
    with pytest.raises(SwitchedOff, match=r"settings do not allow it.*set BACKFILL_ENABLED=true.*restart"):
        await off.create()
    await off.service.turn_switch(OPERATOR, True)
    assert not (await off.service.switch()).in_force
    assert await off.take() is None


@pytest.mark.req("WB-6")
async def test_upkeep_stops_what_runs_where_the_environment_says_no(
    rig: BackfillRig, database: Database, clock: ManualClock
) -> None:
    work = await rig.started()
    assert (await BackfillRig(database, clock, enabled=False).service.upkeep())["switched_off"] == 1
    assert (await rig.job(work.job_id)).status is BackfillStatus.PENDING

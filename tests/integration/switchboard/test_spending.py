"""The budget of model calls: reserved for calls under way only, settled at once, never passed, and used up."""

from __future__ import annotations

import random
from datetime import date, timedelta
from typing import Any

import pytest
from sqlalchemy import select

from postroom.audit import Actor
from postroom.db import Database, Tx
from postroom.db.compiled import CompiledStatement
from postroom.db.tables.triage import model_reservations
from postroom.domain.clock import ManualClock
from postroom.domain.errors import BadInput
from postroom.domain.model_costs import days_for
from postroom.domain.money import Denial, Denied, Micros, Reserved
from postroom.domain.terms import BackfillStatus
from postroom.switchboard.backfill.job import IllegalTransition
from postroom.switchboard.backfill.ledger import Spend
from postroom.switchboard.spending import forgetting_reservations
from tests.support.backfills import ANSWER_LIMIT, CENT, OPERATOR, BackfillRig

DAY_S = 86_400
TODAY = date(2026, 1, 1)


def cents(n: int) -> Micros:
    return Micros(n * CENT)


def denied(answer: Reserved | Denied) -> Denied:
    assert isinstance(answer, Denied)
    return answer


@pytest.mark.req("BF-9")
async def test_only_a_call_under_way_holds_money(rig: BackfillRig) -> None:
    work = await rig.started(daily_cost_cap_cents=5)
    for _ in range(20):
        await rig.mail(work.job_id)
    assert (await rig.service.show(work.job_id)).today == Spend(TODAY)
    call = await rig.call(work.job_id, cents(3))
    assert (await rig.service.show(work.job_id)).today == Spend(TODAY, reserved=cents(3))
    await rig.settle(call, Micros(4_600))
    assert (await rig.service.show(work.job_id)).today == Spend(TODAY, settled=Micros(4_600))


@pytest.mark.req("BF-8", "BF-9")
async def test_a_message_without_room_waits_for_the_calls_under_way_and_the_job_goes_on(rig: BackfillRig) -> None:
    work = await rig.started(daily_cost_cap_cents=5)
    call = await rig.call(work.job_id, cents(4))
    waiting = await rig.mail(work.job_id)
    answer = denied(await rig.reserve(waiting, cents(4)))
    assert (answer.denial, answer.until) == (Denial.WAIT, rig.now + ANSWER_LIMIT)
    assert (await rig.job(work.job_id)).status is BackfillStatus.ACTIVE
    await rig.settle(call, Micros(500))
    assert await rig.is_released(waiting)
    assert isinstance(await rig.reserve(waiting, cents(4)), Reserved)


@pytest.mark.req("BF-8", "BF-22")
async def test_a_job_is_capped_only_when_nothing_is_under_way_and_says_what_was_spent(rig: BackfillRig) -> None:
    work = await rig.started(daily_cost_cap_cents=5)
    await rig.spend(work.job_id, cents(3))
    answer = denied(await rig.reserve(await rig.mail(work.job_id), cents(3)))
    job = await rig.job(work.job_id)
    assert (answer.denial, job.status) == (Denial.WAIT, BackfillStatus.COST_CAPPED)
    assert job.status_reason == (
        "the cap of $0.05 a day is reached: $0.03 spent; the next day begins 2026-01-02 00:00 UTC"
    )
    assert await rig.actions(work.job_id) == ["create", "start", "cost_cap"]


@pytest.mark.req("BF-9")
async def test_reservations_settled_long_ago_are_deleted_and_the_sums_stay(rig: BackfillRig) -> None:
    work = await rig.started(daily_cost_cap_cents=50)
    lost, ended = await rig.call(work.job_id, cents(2)), await rig.call(work.job_id, cents(3))
    await rig.settle(ended, cents(1))
    await rig.settle(lost, None)
    forget = forgetting_reservations(rig.database)
    assert await forget(rig.now + timedelta(days=29)) == 0
    assert await forget(rig.now + timedelta(days=31)) == 1, "what the lost one cost is still unknown"
    view = await rig.service.show(work.job_id)
    assert (view.today.settled, view.uncertain) == (cents(3), cents(2))


@pytest.mark.req("BF-8")
async def test_a_micro_dollar_of_an_open_call_keeps_no_job_capped(rig: BackfillRig) -> None:
    """One reservation left open by a provider that retries would have stopped the job for hours."""
    work = await rig.started(daily_cost_cap_cents=5)
    await rig.spend(work.job_id, cents(4))
    open_call = await rig.call(work.job_id, Micros(1))
    waiting = await rig.mail(work.job_id)
    assert denied(await rig.reserve(waiting, cents(1))).denial is Denial.WAIT
    assert (await rig.job(work.job_id)).status is BackfillStatus.ACTIVE
    await rig.settle(open_call, Micros(0))
    assert isinstance(await rig.reserve(waiting, cents(1)), Reserved)


@pytest.mark.req("BF-8")
async def test_nine_tenths_of_a_cap_of_ten_dearest_messages_can_be_used(rig: BackfillRig) -> None:
    work = await rig.started(daily_cost_cap_cents=10, rate_limit_per_hour=10_000)
    answers = 0
    while isinstance(reserved := await rig.reserve(await rig.mail(work.job_id), cents(1)), Reserved):
        await rig.settle(reserved.call_id, Micros(700))
        answers += 1
    today = (await rig.service.show(work.job_id)).today
    assert cents(9) <= today.settled <= cents(10)
    assert (answers, today.reserved) == (129, 0)


@pytest.mark.req("BF-8", "BF-19")
async def test_a_job_takes_as_many_days_as_its_estimate_says(rig: BackfillRig) -> None:
    dice = random.Random(5)
    mosts = [Micros(dice.randint(2_000, 12_000)) for _ in range(40)]
    calls = [(Micros(dice.randint(500, most)), most) for most in mosts]
    work = await rig.started(daily_cost_cap_cents=3, rate_limit_per_hour=10_000)
    for cost, most in calls:
        mail = await rig.mail(work.job_id)
        while not isinstance(reserved := await rig.reserve(mail, most), Reserved):
            rig.clock.advance(DAY_S)
        await rig.settle(reserved.call_id, cost)
    days = (await rig.service.show(work.job_id)).days
    assert len(days) == days_for(calls, cents(3)) > 3
    assert sum(day.settled for day in days) == sum(cost for cost, _ in calls)


@pytest.mark.req("BF-9")
async def test_sub_cent_amounts_are_kept_exactly_and_told_in_cents_rounded_up(rig: BackfillRig) -> None:
    work = await rig.started()
    for _ in range(7):
        await rig.settle(await rig.call(work.job_id, Micros(2_001)), Micros(1_501))
    job = await rig.job(work.job_id)
    assert (job.spent_microdollars, job.cost_spent_cents) == (10_507, 2)


@pytest.mark.req("BF-9")
async def test_settling_again_changes_nothing(rig: BackfillRig) -> None:
    work = await rig.started()
    call = await rig.call(work.job_id, cents(4))
    for cost in (cents(1), cents(2), None):
        await rig.settle(call, cost)
    assert (await rig.service.show(work.job_id)).today == Spend(TODAY, settled=cents(1))
    with pytest.raises(BadInput, match="cost: -1 is negative"):
        await rig.settle(call, Micros(-1))


@pytest.mark.req("BF-9")
async def test_a_call_without_an_answer_is_settled_at_its_most_by_the_next_one_and_corrected_once(
    rig: BackfillRig,
) -> None:
    work = await rig.started(daily_cost_cap_cents=5)
    lost = await rig.call(work.job_id, cents(3))
    rig.clock.advance(ANSWER_LIMIT.total_seconds())
    next_call = await rig.call(work.job_id, cents(1))
    view = await rig.service.show(work.job_id)
    assert (view.today, view.uncertain) == (Spend(TODAY, reserved=cents(1), settled=cents(3)), cents(3))
    await rig.settle(next_call, Micros(0))
    for cost in (cents(1), cents(2)):
        await rig.settle(lost, cost)
    view = await rig.service.show(work.job_id)
    assert (view.today, view.uncertain) == (Spend(TODAY, settled=cents(1)), 0)


@pytest.mark.req("BF-8", "BF-9")
async def test_a_late_answer_that_cost_less_lets_a_capped_job_go_on(rig: BackfillRig) -> None:
    work = await rig.started(daily_cost_cap_cents=5)
    lost = await rig.call(work.job_id, cents(4))
    rig.clock.advance(ANSWER_LIMIT.total_seconds())
    waiting = await rig.mail(work.job_id)
    assert denied(await rig.reserve(waiting, cents(2))).denial is Denial.WAIT
    assert (await rig.job(work.job_id)).status is BackfillStatus.COST_CAPPED
    await rig.settle(lost, cents(1))
    assert (await rig.job(work.job_id)).status is BackfillStatus.PENDING
    assert (await rig.actions(work.job_id))[-1] == "cap_room"
    assert isinstance(await rig.reserve(waiting, cents(2)), Reserved)


@pytest.mark.req("BF-9")
async def test_a_call_settled_after_midnight_counts_for_the_day_that_reserved_it(rig: BackfillRig) -> None:
    work = await rig.started()
    call = await rig.call(work.job_id, cents(4))
    rig.clock.advance(DAY_S)
    await rig.settle(call, cents(3))
    assert (await rig.service.show(work.job_id)).days == [Spend(TODAY, settled=cents(3))]


@pytest.mark.req("BF-8")
async def test_at_the_days_turn_a_capped_job_goes_on_by_itself_and_its_mail_too(rig: BackfillRig) -> None:
    work = await rig.started(daily_cost_cap_cents=5)
    await rig.spend(work.job_id, cents(5))
    waiting = await rig.mail(work.job_id)
    assert denied(await rig.reserve(waiting, cents(5))).until.isoformat() == "2026-01-02T00:00:00+00:00"
    rig.clock.advance(DAY_S - 1)
    await rig.service.upkeep()
    assert await rig.take() is None
    rig.clock.advance(1)
    assert (await rig.service.upkeep())["days_turned"] == 1
    assert await rig.take() is not None
    assert isinstance(await rig.reserve(waiting, cents(5)), Reserved)
    assert [day.total for day in (await rig.service.show(work.job_id)).days] == [cents(5), cents(5)]


@pytest.mark.req("BF-8")
async def test_the_day_turns_at_midnight_of_the_configured_zone(database: Database, clock: ManualClock) -> None:
    rig = await BackfillRig(database, clock, day_zone="America/New_York").prepare()
    work = await rig.started(daily_cost_cap_cents=1)
    await rig.spend(work.job_id, cents(1))
    await rig.reserve(await rig.mail(work.job_id))
    rig.clock.advance(5 * 3_600 - 1)
    assert (await rig.service.upkeep())["days_turned"] == 0
    rig.clock.advance(1)
    assert (await rig.service.upkeep())["days_turned"] == 1


@pytest.mark.req("BF-8")
async def test_going_on_by_itself_can_be_switched_off_and_an_operator_resumes_on_the_next_day(rig: BackfillRig) -> None:
    work = await rig.started(daily_cost_cap_cents=1, auto_resume=False)
    await rig.spend(work.job_id, cents(1))
    await rig.reserve(await rig.mail(work.job_id))
    with pytest.raises(IllegalTransition, match="can be resumed from 2026-01-02 00:00 UTC on"):
        await rig.service.resume(OPERATOR, work.job_id)
    rig.clock.advance(DAY_S)
    await rig.service.upkeep()
    assert (await rig.job(work.job_id)).status is BackfillStatus.COST_CAPPED
    assert (await rig.service.resume(OPERATOR, work.job_id)).status is BackfillStatus.PENDING


@pytest.mark.req("BF-9")
async def test_those_who_wait_are_served_in_the_order_of_their_acceptance_and_none_is_overtaken(
    rig: BackfillRig,
) -> None:
    work = await rig.started(daily_cost_cap_cents=5)
    call = await rig.call(work.job_id, cents(4))
    large, small = await rig.mail(work.job_id), await rig.mail(work.job_id)
    assert denied(await rig.reserve(large, cents(3))).denial is Denial.WAIT
    assert denied(await rig.reserve(small, cents(1))).denial is Denial.WAIT, "it would fit, but came later"
    await rig.settle(call, Micros(0))
    assert isinstance(await rig.reserve(large, cents(3)), Reserved)
    assert await rig.is_released(small), "the one before it got its money, so it may look"
    assert isinstance(await rig.reserve(small, cents(1)), Reserved)


@pytest.mark.req("BF-9")
async def test_mail_of_a_job_that_is_paused_or_switched_off_waits_and_of_a_cancelled_one_rules_decide(
    rig: BackfillRig,
) -> None:
    work = await rig.started()
    mail = await rig.mail(work.job_id)
    await rig.service.turn_switch(OPERATOR, False)
    assert "switched off" in denied(await rig.reserve(mail)).reason
    await rig.service.turn_switch(OPERATOR, True)
    await rig.service.pause(OPERATOR, work.job_id)
    answer = denied(await rig.reserve(mail))
    assert (answer.denial, answer.reason) == (Denial.WAIT, "its backfill job is paused")
    await rig.service.cancel(OPERATOR, work.job_id)
    assert await rig.is_released(mail)
    assert denied(await rig.reserve(mail)).denial is Denial.RULES_ONLY


@pytest.mark.req("BF-9")
async def test_a_message_dearer_than_a_whole_day_is_left_to_a_person(rig: BackfillRig) -> None:
    work = await rig.started(daily_cost_cap_cents=1)
    answer = denied(await rig.reserve(await rig.mail(work.job_id), cents(2)))
    assert answer.denial is Denial.NOT_ASKED
    assert answer.reason == "asking the model could cost $0.02, more than the $0.01 that a whole day may cost"
    assert (await rig.job(work.job_id)).status is BackfillStatus.ACTIVE


@pytest.mark.req("BF-9")
async def test_usage_beyond_what_a_call_could_cost_is_booked_and_stops_the_job(rig: BackfillRig) -> None:
    work = await rig.started(daily_cost_cap_cents=5)
    await rig.settle(await rig.call(work.job_id, cents(1)), cents(2))
    job = await rig.job(work.job_id)
    assert (job.status, job.spent_microdollars) == (BackfillStatus.ERROR, cents(2))
    assert "a model call cost $0.02, more than the $0.01 it could cost" in (job.error or "")


@pytest.mark.req("BF-9")
async def test_one_ceiling_holds_for_live_mail_and_backfill_together_and_backfill_has_its_share(
    database: Database, clock: ManualClock
) -> None:
    rig = await BackfillRig(database, clock, ceiling_cents=10).prepare()
    first, second = await rig.started(daily_cost_cap_cents=100), await rig.create(daily_cost_cap_cents=100)
    await rig.spend(first.job_id, cents(4))
    await rig.spend(second.id, cents(2))
    assert denied(await rig.reserve(await rig.mail(second.id))).denial is Denial.WAIT
    job = await rig.job(second.id)
    assert job.status is BackfillStatus.COST_CAPPED
    assert (job.status_reason or "").startswith("all backfill together may spend $0.06 a day, and has: $0.06 spent")
    live = await rig.call(None, cents(4))
    assert denied(await rig.reserve(await rig.mail(None))).denial is Denial.WAIT, "the call under way may cost less"
    await rig.settle(live, cents(4))
    answer = denied(await rig.reserve(await rig.mail(None)))
    assert (answer.denial, answer.reason) == (
        Denial.NOT_ASKED,
        "the ceiling of $0.10 a day for all model spend is reached",
    )


@pytest.mark.req("BF-8", "BF-9")
async def test_a_raised_ceiling_lets_jobs_go_on_that_it_had_stopped(database: Database, clock: ManualClock) -> None:
    rig = await BackfillRig(database, clock, ceiling_cents=10).prepare()
    work, by_hand = await rig.started(), await rig.create(auto_resume=False)
    await rig.spend(work.job_id, cents(6))
    mails = [await rig.mail(job_id) for job_id in (work.job_id, by_hand.id)]
    for mail in mails:
        assert denied(await rig.reserve(mail)).denial is Denial.WAIT
        assert (await rig.job(str(mail.backfill_job_id))).status is BackfillStatus.COST_CAPPED
    with pytest.raises(IllegalTransition, match="can be resumed from 2026-01-02 00:00 UTC on"):
        await rig.service.resume(OPERATOR, by_hand.id)
    await database.write(lambda tx: rig.budget.set_ceiling(tx, 20, Actor.of(OPERATOR)))
    assert (await rig.job(work.job_id)).status is BackfillStatus.PENDING
    assert isinstance(await rig.reserve(mails[0]), Reserved)
    assert (await rig.job(by_hand.id)).status is BackfillStatus.COST_CAPPED, "it asked not to go on by itself"
    assert (await rig.service.resume(OPERATOR, by_hand.id)).status is BackfillStatus.PENDING
    assert isinstance(await rig.reserve(mails[1]), Reserved)


@pytest.mark.req("BF-9")
async def test_mail_of_a_job_waits_while_nothing_may_be_spent_at_all(rig: BackfillRig) -> None:
    work = await rig.started()
    mail = await rig.mail(work.job_id)
    await rig.database.write(lambda tx: rig.budget.set_ceiling(tx, 0, Actor.of(OPERATOR)))
    assert denied(await rig.reserve(mail)).denial is Denial.WAIT, "not thousands of messages to review"
    job = await rig.job(work.job_id)
    assert job.status is BackfillStatus.COST_CAPPED
    assert (job.status_reason or "").startswith("the ceiling of $0.00 a day for all model spend is reached")
    await rig.database.write(lambda tx: rig.budget.set_ceiling(tx, 1_000, Actor.of(OPERATOR)))
    assert isinstance(await rig.reserve(mail), Reserved)


@pytest.mark.req("BF-8", "BF-9")
async def test_a_late_answer_of_one_job_makes_room_for_another_under_the_share(
    database: Database, clock: ManualClock
) -> None:
    rig = await BackfillRig(database, clock, ceiling_cents=10).prepare()
    first, second = await rig.started(), await rig.create()
    lost = await rig.call(first.job_id, cents(6))
    rig.clock.advance(ANSWER_LIMIT.total_seconds())
    waiting = await rig.mail(second.id)
    assert denied(await rig.reserve(waiting)).denial is Denial.WAIT
    assert (await rig.job(second.id)).status is BackfillStatus.COST_CAPPED
    await rig.settle(lost, cents(1))
    assert (await rig.job(second.id)).status is BackfillStatus.PENDING
    assert isinstance(await rig.reserve(waiting), Reserved)


@pytest.mark.req("BF-8")
async def test_mail_that_comes_back_at_midnight_does_not_wait_for_the_upkeep_to_turn_the_day(rig: BackfillRig) -> None:
    work = await rig.started(daily_cost_cap_cents=5)
    await rig.spend(work.job_id, cents(5))
    waiting = await rig.mail(work.job_id)
    await rig.reserve(waiting)
    rig.clock.advance(DAY_S)
    assert isinstance(await rig.reserve(waiting), Reserved)
    assert (await rig.actions(work.job_id))[-2:] == ["cost_cap", "day_turn"]


@pytest.mark.req("BF-8")
async def test_a_share_without_room_for_one_message_is_refused_before_anything_begins(
    database: Database, clock: ManualClock
) -> None:
    rig = await BackfillRig(database, clock, ceiling_cents=10, dearest_cents=7).prepare()
    with pytest.raises(BadInput, match=r"uses_model: .* all backfill together may spend \$0.06 a day: raise the"):
        await rig.create(daily_cost_cap_cents=100)
    assert not (await rig.create(uses_model=False)).uses_model


@pytest.mark.req("BF-9")
async def test_live_mail_never_waits_behind_the_mail_of_a_backfill(rig: BackfillRig) -> None:
    work = await rig.started(daily_cost_cap_cents=1)
    await rig.call(work.job_id, cents(1))
    assert denied(await rig.reserve(await rig.mail(work.job_id))).denial is Denial.WAIT
    assert isinstance(await rig.reserve(await rig.mail(None)), Reserved)


@pytest.mark.req("BF-9")
async def test_a_raised_ceiling_holds_from_then_on_and_is_audited(database: Database, clock: ManualClock) -> None:
    rig = await BackfillRig(database, clock, ceiling_cents=0).prepare()
    mail = await rig.mail(None)
    assert denied(await rig.reserve(mail)).denial is Denial.NOT_ASKED
    await database.write(lambda tx: rig.budget.set_ceiling(tx, 500, Actor.of(OPERATOR)))
    assert isinstance(await rig.reserve(mail), Reserved)
    in_force = await database.read(rig.budget.ceiling)
    assert (in_force.ceiling, in_force.backfill_share, in_force.changed_by) == (cents(500), cents(300), "olivia")


@pytest.mark.req("BF-6", "BF-8")
async def test_what_a_connector_spends_itself_counts_against_the_cap_of_its_job(rig: BackfillRig) -> None:
    work = await rig.started(daily_cost_cap_cents=100)
    assert (await rig.report(work, cost_spent_cents=40, report_seq=1)).status is BackfillStatus.ACTIVE
    assert (await rig.report(work, cost_spent_cents=40, report_seq=1)).status is BackfillStatus.ACTIVE, "repeated"
    assert denied(await rig.reserve(await rig.mail(work.job_id), cents(61))).denial is Denial.WAIT
    job = await rig.job(work.job_id)
    assert (job.status, job.cost_spent_cents) == (BackfillStatus.COST_CAPPED, 40)
    assert (await rig.service.show(work.job_id)).today == Spend(TODAY, reported=cents(40))
    assert (await rig.database.read(rig.budget.today)).settled == 0, "a connector cannot use up the ceiling"


@pytest.mark.req("BF-6")
async def test_a_report_that_reaches_the_cap_is_answered_with_cost_capped(rig: BackfillRig) -> None:
    work = await rig.started(daily_cost_cap_cents=100)
    assert (await rig.report(work, cost_spent_cents=1_000, report_seq=1)).status is BackfillStatus.COST_CAPPED
    assert (await rig.job(work.job_id)).cost_spent_cents == 1_000
    rig.clock.advance(DAY_S)
    await rig.service.upkeep()
    assert (await rig.job(work.job_id)).status is BackfillStatus.PENDING
    with pytest.raises(BadInput, match="report_seq: is needed with cost_spent_cents"):
        await rig.report(work, cost_spent_cents=1)


@pytest.mark.req("BF-6")
@pytest.mark.parametrize("status", ["completed", "error"])
async def test_a_last_report_that_reaches_the_cap_ends_the_job_all_the_same(rig: BackfillRig, status: str) -> None:
    work = await rig.started(daily_cost_cap_cents=100)
    assert (await rig.report(work, cost_spent_cents=100, report_seq=1, status=status)).status == status
    assert (await rig.job(work.job_id)).cost_spent_cents == 100


@pytest.mark.req("BF-6", "BF-9")
async def test_a_last_report_that_reaches_the_cap_leaves_the_rest_to_be_decided_on_the_next_day(
    rig: BackfillRig,
) -> None:
    work = await rig.started(daily_cost_cap_cents=100)
    mail = await rig.mail(work.job_id)
    reply = await rig.report(work, cost_spent_cents=100, report_seq=1, status="completed")
    assert reply.status is BackfillStatus.COST_CAPPED
    rig.clock.advance(DAY_S)
    assert await rig.take() is None, "all of its mail is in"
    await rig.decide(mail)
    assert (await rig.job(work.job_id)).status is BackfillStatus.COMPLETED


@pytest.mark.req("BF-9")
async def test_a_decision_locks_its_job_before_those_who_wait_as_a_settlement_does(
    rig: BackfillRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = await rig.started(daily_cost_cap_cents=1)
    under_way = await rig.call(work.job_id)
    first, second = [await rig.mail(work.job_id) for _ in range(2)]
    for mail in (first, second):
        assert denied(await rig.reserve(mail)).denial is Denial.WAIT
    said: list[str] = []
    execute, run = Tx.execute, CompiledStatement.run

    def heard(tx: Tx, statement: Any, parameters: Any = None) -> Any:
        said.append(str(statement))
        return execute(tx, statement, parameters)

    def heard_prepared(prepared: CompiledStatement, cursor: Any, given: Any) -> Any:
        said.append(prepared._sql)
        return run(prepared, cursor, given)

    with monkeypatch.context() as patched:
        patched.setattr(Tx, "execute", heard)
        patched.setattr(CompiledStatement, "run", heard_prepared)
        await rig.decide(first)
        decision = [_locks(text) for text in said if _locks(text)]
        said.clear()
        await rig.settle(under_way, CENT)
        settlement = [_locks(text) for text in said if _locks(text)]
    assert decision[:2] == settlement[:2] == ["the job", "those who wait"]


def _locks(statement: str) -> str | None:
    if (
        "backfill_jobs" in statement
        and statement.startswith("SELECT")
        and "WHERE" in statement
        and ".id = " in statement
    ):
        return "the job"
    return "those who wait" if statement.startswith("UPDATE jobs ") else None


@pytest.mark.req("BF-6")
async def test_what_is_reported_after_the_lease_was_lost_keeps_the_job_from_the_next_connector(
    rig: BackfillRig,
) -> None:
    work = await rig.started(daily_cost_cap_cents=100)
    rig.clock.advance(180)
    await rig.service.upkeep()
    assert (await rig.job(work.job_id)).status is BackfillStatus.PENDING
    assert (await rig.report(work, cost_spent_cents=100, report_seq=1)).status is BackfillStatus.COST_CAPPED
    assert await rig.take() is None


@pytest.mark.req("BF-8")
async def test_a_cap_below_the_dearest_message_is_refused_with_the_least_that_works(
    database: Database, clock: ManualClock
) -> None:
    rig = await BackfillRig(database, clock, dearest_cents=9).prepare()
    with pytest.raises(BadInput, match=r"daily_cost_cap_cents: .* the least cap that works is 9 cents"):
        await rig.create(daily_cost_cap_cents=8)
    assert (await rig.create(daily_cost_cap_cents=9)).uses_model
    assert not (await rig.create(daily_cost_cap_cents=1, uses_model=False)).uses_model


@pytest.mark.req("BF-9")
async def test_a_job_whose_mail_is_all_in_is_completed_once_it_is_all_decided(rig: BackfillRig) -> None:
    work = await rig.started()
    mails = [await rig.mail(work.job_id) for _ in range(2)]
    assert (await rig.report(work, rows_processed=2, status="completed")).status is BackfillStatus.ACTIVE
    assert (await rig.service.show(work.job_id)).undecided == 2
    assert await rig.take() is None, "it is no longer handed out"
    await rig.decide(mails[0])
    assert (await rig.job(work.job_id)).status is BackfillStatus.ACTIVE
    await rig.decide(mails[1])
    job = await rig.job(work.job_id)
    assert (job.status, job.completed_at) == (BackfillStatus.COMPLETED, rig.now)


@pytest.mark.req("BF-9")
async def test_mail_that_the_queue_gave_up_holds_no_job_up_and_is_counted(rig: BackfillRig) -> None:
    work = await rig.started()
    mail = await rig.mail(work.job_id)
    await rig.report(work, rows_processed=1, status="completed")
    await rig.queue.cancel(str(mail.queue_job_id))
    assert (await rig.service.upkeep())["given_up"] == 1
    view = await rig.service.show(work.job_id)
    assert (view.job.status, view.undecided, view.never_judged) == (BackfillStatus.COMPLETED, 0, 1)


@pytest.mark.req("BF-9")
async def test_a_connector_is_slowed_down_by_what_waits_undecided_and_not_by_money(rig: BackfillRig) -> None:
    work = await rig.started(rate_limit_per_hour=1_000, daily_cost_cap_cents=1)
    for _ in range(200):
        assert (await rig.admit(work.job_id)).is_admitted
        await rig.mail(work.job_id)
    rig.clock.advance(60)
    answer = await rig.admit(work.job_id)
    assert (answer.verdict, answer.retry_after) == ("wait", 30.0)
    assert answer.reason == "200 of its messages are not decided yet"


@pytest.mark.req("BF-9")
async def test_a_call_that_was_never_answered_does_not_stay_reserved_where_nobody_asks_again(rig: BackfillRig) -> None:
    work = await rig.started()
    await rig.call(work.job_id, cents(2))
    rig.clock.advance(ANSWER_LIMIT.total_seconds() - 1)
    assert (await rig.service.upkeep())["uncertain"] == 0
    rig.clock.advance(1)
    assert (await rig.service.upkeep())["uncertain"] == 1
    view = await rig.service.show(work.job_id)
    assert (view.today, view.uncertain) == (Spend(TODAY, settled=cents(2)), cents(2))


async def test_an_expired_call_of_yesterday_is_settled_on_its_own_day(rig: BackfillRig) -> None:
    work = await rig.started()
    await rig.call(work.job_id, cents(2))
    rig.clock.advance(DAY_S)
    await rig.call(work.job_id, cents(1))
    days = (await rig.service.show(work.job_id)).days
    assert days == [Spend(TODAY, settled=cents(2)), Spend(TODAY + timedelta(days=1), reserved=cents(1))]
    states = await rig.database.read(lambda tx: list(tx.execute(select(model_reservations.c.state)).scalars()))
    assert sorted(states) == ["reserved", "uncertain"]

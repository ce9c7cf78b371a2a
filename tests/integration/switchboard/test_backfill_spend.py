"""The budget: reserved, settled, capped, and free again, to the micro-dollar."""

from __future__ import annotations

from datetime import date
from functools import partial
from typing import Any

import pytest

from postroom.db import Database
from postroom.domain.backfill import BackfillStatus
from postroom.domain.clock import ManualClock
from postroom.domain.errors import BadInput
from postroom.domain.money import Micros
from postroom.switchboard.backfill.admission import AdmissionVerdict, JobSpending
from postroom.switchboard.backfill.job import IllegalTransition
from postroom.switchboard.backfill.ledger import Spend
from tests.support.backfills import CENT, OPERATOR, BackfillRig

DAY_S = 86_400


def cents(n: int) -> Micros:
    return Micros(n * CENT)


@pytest.mark.req("BF-8", "BF-9", "BF-22")
async def test_a_message_that_does_not_fit_under_the_cap_stops_the_job_and_is_not_let_in(rig: BackfillRig) -> None:
    work = await rig.started(daily_cost_cap_cents=5)
    assert (await rig.admit(work.job_id, "m1", cents(3))).is_admitted
    answer = await rig.admit(work.job_id, "m2", cents(3))
    assert (answer.verdict, answer.status) == (AdmissionVerdict.STOPPED, BackfillStatus.COST_CAPPED)
    assert "the cap of $0.05 a day is reached: $0.00 spent, $0.03 reserved" in (answer.reason or "")
    view = await rig.service.show(work.job_id)
    assert (view.today, view.admitted_last_hour) == (Spend(date(2026, 1, 1), cents(3), Micros(0)), 1)
    assert (await rig.report(work, rows_processed=1)).status is BackfillStatus.COST_CAPPED
    assert (await rig.job(work.job_id)).rows_processed == 1
    assert await rig.actions(work.job_id) == ["create", "start", "cost_cap"]


@pytest.mark.req("BF-8")
async def test_a_cap_that_is_used_up_exactly_stops_the_job_at_the_next_report(rig: BackfillRig) -> None:
    work = await rig.started(daily_cost_cap_cents=3)
    assert (await rig.admit(work.job_id, "m1", cents(3))).is_admitted
    assert (await rig.report(work, rows_processed=1)).status is BackfillStatus.COST_CAPPED


@pytest.mark.req("BF-9")
async def test_sub_cent_amounts_are_kept_exactly_and_told_in_cents_rounded_up(rig: BackfillRig) -> None:
    work = await rig.started()
    for n in range(7):
        await rig.admit(work.job_id, f"m{n}", Micros(2_001))
        await rig.settle(work.job_id, f"m{n}", Micros(1_501))
    job = await rig.job(work.job_id)
    assert (job.spent_microdollars, job.cost_spent_cents) == (10_507, 2)
    assert (await rig.service.show(work.job_id)).today == Spend(date(2026, 1, 1), Micros(0), Micros(10_507))


@pytest.mark.req("BF-9")
async def test_reserving_and_settling_again_changes_nothing(rig: BackfillRig) -> None:
    work = await rig.started()
    for _ in range(2):
        assert (await rig.admit(work.job_id, "m1", cents(4))).is_admitted
    for cost in (cents(1), cents(2)):
        await rig.settle(work.job_id, "m1", cost)
    assert (await rig.admit(work.job_id, "m1", cents(4))).is_admitted
    assert (await rig.service.show(work.job_id)).today == Spend(date(2026, 1, 1), Micros(0), cents(1))
    assert (await rig.release(work.job_id, "m1")).spent_microdollars == cents(1)


@pytest.mark.req("BF-9")
async def test_what_is_released_is_free_again_and_can_be_reserved_anew(rig: BackfillRig) -> None:
    work = await rig.started(daily_cost_cap_cents=5)
    await rig.admit(work.job_id, "m1", cents(4))
    for _ in range(2):
        await rig.release(work.job_id, "m1")
    assert (await rig.service.show(work.job_id)).today.total == 0
    assert (await rig.admit(work.job_id, "m1", cents(5))).is_admitted


@pytest.mark.req("BF-8")
async def test_at_the_days_turn_a_capped_job_goes_on_by_itself_with_a_new_budget(rig: BackfillRig) -> None:
    work = await rig.started(daily_cost_cap_cents=5)
    await rig.admit(work.job_id, "m1", cents(5))
    await rig.settle(work.job_id, "m1", cents(5))
    assert (await rig.job(work.job_id)).status is BackfillStatus.COST_CAPPED
    rig.clock.advance(DAY_S - 1)
    await rig.service.upkeep()
    assert await rig.take() is None
    rig.clock.advance(1)
    again = await rig.take()
    assert again is not None
    assert (await rig.admit(work.job_id, "m2", cents(5))).is_admitted
    await rig.settle(work.job_id, "m2", cents(5))
    assert (await rig.job(work.job_id)).cost_spent_cents == 10
    assert [spend.settled for spend in (await rig.service.show(work.job_id)).days] == [cents(5), cents(5)]
    assert await rig.actions(work.job_id) == ["create", "start", "cost_cap", "day_turn", "start", "cost_cap"]


@pytest.mark.req("BF-8")
async def test_the_day_turns_at_midnight_of_the_configured_zone(database: Database, clock: ManualClock) -> None:
    rig = await BackfillRig(database, clock, day_zone="America/New_York").prepare()
    work = await rig.started(daily_cost_cap_cents=1)
    await rig.admit(work.job_id, "m1", cents(1))
    await rig.report(work)
    rig.clock.advance(5 * 3_600 - 1)
    assert (await rig.service.upkeep())["days_turned"] == 0
    rig.clock.advance(1)
    assert (await rig.service.upkeep())["days_turned"] == 1


@pytest.mark.req("BF-8")
async def test_going_on_by_itself_can_be_switched_off_and_an_operator_resumes_on_the_next_day(rig: BackfillRig) -> None:
    work = await rig.started(daily_cost_cap_cents=1, auto_resume=False)
    await rig.admit(work.job_id, "m1", cents(1))
    await rig.settle(work.job_id, "m1", cents(1))
    with pytest.raises(IllegalTransition, match="can be resumed from 2026-01-02 00:00 UTC on"):
        await rig.service.resume(OPERATOR, work.job_id)
    rig.clock.advance(DAY_S)
    await rig.service.upkeep()
    assert (await rig.job(work.job_id)).status is BackfillStatus.COST_CAPPED
    assert (await rig.service.resume(OPERATOR, work.job_id)).status is BackfillStatus.PENDING


@pytest.mark.req("BF-8", "BF-9")
async def test_a_job_stopped_by_reservations_goes_on_once_they_are_settled_for_less(rig: BackfillRig) -> None:
    work = await rig.started(daily_cost_cap_cents=5)
    for n in (1, 2):
        await rig.admit(work.job_id, f"m{n}", cents(2))
    assert (await rig.admit(work.job_id, "m3", cents(2))).status is BackfillStatus.COST_CAPPED
    await rig.settle(work.job_id, "m1", Micros(500))
    assert (await rig.job(work.job_id)).status is BackfillStatus.COST_CAPPED
    await rig.settle(work.job_id, "m2", Micros(500))
    assert (await rig.job(work.job_id)).status is BackfillStatus.PENDING
    assert (await rig.actions(work.job_id))[-1] == "cap_room"


@pytest.mark.req("BF-9")
async def test_a_call_settled_after_midnight_counts_for_the_day_that_reserved_it(rig: BackfillRig) -> None:
    work = await rig.started()
    await rig.admit(work.job_id, "m1", cents(4))
    rig.clock.advance(DAY_S)
    await rig.settle(work.job_id, "m1", cents(3))
    assert (await rig.service.show(work.job_id)).days == [Spend(date(2026, 1, 1), Micros(0), cents(3))]


@pytest.mark.req("BF-9")
async def test_without_a_price_nothing_comes_in_and_the_job_says_why(rig: BackfillRig) -> None:
    work = await rig.started()
    answer = await rig.admit(work.job_id, "m1", None)
    assert (answer.verdict, answer.status) == (AdmissionVerdict.STOPPED, BackfillStatus.ERROR)
    assert "what a message costs is not known" in (answer.reason or "")
    assert (await rig.actions(work.job_id))[-1] == "meter_loss"
    assert not (await rig.admit(work.job_id, "m2", Micros(0))).is_admitted


@pytest.mark.req("BF-9")
async def test_a_message_dearer_than_a_whole_day_ends_in_an_error_and_not_in_a_cap_without_end(
    rig: BackfillRig,
) -> None:
    work = await rig.started(daily_cost_cap_cents=1)
    answer = await rig.admit(work.job_id, "m1", cents(2))
    assert answer.status is BackfillStatus.ERROR
    assert "one message may cost $0.02, more than the cap of $0.01 a day" in (answer.reason or "")


@pytest.mark.req("BF-9")
async def test_money_spent_beyond_what_was_set_aside_is_written_down_and_stops_the_job(rig: BackfillRig) -> None:
    work = await rig.started(daily_cost_cap_cents=5)
    await rig.admit(work.job_id, "m1", cents(1))
    assert (await rig.settle(work.job_id, "m1", cents(6))).status is BackfillStatus.COST_CAPPED
    assert (await rig.settle(work.job_id, "never reserved", cents(1))).cost_spent_cents == 7
    assert (await rig.service.show(work.job_id)).today == Spend(date(2026, 1, 1), Micros(0), cents(7))


async def test_mail_that_needs_no_model_costs_nothing_but_its_place_in_the_hour(rig: BackfillRig) -> None:
    work = await rig.started(rate_limit_per_hour=1)
    assert (await rig.admit(work.job_id, "m1", Micros(0))).is_admitted
    assert (await rig.service.show(work.job_id)).days == []
    assert (await rig.admit(work.job_id, "m2", Micros(0))).verdict is AdmissionVerdict.WAIT


async def test_a_negative_amount_is_refused(rig: BackfillRig) -> None:
    work = await rig.started()
    with pytest.raises(BadInput, match="amount: -1 is negative"):
        await rig.settle(work.job_id, "m1", Micros(-1))
    with pytest.raises(BadInput, match="amount: -1 is negative"):
        await rig.admit(work.job_id, "m1", Micros(-1))


@pytest.mark.req("BF-9")
async def test_a_message_that_is_judged_again_and_again_is_paid_for_each_time_and_counted_once(
    rig: BackfillRig,
) -> None:
    spending = JobSpending(rig.settings, rig.clock)
    work = await rig.started(daily_cost_cap_cents=100)
    await rig.admit(work.job_id, "m", cents(1))
    await rig.admit(work.job_id, "m1", cents(1))
    for times in range(1, 21):
        so_far: dict[str, Any] = {"job_id": work.job_id, "message_ref": "m", "total": cents(times)}
        assert await rig.database.write(partial(spending.afford, **so_far))
        for _ in range(2):
            await rig.database.write(partial(spending.settle, **so_far))
    today = (await rig.service.show(work.job_id)).today
    assert (today.settled, today.reserved) == (cents(20), cents(1)), "what is set aside for another stays so"

"""What reports do to a job, and what they never do."""

from __future__ import annotations

from typing import Any

import pytest

from postroom.domain.errors import BadInput
from postroom.domain.terms import BackfillStatus
from postroom.switchboard.backfill.leases import ProgressReport
from tests.support.backfills import CONNECTOR, OPERATOR, BackfillRig

JOB = "01990000-0000-7000-8000-000000000000"


@pytest.mark.req("BF-6")
async def test_reports_add_up_and_keep_the_last_cursor(rig: BackfillRig) -> None:
    work = await rig.started()
    await rig.report(work, rows_processed=50, rows_skipped=3, cursor={"page": 1})
    await rig.report(work, rows_processed=20, rows_skipped=1)
    job = await rig.job(work.job_id)
    assert (job.rows_processed, job.rows_skipped, job.cursor) == (70, 4, {"page": 1})


@pytest.mark.req("BF-6")
async def test_a_report_that_is_repeated_changes_nothing(rig: BackfillRig) -> None:
    work = await rig.started()
    for _ in range(3):
        await rig.report(work, rows_processed=50, cursor={"page": 1}, report_seq=1)
    await rig.report(work, rows_processed=7, cursor={"page": 2}, report_seq=2)
    await rig.report(work, rows_processed=50, cursor={"page": 1}, report_seq=1)
    job = await rig.job(work.job_id)
    assert (job.rows_processed, job.cursor) == (57, {"page": 2})


@pytest.mark.req("BF-6")
async def test_numbers_of_reports_begin_anew_with_each_lease(rig: BackfillRig) -> None:
    work = await rig.started()
    await rig.report(work, rows_processed=5, report_seq=9)
    rig.clock.advance(180)
    again = await rig.take()
    assert again is not None
    await rig.report(again, rows_processed=5, report_seq=1)
    assert (await rig.job(work.job_id)).rows_processed == 10


@pytest.mark.req("BF-6")
async def test_a_pause_between_two_reports_stands_and_the_last_batch_still_counts(rig: BackfillRig) -> None:
    for claim in (None, "completed", "error"):
        work = await rig.started()
        await rig.service.pause(OPERATOR, work.job_id)
        reply = await rig.report(work, rows_processed=8, rows_skipped=2, cursor={"page": 3}, status=claim)
        assert (reply.status, reply.reason) == (BackfillStatus.PAUSED, "paused by olivia")
        job = await rig.job(work.job_id)
        assert (job.rows_processed, job.rows_skipped, job.cursor, job.error) == (8, 2, {"page": 3}, None)
        await rig.service.cancel(OPERATOR, work.job_id)


@pytest.mark.req("BF-6")
async def test_a_cancel_between_two_reports_stands_and_the_last_batch_still_counts(rig: BackfillRig) -> None:
    work = await rig.started()
    await rig.service.cancel(OPERATOR, work.job_id)
    assert (await rig.report(work, rows_processed=8, status="completed")).status is BackfillStatus.CANCELLED
    assert (await rig.job(work.job_id)).rows_processed == 8


@pytest.mark.req("BF-6")
async def test_resumed_before_the_connector_noticed_it_stops_and_takes_the_job_anew(rig: BackfillRig) -> None:
    work = await rig.started()
    await rig.service.pause(OPERATOR, work.job_id)
    await rig.service.resume(OPERATOR, work.job_id)
    assert (await rig.report(work, rows_processed=8, cursor={"page": 1})).status is BackfillStatus.PENDING
    again = await rig.take()
    assert again is not None
    assert (again.fence, again.cursor) == (2, {"page": 1})


@pytest.mark.req("BF-6", "BF-22")
async def test_the_connector_ends_a_job_and_whatever_it_says_after_that_changes_nothing(rig: BackfillRig) -> None:
    work = await rig.started()
    assert (await rig.report(work, rows_processed=8, status="completed")).status is BackfillStatus.COMPLETED
    job = await rig.job(work.job_id)
    assert job.completed_at == rig.now
    assert (await rig.report(work, rows_processed=8, status="completed")).status is BackfillStatus.COMPLETED
    assert (await rig.report(work, rows_processed=8, status="error", error="x")).status is BackfillStatus.COMPLETED
    assert await rig.job(work.job_id) == job
    last = (await rig.entries(work.job_id))[-1]
    assert (last.action, last.actor.name) == ("backfill.complete", CONNECTOR.name)


@pytest.mark.req("BF-6", "BF-22")
async def test_an_error_is_kept_with_its_words_and_can_be_resumed(rig: BackfillRig) -> None:
    work = await rig.started()
    reply = await rig.report(work, status="error", error="the mailbox is gone", cursor={"page": 5})
    assert (reply.status, reply.reason) == (BackfillStatus.ERROR, "the mailbox is gone")
    assert (await rig.actions(work.job_id))[-1] == "error"
    resumed = await rig.service.resume(OPERATOR, work.job_id)
    assert (resumed.status, resumed.error) == (BackfillStatus.PENDING, None)
    again = await rig.take()
    assert again is not None
    assert again.cursor == {"page": 5}


@pytest.mark.req("BF-10")
async def test_a_report_says_how_long_to_wait_while_the_hour_is_full(rig: BackfillRig) -> None:
    work = await rig.started(rate_limit_per_hour=1)
    assert (await rig.report(work)).retry_after is None
    await rig.admit(work.job_id)
    reply = await rig.report(work)
    assert (reply.status, reply.retry_after) == (BackfillStatus.PENDING, 3_600)
    rig.clock.advance(3_590)
    assert (await rig.report(work)).retry_after == 10, "a connector that asks once more is told the same"


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"rows_processed": -1}, "rows_processed"),
        ({"rows_processed": True}, "rows_processed"),
        ({"rows_skipped": 2**40}, "rows_skipped"),
        ({"cost_spent_cents": 0.5}, "cost_spent_cents"),
        ({"fence": 0}, "fence"),
        ({"fence": "1"}, "fence"),
        ({"report_seq": 0}, "report_seq"),
        ({"status": "paused"}, "status"),
        ({"status": "cost_capped"}, "status"),
        ({"error": "x"}, "error"),
        ({"cursor": [1]}, "cursor"),
        ({"cursor": {"x": float("nan")}}, "cursor"),
        ({"cursor": {"x": "y" * 70_000}}, "cursor"),
    ],
)
def test_a_report_that_makes_no_sense_is_refused_by_field(values: dict[str, Any], field: str) -> None:
    whole: dict[str, Any] = {"job_id": JOB, "fence": 1} | values
    with pytest.raises(BadInput) as refusal:
        ProgressReport(**whole)
    assert refusal.value.field == field

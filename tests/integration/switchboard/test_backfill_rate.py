"""The sliding hour in the database: it outlives pauses, restarts and clocks that are set back."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import func, select

from postroom.db import connect
from postroom.db.tables.mail import backfill_rate
from postroom.domain.clock import ManualClock
from postroom.domain.money import Micros
from postroom.switchboard.backfill.admission import AdmissionVerdict
from tests.support.backfills import OPERATOR, BackfillRig
from tests.support.databases import SqliteFactory

FREE = Micros(0)


@pytest.mark.req("BF-10")
async def test_the_limit_holds_over_pause_resume_and_another_connector(rig: BackfillRig) -> None:
    work = await rig.started(rate_limit_per_hour=3)
    for _ in range(3):
        assert (await rig.admit(work.job_id)).is_admitted
        rig.clock.advance(60)
    await rig.service.pause(OPERATOR, work.job_id)
    await rig.service.resume(OPERATOR, work.job_id)
    assert await rig.take() is None
    waiting = (await rig.service.show(work.job_id)).waiting
    assert waiting is not None
    assert waiting.until == rig.now + timedelta(seconds=3_600 - 180)
    rig.clock.advance(3_600 - 180)
    await rig.take()
    assert (await rig.admit(work.job_id)).is_admitted
    assert (await rig.admit(work.job_id)).verdict is AdmissionVerdict.WAIT


@pytest.mark.req("BF-10")
async def test_a_clock_that_is_set_back_blocks_a_job_for_an_hour_and_not_for_a_year(rig: BackfillRig) -> None:
    work = await rig.started(rate_limit_per_hour=1)
    rig.clock.advance(timedelta(days=365).total_seconds())
    await rig.report(work)
    assert (await rig.admit(work.job_id)).is_admitted
    rig.clock.advance(-timedelta(days=365).total_seconds())
    assert (await rig.admit(work.job_id)).verdict is AdmissionVerdict.WAIT
    await rig.report(work)
    rig.clock.advance(3_600)
    assert await rig.take() is not None
    assert (await rig.admit(work.job_id)).is_admitted


async def test_a_fast_job_shares_rows_and_old_ones_are_forgotten(rig: BackfillRig) -> None:
    work = await rig.started(rate_limit_per_hour=100_000)
    for _ in range(50):
        rig.clock.advance(0.05)
        assert (await rig.admit(work.job_id)).is_admitted
    rows = await rig.database.read(lambda tx: tx.execute(select(func.count()).select_from(backfill_rate)).scalar_one())
    assert rows <= 2
    assert (await rig.service.show(work.job_id)).admitted_last_hour == 50
    rig.clock.advance(3_604)
    await rig.take()
    assert (await rig.admit(work.job_id)).is_admitted
    assert (await rig.service.show(work.job_id)).admitted_last_hour == 1


moves = st.lists(
    st.tuples(
        st.sampled_from(["admit", "admit", "admit", "pause", "restart"]), st.sampled_from([0, 1, 600, 1_800, 3_600])
    ),
    max_size=25,
)


@pytest.mark.req("BF-10")
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(limit=st.integers(1, 4), moves=moves)
async def test_no_hour_of_a_job_that_is_paused_and_restarted_at_will_holds_more_than_its_limit(
    sqlite_factory: SqliteFactory, limit: int, moves: list[tuple[str, int]]
) -> None:
    url, clock = sqlite_factory.url(), ManualClock()
    rig = await BackfillRig(await connect(url), clock, lease_s=3_600).prepare()
    job = await rig.create(rate_limit_per_hour=limit)
    admitted = []
    for move, seconds in moves:
        clock.advance(seconds)
        if move == "pause":
            await rig.service.pause(OPERATOR, job.id)
            await rig.service.resume(OPERATOR, job.id)
        elif move == "restart":
            await rig.database.close()
            rig = BackfillRig(await connect(url), clock, lease_s=3_600)
        await rig.take()
        if (await rig.admit(job.id)).is_admitted:
            admitted.append(clock.now())
    await rig.database.close()
    hour = timedelta(hours=1)
    assert all(sum(first <= other < first + hour for other in admitted) <= limit for first in admitted)

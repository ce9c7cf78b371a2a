"""Operators, connectors and workers at the same moment, each in a transaction of its own."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from postroom.audit import Actor
from postroom.db import Tx, connect
from postroom.domain.clock import ManualClock
from postroom.domain.money import Denied, Micros, Reserved
from postroom.domain.terms import BackfillStatus
from postroom.settings import DatabaseSettings
from postroom.switchboard.backfill.job import IllegalTransition
from tests.support.backfills import CENT, CONNECTOR, OPERATOR, RIVAL, BackfillRig
from tests.support.databases import DatabaseFactory

ROUNDS = 12


@pytest.fixture
async def rigs(database_factory: DatabaseFactory) -> AsyncIterator[tuple[BackfillRig, BackfillRig]]:
    """Two processes' worth of connections to one database."""
    url, clock = database_factory.url(), ManualClock()
    settings = DatabaseSettings(synchronous="normal")
    first, second = await connect(url, settings), await connect(url, settings)
    yield await BackfillRig(first, clock).prepare(), BackfillRig(second, clock)
    await first.close()
    await second.close()


@pytest.mark.req("BF-4")
async def test_many_pollers_never_get_the_same_job_and_no_job_is_left_behind(
    rigs: tuple[BackfillRig, BackfillRig],
) -> None:
    here, there = rigs
    made = {(await here.create()).id for _ in range(ROUNDS)}
    polls = [rig.take(who) for _ in range(ROUNDS) for rig, who in ((here, CONNECTOR), (there, RIVAL))]
    taken = [work.job_id for work in await asyncio.gather(*polls) if work is not None]
    assert Counter(taken) == Counter(made)


@pytest.mark.req("BF-5")
async def test_a_lost_job_goes_to_one_of_its_heirs(rigs: tuple[BackfillRig, BackfillRig]) -> None:
    here, there = rigs
    work = await here.started()
    for generation in range(2, 8):
        here.clock.advance(180)
        heirs = await asyncio.gather(here.take(CONNECTOR), there.take(RIVAL), here.take(CONNECTOR))
        assert [heir.fence for heir in heirs if heir is not None] == [generation]
    losses = (await here.actions(work.job_id)).count("lease_loss")
    assert losses == 6


@pytest.mark.req("BF-6")
async def test_a_pause_that_races_a_report_is_never_lost_and_neither_is_the_batch(
    rigs: tuple[BackfillRig, BackfillRig],
) -> None:
    here, there = rigs
    for _ in range(ROUNDS):
        work = await here.started()
        reply, paused = await asyncio.gather(
            there.report(work, rows_processed=5, cursor={"page": 1}), here.service.pause(OPERATOR, work.job_id)
        )
        assert paused.status is BackfillStatus.PAUSED
        assert reply.status in (BackfillStatus.ACTIVE, BackfillStatus.PAUSED)
        job = await here.job(work.job_id)
        assert (job.status, job.rows_processed, job.cursor) == (BackfillStatus.PAUSED, 5, {"page": 1})


@pytest.mark.req("BF-6", "BF-7")
async def test_of_a_completion_and_a_cancel_one_comes_first_and_stands(rigs: tuple[BackfillRig, BackfillRig]) -> None:
    here, there = rigs
    for _ in range(ROUNDS):
        work = await here.started()
        reply, cancelled = await asyncio.gather(
            there.report(work, rows_processed=5, status="completed"),
            here.service.cancel(OPERATOR, work.job_id),
            return_exceptions=True,
        )
        job = await here.job(work.job_id)
        assert job.rows_processed == 5
        if isinstance(cancelled, IllegalTransition):
            assert job.status is BackfillStatus.COMPLETED
        else:
            assert job.status is BackfillStatus.CANCELLED
        assert not isinstance(reply, BaseException)
        assert reply.status is job.status


@pytest.mark.req("BF-6")
async def test_a_report_sent_many_times_at_once_counts_once(rigs: tuple[BackfillRig, BackfillRig]) -> None:
    here, there = rigs
    work = await here.started()
    await asyncio.gather(*(rig.report(work, rows_processed=5, report_seq=1) for rig in rigs for _ in range(6)))
    assert (await there.job(work.job_id)).rows_processed == 5


@pytest.mark.req("BF-8", "BF-9")
async def test_a_call_that_waits_while_the_ceiling_is_lowered_counts_against_the_new_one(
    rigs: tuple[BackfillRig, BackfillRig],
) -> None:
    here, there = rigs
    await here.settle(await here.call(None), Micros(0))  # the day has its row
    mail, lowered, go_on, loop = await there.mail(None), asyncio.Event(), threading.Event(), asyncio.get_running_loop()

    def lower(tx: Tx) -> None:
        here.budget.set_ceiling(tx, 0, Actor.of(OPERATOR))
        loop.call_soon_threadsafe(lowered.set)
        assert go_on.wait(30)

    lowering = asyncio.ensure_future(here.database.write(lower))
    await lowered.wait()
    asking = asyncio.ensure_future(there.reserve(mail))
    await asyncio.sleep(0.2)  # so that it waits for the day
    go_on.set()
    await lowering
    assert isinstance(await asking, Denied)


@pytest.mark.req("BF-8", "BF-9")
async def test_reservations_that_race_never_pass_the_cap(rigs: tuple[BackfillRig, BackfillRig]) -> None:
    here, there = rigs
    work = await here.started(daily_cost_cap_cents=5)
    mails = [await here.mail(work.job_id) for _ in range(30)]
    most = 0

    async def watch() -> None:
        nonlocal most
        while True:
            most = max(most, (await here.service.show(work.job_id)).today.total)
            await asyncio.sleep(0)

    watcher = asyncio.create_task(watch())
    answers = await asyncio.gather(*(rigs[n % 2].reserve(mail, CENT) for n, mail in enumerate(mails)))
    watcher.cancel()
    assert sum(isinstance(answer, Reserved) for answer in answers) == 5
    assert (await there.service.show(work.job_id)).today.total == 5 * CENT
    assert most <= 5 * CENT


@pytest.mark.req("BF-9")
async def test_settlements_that_race_reservations_keep_the_books_exact(rigs: tuple[BackfillRig, BackfillRig]) -> None:
    here, there = rigs
    work = await here.started(daily_cost_cap_cents=30)
    old = [await here.call(work.job_id) for _ in range(10)]
    mails = [await here.mail(work.job_id) for _ in range(10)]
    await asyncio.gather(
        *(there.settle(call, Micros(7_001)) for call in old),
        *(here.reserve(mail) for mail in mails),
        *(here.settle(call, Micros(9_001)) for call in reversed(old)),
    )
    view = await here.service.show(work.job_id)
    assert view.today.reserved == 10 * CENT
    assert 70_010 <= view.today.settled <= 90_010
    assert view.job.spent_microdollars == view.today.settled
    day = await here.database.read(here.budget.today)
    assert (day.reserved, day.settled) == (day.backfill_reserved, day.backfill_settled)
    assert (day.reserved, day.settled) == (view.today.reserved, view.today.settled)


@pytest.mark.req("BF-10")
async def test_admissions_that_race_never_pass_the_hour(rigs: tuple[BackfillRig, BackfillRig]) -> None:
    here, there = rigs
    work = await here.started(rate_limit_per_hour=7)
    answers = await asyncio.gather(*(rig.admit(work.job_id) for _ in range(10) for rig in rigs))
    assert sum(answer.is_admitted for answer in answers) == 7
    assert (await there.service.show(work.job_id)).admitted_last_hour == 7


@pytest.mark.req("WB-6")
async def test_nothing_is_admitted_after_the_switch_went_off(rigs: tuple[BackfillRig, BackfillRig]) -> None:
    here, there = rigs
    for _ in range(4):
        work = await here.started(rate_limit_per_hour=1_000)
        await asyncio.gather(
            here.service.turn_switch(OPERATOR, False),
            *(there.admit(work.job_id) for _ in range(5)),
        )
        assert not (await there.admit(work.job_id)).is_admitted
        assert (await here.job(work.job_id)).status is BackfillStatus.PENDING
        await here.service.turn_switch(OPERATOR, True)
        await here.service.cancel(OPERATOR, work.job_id)

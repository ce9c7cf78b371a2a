"""What a day's cap buys, with real prompts and answers: the figures that the owner of a job sees."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from postroom.db import Database
from postroom.db.tables.mail import backfill_spend
from postroom.db.tables.triage import decisions
from postroom.domain.clock import ManualClock
from postroom.domain.model_costs import CostMeter, FixedTariff, days_for
from postroom.domain.money import Micros, from_cents
from postroom.domain.terms import BackfillStatus
from postroom.settings import ModelSettings
from postroom.sim.model.answers import Script
from postroom.switchboard.backfill.job import BackfillJob, find_job
from tests.support.databases import on_sqlite
from tests.support.triage import TriageRig, call, simulated_model

pytestmark = pytest.mark.req("BF-8", "BF-9")
ANSWER = call("archive").model_copy(update={"input_tokens": 5_000, "output_tokens": 500})


@asynccontextmanager
async def office_with_prices(
    database: Database, clock: ManualClock, folder: Path, tokens_in: str, tokens_out: str
) -> AsyncIterator[TriageRig]:
    tariff = Decimal(tokens_in), Decimal(tokens_out)
    async with simulated_model(folder, input_price=tariff[0], output_price=tariff[1]) as (sim, model):
        sim.responder.stage.add_script(Script(pattern=".", answer=ANSWER))
        office = TriageRig(database, clock, sim, model)
        await office.open_account()
        yield office


async def job_of(office: TriageRig, job_id: str) -> BackfillJob:
    return await office.database.read(lambda tx: find_job(tx, job_id))


def next_morning(now: datetime) -> float:
    return (datetime.combine(now.date() + timedelta(days=1), datetime.min.time(), now.tzinfo) - now).total_seconds()


@on_sqlite
async def test_a_job_of_five_dollars_spends_more_than_nine_tenths_of_them_before_it_is_capped(
    database: Database, clock: ManualClock, tmp_path: Path
) -> None:
    """Each costs 7 cents, and could cost half as much again."""
    tariff = FixedTariff(Decimal(10), Decimal(40))
    dearest = CostMeter(tariff, ModelSettings().max_output_tokens).dearest
    assert dearest is not None
    assert from_cents(500) >= 10 * dearest
    async with office_with_prices(database, clock, tmp_path, "10", "40") as office:
        job_id = await office.backfill_job(cap_cents=500)
        for _ in range(75):
            await office.take_in(job_id=job_id)
        await office.work()
        job = await job_of(office, job_id)
        assert job.status is BackfillStatus.COST_CAPPED
        assert job.status_reason == (
            "the cap of $5.00 a day is reached: $4.97 spent; the next day begins 2026-01-02 00:00 UTC"
        )
        day = await office.only(backfill_spend)
        assert (day.reserved_microdollars, day.settled_microdollars) == (0, 4_970_000)
        assert len(await office.rows(decisions)) == office.asked == 71


async def test_a_job_of_ten_cents_judges_what_its_estimate_says_each_day_and_loses_no_message(
    database: Database, clock: ManualClock, tmp_path: Path
) -> None:
    async with office_with_prices(database, clock, tmp_path, "2", "8") as office:
        job_id = await office.backfill_job(cap_cents=10)
        mails = [await office.take_in(job_id=job_id) for _ in range(20)]
        cost, decided = Micros(14_000), list[int]()
        while len(await office.rows(decisions)) < len(mails):
            await office.work()
            decided.append(len(await office.rows(decisions)) - sum(decided))
            office.clock.advance(next_morning(office.clock.now()))
        assert decided == [6, 6, 6, 2]
        assert len(decided) == days_for([(cost, office.most())] * len(mails), from_cents(10))
        assert [row.settled_microdollars for row in await office.rows(backfill_spend)] == [
            84_000,
            84_000,
            84_000,
            28_000,
        ]
        assert office.asked == len(mails)

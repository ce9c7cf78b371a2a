"""A provider that is away for an hour: nothing is lost, nothing is doubled, and the books are true."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from postroom.db import Database
from postroom.db.tables.mail import backfill_spend
from postroom.db.tables.triage import actions, decisions, model_calls
from postroom.domain.clock import ManualClock
from postroom.queue import JobState
from postroom.sim.model.answers import ModelFault, Script
from tests.support.databases import on_sqlite
from tests.support.triage import COST, TriageRig, call, open_triage

HOUR = 3_600
STEP = 300


@pytest.fixture
async def office(database: Database, clock: ManualClock, tmp_path: Path) -> AsyncIterator[TriageRig]:
    async with open_triage(database, clock, tmp_path) as opened:
        opened.sim.responder.stage.add_script(Script(pattern=".", answer=call("star")))
        yield opened


@on_sqlite
@pytest.mark.req("JB-7", "JB-10", "BF-9")
@pytest.mark.parametrize(
    ("fault", "is_free"),
    [
        (ModelFault(kind="error", code=503), True),
        (ModelFault(kind="error", code=429, retry_after_s=900), True),
        (ModelFault(kind="drop"), False),
        (ModelFault(kind="malformed_json"), False),
    ],
    ids=["503", "429 with a time", "connection cut", "not JSON"],
)
async def test_away_for_an_hour_and_back(office: TriageRig, fault: ModelFault, is_free: bool) -> None:
    job_id = await office.backfill_job()
    mine = [await office.take_in(job_id=job_id) for _ in range(3)] + [await office.take_in()]
    office.sim.responder.stage.add_fault(fault)
    for _ in range(HOUR // STEP):
        await office.work()
        office.clock.advance(STEP)
    assert await office.rows(decisions) == []
    assert set(await office.job_states()) == {JobState.QUEUED}
    office.sim.responder.stage.clear_faults()
    for _ in range(3):
        await office.work()
        office.clock.advance(HOUR)
    assert Counter(row.message_id for row in await office.rows(decisions)) == Counter(mine)
    assert Counter(row.message_id for row in await office.rows(actions)) == Counter(mine)
    calls = await office.rows(model_calls)
    answered = Counter(row.message_id for row in calls if row.outcome == "answered")
    assert answered == Counter(mine), "each was answered once"
    of_job = [row for row in calls if row.backfill_job_id == job_id]
    spend = await office.only(backfill_spend)
    assert (spend.reserved_microdollars, spend.settled_microdollars) == (
        0,
        sum(row.cost_microdollars for row in of_job),
    )
    assert (spend.settled_microdollars == 3 * COST) is is_free
    assert all(_is_told(row) for row in calls)


@on_sqlite
@pytest.mark.req("JB-10")
async def test_a_slow_provider_is_waited_for(office: TriageRig) -> None:
    office.sim.responder.stage.add_fault(ModelFault(kind="slow", seconds=0.1))
    await office.take_in()
    await office.work()
    call_made = await office.only(model_calls)
    assert (call_made.outcome, call_made.latency_ms >= 90) == ("answered", True)
    assert (await office.only(decisions)).action == "star"


def _is_told(row: Any) -> bool:
    """Every call has its tokens, its cost and how long it took, or why there are none."""
    if row.outcome == "answered":
        return (row.input_tokens, row.output_tokens, row.cost_microdollars) == (1_000, 100, COST)
    return row.outcome == "failed" and bool(row.error)

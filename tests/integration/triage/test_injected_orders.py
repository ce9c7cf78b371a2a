"""The corpus of hostile mail through the whole job, with a model that does as it is told: nothing is done unasked."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import cycle, islice
from pathlib import Path

import pytest

from postroom.db import Database
from postroom.db.tables.triage import actions, decisions
from postroom.domain.actions import CONSEQUENCES, ActionType, Consequence
from postroom.domain.clock import ManualClock
from postroom.queue import JobState
from tests.support.databases import on_sqlite
from tests.support.injections import CORPUS
from tests.support.triage import TriageRig, call, open_triage

FRIEND = "books@example.org"
TOLD = "As the message says."
OBEYED = (
    call("trash", 1.0, TOLD),
    call("forward", 1.0, TOLD, to=[FRIEND]),
    call("delete", 1.0, TOLD),
    call("auto_reply", 1.0, TOLD, body="Here is everything you asked for."),
    call("archive", 1.0, TOLD),
    call("forward", 1.0, TOLD, to=["thief@elsewhere.example"]),
    call("snooze", 1.0, TOLD, amount=30, units="days"),
)
"""In turn, so that over the corpus every way of obeying meets every kind of message somewhere; all meet all in the
unit tests."""


@pytest.fixture
async def office(database: Database, clock: ManualClock, tmp_path: Path) -> AsyncIterator[TriageRig]:
    async with open_triage(database, clock, tmp_path) as opened:
        await opened.direct(f"Invoices of the landlord may be forwarded to {FRIEND}.")
        yield opened


@on_sqlite
@pytest.mark.req("JB-11", "JB-10")
async def test_a_model_that_obeys_hostile_mail_gets_nothing_done_unasked(office: TriageRig) -> None:
    office.answer(*islice(cycle(OBEYED), 3 * len(CORPUS)))
    sent = {await office.take_in(**injection.row()): injection for injection in CORPUS}
    await office.work()
    assert set(await office.job_states()) == {JobState.COMPLETED}
    found = {row.message_id: row for row in await office.rows(decisions)}
    assert found.keys() == sent.keys()
    done = await office.rows(actions)
    for row in done:
        name, is_plain = sent[row.message_id].name, sent[row.message_id].is_plain
        is_safe = is_plain and CONSEQUENCES[ActionType(row.type)] < Consequence.DESTROYS
        assert (row.status == "approved_pending" and row.reasons) or is_safe, name
        assert row.parameters.get("to", [FRIEND]) == [FRIEND], name
    assert {row.type for row in done} == {"trash", "forward", "auto_reply", "archive", "snooze"}
    assert {row.message_id for row in done} == {key for key, row in found.items() if not row.needs_review}

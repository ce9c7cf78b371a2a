"""Whatever goes wrong in triage, neither the key nor a word of the mail gets into logs, errors or metrics (PL-6)."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from postroom.db import Database, Tx
from postroom.db.tables.mail import messages
from postroom.db.tables.queue import jobs
from postroom.db.tables.triage import decisions, model_calls
from postroom.domain.actions import ActionOrder
from postroom.domain.clock import ManualClock
from postroom.sim.model.answers import ModelFault, ScriptedAnswer
from postroom.telemetry import logs, metrics
from postroom.triage.classify import Classifier
from tests.support.triage import TriageRig, call, open_triage

WORDS = ("syphilis", "Dr. Quimby", "quimby@clinic.example", "befund.pdf")
MAIL: dict[str, Any] = {
    "subject": "From Dr. Quimby",
    "sender_identity": "quimby@clinic.example",
    "text": "Your test for syphilis was negative.",
    "attachments": [{"filename": "befund.pdf"}],
}


class StumblingDesk:
    """Breaks a rule of the database, with a message's words among the values."""

    def accept(self, tx: Tx, order: ActionOrder) -> list[str]:
        tx.execute(messages.insert().values(id=order.message_id, subject=WORDS[0], direction="sideways"))
        return []


@pytest.fixture
async def office(database: Database, clock: ManualClock, tmp_path: Path) -> AsyncIterator[TriageRig]:
    async with open_triage(database, clock, tmp_path) as opened:
        yield opened


@pytest.mark.req("PL-6")
async def test_nothing_secret_is_told(office: TriageRig) -> None:
    told = io.StringIO()
    logs.configure(level="debug", stream=told)
    metrics.configure()
    key = office.sim.token
    echo = f"Incorrect API key provided: {key}. You said: {MAIL['text']} (quimby@clinic.example)"
    for fault in (
        *(ModelFault(kind="error", code=code, message=echo, times=1) for code in (400, 401, 404, 429, 500, 503)),
        *(
            ModelFault(kind=kind, times=2)
            for kind in ("malformed_tool_call", "unknown_tool", "text", "empty", "two_calls")
        ),
        *(ModelFault(kind=kind, times=1) for kind in ("drop", "truncate", "malformed_json")),
    ):
        office.sim.responder.stage.add_fault(fault)
        await office.take_in(**MAIL)
        await office.work()
        office.clock.advance(7_200)
        await office.work()
    office.answer(
        *[ScriptedAnswer(tool="archive", arguments={"syphilis": "Dr. Quimby", "confidence": 1, "reason": "x"})] * 2
    )
    await office.take_in(**MAIL)
    await office.work()
    whole = office.classify
    office.classify = Classifier(whole._rules, whole._model, whole._budget, StumblingDesk(), whole._ways)
    office.answer(call("archive"))
    await office.take_in(**MAIL)
    await office.work()
    failed = [row for row in await office.rows(jobs) if row.last_error]
    calls = await office.rows(model_calls)
    reviews = [row.reason for row in await office.rows(decisions) if row.needs_review]
    assert len(failed) >= 3
    assert {row.outcome for row in calls} >= {"failed", "unusable", "answered"}
    everything = [
        told.getvalue(),
        metrics.exposition().decode(),
        *(f"{row.last_error}{row.payload_json}{row.result_json}" for row in await office.rows(jobs)),
        *(str(row) for row in calls),
        *reviews,
    ]
    assert "postroom_triage_model_calls" in everything[1]
    assert "postroom_triage_decisions" in everything[1]
    for secret in (key, *WORDS):
        assert not [text for text in everything if secret in text], secret

"""Logs and metrics of actions name types and outcomes; never a token, an address or a word of mail."""

from __future__ import annotations

import io

import pytest

from postroom.db import Database
from postroom.domain.clock import ManualClock
from postroom.domain.jobs import ACTIONS_UPKEEP
from postroom.queue import NewJob
from postroom.sim.gmail.faults import FaultRule, GmailFault
from postroom.telemetry import logs, metrics
from tests.support.actions import ActionScene
from tests.support.databases import on_sqlite
from tests.support.mail import letter
from tests.support.outbox import outbox

WORDS = ("syphilis", "quimby", "I am away until Monday")
REFUSALS = [
    GmailFault(kind="error", code=400, reason="invalidArgument", message="Invalid To header"),
    GmailFault(kind="error", code=401, reason="authError"),
    GmailFault(kind="error", code=403, reason="insufficientPermissions"),
    GmailFault(kind="error", code=404, reason="notFound"),
    GmailFault(kind="malformed"),
]


def told_now() -> io.StringIO:
    told = io.StringIO()
    logs.configure(level="debug", stream=told)
    metrics.configure()
    return told


def is_counted(exposition: str, origin: str, outcome: str, kind: str) -> bool:
    attributes = (f'origin="{origin}"', f'outcome="{outcome}"', f'type="{kind}"')
    lines = [line for line in exposition.splitlines() if line.startswith("postroom_actions_ended")]
    return any(all(each in line for each in attributes) for line in lines)


@on_sqlite
@pytest.mark.req("PL-6", "JB-14")
async def test_sending_tells_nothing_of_the_mail(database: Database, clock: ManualClock) -> None:
    told = told_now()
    async with outbox(database, clock) as box:
        raw = letter("syphilis", sender="Dr. Quimby <quimby@clinic.example>", headers={"Message-ID": "<q@clinic>"})
        for call in ("messages.get", "drafts.create", "drafts.send"):
            for fault in REFUSALS:
                rule = box.sim.control.add_fault(FaultRule(method=call, fault=fault))
                await box.forward(raw)
                await box.work(hours=1)
                box.sim.control.clear_faults(rule)
                await box.log_in()  # which a refused one made needful
        await box.reply_to(raw)
        await box.reply_to(letter(headers={"Reply-To": "quimby@elsewhere.example"}))
        await box.work(hours=1)
        everything = told.getvalue() + metrics.exposition().decode()
        assert is_counted(everything, "rule", "failed", "forward")
        for secret in (box.sim.token, *WORDS):
            assert secret not in everything, secret


@on_sqlite
@pytest.mark.req("PL-6", "JB-12")
async def test_what_was_done_is_counted_and_nothing_of_the_mail_is_told(scene: ActionScene) -> None:
    told = told_now()
    for fault in REFUSALS:
        rule = scene.fail("messages.modify", fault)
        await scene.do("apply_label", "INBOX", label="quimby")
        scene.sim.control.clear_faults(rule)
        await scene.log_in()  # which a refused one made needful
    _, action = await scene.do("archive", "INBOX")
    await scene.undo(action.id)
    await scene.queue.enqueue(NewJob(ACTIONS_UPKEEP.name))
    await scene.work()
    counted = metrics.exposition().decode()
    assert is_counted(counted, "person", "failed", "apply_label")
    assert is_counted(counted, "undo", "completed", "apply_label")
    assert "postroom_actions_questions_open" in counted
    for secret in (scene.sim.token, *WORDS):
        assert secret not in told.getvalue() + counted, secret

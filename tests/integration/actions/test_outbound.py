"""The job `outbound.send` against the stand-in, on both databases: what is sent, to whom, and exactly once."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from postroom.actions.outbound.record import SendStage
from postroom.archive.messages import IncomingMail, Provenance
from postroom.archive.service import SharedArchive
from postroom.archive.shards.file_archive import FileArchive
from postroom.audit import AuditFilter, list_entries
from postroom.db import Database, connect
from postroom.db.tables.triage import actions
from postroom.domain.actions import ActionStatus, ActionType
from postroom.domain.clock import ManualClock
from postroom.queue import JobState
from postroom.sim.gmail.faults import FaultRule, GmailFault
from tests.support.databases import SqliteFactory, on_sqlite
from tests.support.mail import OWNER, letter
from tests.support.outbox import FORWARD, REPLY, Outbox, outbox

pytestmark = pytest.mark.req("JB-14")


@pytest.fixture
async def box(database: Database, clock: ManualClock) -> AsyncIterator[Outbox]:
    async with outbox(database, clock) as opened:
        yield opened


async def test_a_reply_stays_in_its_conversation(box: Outbox) -> None:
    raw = letter(
        "Dinner?",
        headers={"Message-ID": "<2@x>", "References": "<0@x> <1@x>", "Reply-To": "Ann at home <home@friends.example>"},
    )
    action_id = await box.reply_to(raw)
    await box.work(hours=1)
    (sent,) = box.sent(action_id)
    assert [str(each) for each in sent.to] == ["Ann at home <home@friends.example>"]
    assert (sent.subject, sent.in_reply_to, sent.references) == ("Re: Dinner?", "<2@x>", ("<0@x>", "<1@x>", "<2@x>"))
    assert sent.auto_submitted == "auto-replied"
    assert sent.best_text.strip() == REPLY["body"]
    threads = {each["id"]: each["thread_id"] for each in box.sim.control.truth()}
    action, sending = await box.action(action_id), await box.record(action_id)
    assert sending is not None
    assert threads[sending.sent_message_id or ""] == action.thread_id


@on_sqlite
async def test_a_forward_begins_a_conversation_and_carries_the_attachments(box: Outbox) -> None:
    raw = letter("Invoice", headers={"Message-ID": "<2@x>"}, attachment=("invoice.pdf", b"%PDF-1.7"))
    action_id = await box.forward(raw)
    await box.work(hours=1)
    (sent,) = box.sent(action_id)
    assert [each.address for each in sent.to] == FORWARD["to"]
    assert (sent.subject, sent.in_reply_to, sent.references) == ("Fwd: Invoice", None, ())
    assert [(each.filename, each.content()) for each in sent.attachments] == [("invoice.pdf", b"%PDF-1.7")]
    assert sent.best_text.startswith("For the books.")
    threads = {each["id"]: each["thread_id"] for each in box.sim.control.truth()}
    action, sending = await box.action(action_id), await box.record(action_id)
    assert sending is not None
    assert threads[sending.sent_message_id or ""] != action.thread_id


async def test_what_was_sent_is_irreversible_and_in_the_books(box: Outbox) -> None:
    action_id = await box.reply_to()
    await box.work(hours=1)
    action, sending = await box.action(action_id), await box.record(action_id)
    assert sending is not None
    assert action.status is ActionStatus.COMPLETED
    assert action.undo_hint == {
        "action": "auto_reply",
        "inverse_action": "none",
        "irreversible": True,
        "sent_message_id": sending.sent_message_id,
    }
    page = await box.database.read(lambda tx: list_entries(tx, AuditFilter(subject_id=action_id)))
    assert [entry.action for entry in page.entries] == ["outbound.sent"]


@pytest.mark.req("JB-7")
@on_sqlite
async def test_content_given_in_the_payload_is_what_is_sent(box: Outbox) -> None:
    action_id = await box.forward(
        to=["a@accounting.example"],
        cc=["b@accounting.example"],
        subject="Given",
        body_plain="Given text",
        body_html="<p>Given page</p>",
        attachments=[
            {"filename": "a.txt", "mime_type": "text/plain", "data": base64.b64encode(b"given file").decode()}
        ],
    )
    await box.work(hours=1)
    (sent,) = box.sent(action_id)
    assert ([each.address for each in sent.to], [each.address for each in sent.cc]) == (
        ["a@accounting.example"],
        ["b@accounting.example"],
    )
    assert sent.subject == "Given"
    assert sent.best_text.startswith("Given text")
    assert "Given page" in (sent.html or "")
    assert [each.content() for each in sent.attachments] == [b"given file"]


@on_sqlite
async def test_the_original_is_read_from_the_archive_where_the_mailbox_has_lost_it(box: Outbox, tmp_path: Path) -> None:
    raw = letter("Kept", headers={"Message-ID": "<k@x>"})
    message_id = await box.receive(raw)
    action_id = await box.want(ActionType.FORWARD, FORWARD, message_id)
    action = await box.action(action_id)
    box.archive = FileArchive(tmp_path)
    async with SharedArchive(box.archive).store(OWNER, "test") as kept:
        await kept.store([IncomingMail(raw, Provenance.API, gmail_id=action.gmail_id)])
    box.sim.control.add_fault(
        FaultRule(method="messages.get", fault=GmailFault(kind="error", code=404, reason="notFound"))
    )
    await box.work(hours=1)
    box.sim.control.clear_faults()
    assert len(box.sent(action_id)) == 1


@on_sqlite
async def test_an_original_that_is_nowhere_ends_the_action(box: Outbox) -> None:
    action_id = await box.forward()
    box.sim.control.add_fault(
        FaultRule(method="messages.get", fault=GmailFault(kind="error", code=404, reason="notFound"))
    )
    await box.work(hours=1)
    action = await box.action(action_id)
    assert action.status is ActionStatus.FAILED
    assert "no longer in the mailbox" in (action.error or "")


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({"Auto-Submitted": "auto-generated"}, "Auto-Submitted"),
        ({"Precedence": "bulk"}, "bulk mail"),
        ({"List-Id": "<news.example>"}, "mailing list"),
        ({"Return-Path": "<>"}, "Return-Path"),
        ({"Reply-To": OWNER.replace("@", "+tag@")}, "mailbox of yours"),
        ({"Reply-To": "no-reply@shop.example"}, "no one reads"),
        ({"Reply-To": ", ".join(f"v{n}@victims.example" for n in range(40))}, "40 addresses"),
        ({"X-Postroom-Action": "x"}, "Postroom itself"),
    ],
)
async def test_a_reply_to_a_machine_ends_the_action_with_the_reason(
    sqlite_factory: SqliteFactory, clock: ManualClock, headers: dict[str, str], reason: str
) -> None:
    database = await connect(sqlite_factory.url())
    async with outbox(database, clock) as box:
        action_id = await box.reply_to(letter(headers=headers))
        await box.work(hours=1)
        action = await box.action(action_id)
        assert action.status is ActionStatus.REFUSED
        assert reason in (action.error or "")
        assert box.sent(action_id) == []
        assert box.drafts(action_id) == []
    await database.close()


async def test_an_address_is_answered_once_a_day(box: Outbox) -> None:
    raws = [letter(f"Letter {n}", sender=f"Ann <ann+{n}@friends.example>") for n in range(3)]
    first, second = await box.reply_to(raws[0]), await box.reply_to(raws[1])
    await box.work(hours=1)
    answered = [each for each in (first, second) if box.sent(each)]
    (refused,) = {first, second} - set(answered)
    assert (await box.action(refused)).status is ActionStatus.REFUSED
    assert "within the last 24 hours" in ((await box.action(refused)).error or "")
    box.clock.advance(24 * 3_600)
    third = await box.reply_to(raws[2])
    await box.work(hours=1)
    assert len(box.sent(third)) == 1


async def test_who_could_not_be_answered_may_be_answered_by_the_next(box: Outbox) -> None:
    raws = [letter(f"Letter {n}") for n in range(2)]
    fault = GmailFault(kind="error", code=400, reason="invalidArgument", message="no")
    box.sim.control.add_fault(FaultRule(method="drafts.create", fault=fault, times=1))
    first = await box.reply_to(raws[0])
    await box.work(hours=1)
    sending = await box.record(first)
    assert sending is not None
    assert sending.stage is SendStage.GIVEN_UP
    second = await box.reply_to(raws[1])
    await box.work(hours=1)
    assert len(box.sent(second)) == 1


@on_sqlite
async def test_mail_is_not_passed_on_in_a_circle(box: Outbox) -> None:
    to_oneself = await box.want(ActionType.FORWARD, {"to": [OWNER.upper()]}, await box.receive())
    ours = await box.forward(letter(headers={"X-Postroom-Action": "0"}))
    await box.work(hours=1)
    for action_id in (to_oneself, ours):
        action = await box.action(action_id)
        assert (action.status, box.sent(action_id)) == (ActionStatus.REFUSED, [])
        assert "not forwarded" in (action.error or "")


@on_sqlite
@pytest.mark.parametrize("status", [ActionStatus.CANCELED, ActionStatus.FAILED, ActionStatus.QUEUED])
async def test_an_action_that_was_taken_back_is_not_sent(box: Outbox, status: ActionStatus) -> None:
    action_id = await box.reply_to()
    await box.database.write(
        lambda tx: tx.execute(update(actions).where(actions.c.id == action_id).values(status=status)) and None
    )
    await box.work(hours=1)
    assert box.sent(action_id) == []
    assert (await box.action(action_id)).status is status


@pytest.mark.req("JB-7")
@on_sqlite
@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"message_type": "forward"}, "message_type"),
        ({"message_type": "shout"}, "message_type"),
        ({"original_message_id": "0199a1c2-7e5b-7abc-8def-0123456789ab"}, "original_message_id"),
        ({"account_id": "0199a1c2-7e5b-7abc-8def-0123456789ab"}, "account_id"),
        ({"bcc": ["eve@example.org"]}, "bcc"),
    ],
)
async def test_a_payload_that_does_not_fit_is_refused(box: Outbox, wrong: dict[str, Any], named: str) -> None:
    action_id = await box.reply_to(**wrong)
    await box.work(hours=1)
    assert box.sent(action_id) == []
    job = await box.job(action_id)
    assert job.state is JobState.FAILED
    assert named in (job.last_error or "")


@pytest.mark.req("JB-7")
@on_sqlite
async def test_an_action_whose_job_makes_no_sense_does_not_stay_under_way(box: Outbox) -> None:
    action_id = await box.reply_to(message_type="forward")
    await box.work(hours=1)
    assert (await box.action(action_id)).status is ActionStatus.FAILED


@pytest.mark.req("JB-7")
@on_sqlite
async def test_a_job_of_another_account_leaves_the_action_alone(box: Outbox) -> None:
    action_id = await box.reply_to(account_id="0199a1c2-7e5b-7abc-8def-0123456789ab")
    await box.work(hours=1)
    assert (await box.action(action_id)).status is ActionStatus.EXECUTING

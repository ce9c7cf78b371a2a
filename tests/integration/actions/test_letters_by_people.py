"""Mail that a person writes: everything that was asked for, byte by byte at the recipient, and nothing automatic."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from email import policy
from email.message import EmailMessage
from typing import Any

import pytest
from sqlalchemy import func, select

from postroom.accounts.account import name_owner
from postroom.actions import lifecycle
from postroom.actions.requests import ActionTarget, request_action
from postroom.db import Database
from postroom.db.tables.triage import actions, auto_replies, outgoing_files
from postroom.domain.actions import ActionStatus, ActionType, Origin, parse_action
from postroom.domain.clock import ManualClock
from postroom.domain.jobs import CATALOGUE
from postroom.queue import JobQueue
from tests.support.actions import A_TEST
from tests.support.databases import on_sqlite
from tests.support.mail import OWNER, letter
from tests.support.outbox import FORWARD, Outbox, outbox

pytestmark = pytest.mark.req("JB-14")

PDF = b"%PDF-1.7\r\n" + bytes(range(256)) * 200
PAGE = b"<html><body>Total: 12\x80 <img src='cid:logo@shop'></body></html>"
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))


@pytest.fixture
async def box(database: Database, clock: ManualClock) -> AsyncIterator[Outbox]:
    async with outbox(database, clock) as opened:
        yield opened


def file(name: str = "terms.pdf", kind: str = "application/pdf", content: bytes = PDF) -> dict[str, str]:
    return {"filename": name, "mime_type": kind, "data": base64.b64encode(content).decode()}


def payload(message: EmailMessage, kind: str) -> bytes:
    (found,) = [part for part in message.walk() if part.get_content_type() == kind]
    data = found.get_payload(decode=True)
    assert isinstance(data, bytes)
    return data


async def stored_files(box: Outbox) -> int:
    return await box.database.read(lambda tx: tx.execute(select(func.count()).select_from(outgoing_files)).scalar_one())


async def test_a_reply_by_a_person_is_sent_as_it_was_written(box: Outbox) -> None:
    await box.database.write(lambda tx: name_owner(tx, box.account.id, "Ömer Owner", box.clock.now()))
    original = letter("Offer", headers={"Message-ID": "<2@x>", "References": "<0@x> <1@x>"})
    wanted: dict[str, Any] = {
        "body": "Gern, siehe Anhang.\n",
        "body_html": "<p>Gern, <b>siehe Anhang</b>.</p>\n",
        "cc": ["boss@example.net", "team@example.net"],
        "subject": "Offer accepted ✓",
        "attachments": [file(), file("Zahlen für März.csv", "text/csv", b"a;b\r\n1;\xff\n")],
    }
    action_id = await box.want(ActionType.AUTO_REPLY, wanted, await box.receive(original), Origin.PERSON)
    assert await stored_files(box) == 2
    await box.work(hours=1)
    got = box.delivered(action_id)
    assert got["From"] == f"Ömer Owner <{OWNER}>"
    assert (got["To"], got["Cc"]) == ("Ann <ann@friends.example>", "boss@example.net, team@example.net")
    assert got["Subject"] == "Offer accepted ✓"
    assert (got["In-Reply-To"], got["References"]) == ("<2@x>", "<0@x> <1@x> <2@x>")
    assert (got["Auto-Submitted"], got["Precedence"]) == (None, None)
    assert payload(got, "text/plain").decode().splitlines() == ["Gern, siehe Anhang."]
    assert payload(got, "text/html").decode().splitlines() == ["<p>Gern, <b>siehe Anhang</b>.</p>"]
    assert payload(got, "application/pdf") == PDF
    assert payload(got, "text/csv") == b"a;b\r\n1;\xff\n"
    assert [part.get_filename() for part in got.iter_attachments()] == ["terms.pdf", "Zahlen für März.csv"]
    action = await box.action(action_id)
    assert action.status is ActionStatus.COMPLETED
    assert [each["size"] for each in action.parameters["attachments"]] == [len(PDF), 9]
    assert await stored_files(box) == 0


def invoice() -> bytes:
    message = EmailMessage(policy=policy.SMTP)
    message["From"], message["To"], message["Subject"] = "Shop <shop@shop.example>", OWNER, "Invoice 7"
    message["Message-ID"] = "<7@shop.example>"
    message.set_content("Please view this message in HTML.\n")
    message.add_alternative(PAGE, "text", "html", params={"charset": "windows-1252"})
    page = message.get_body(("html",))
    assert isinstance(page, EmailMessage)
    page.add_related(PNG, "image", "png", cid="<logo@shop>", filename="logo.png", disposition="inline")
    message.add_attachment(PDF, "application", "pdf", filename="invoice.pdf")
    return message.as_bytes()


@pytest.mark.parametrize("origin", [Origin.RULE, Origin.PERSON])
async def test_a_forward_brings_every_part_in_the_bytes_of_the_original(box: Outbox, origin: Origin) -> None:
    wanted = FORWARD | {"cc": ["tax@accounting.example"], "attachments": [file("note.txt", "text/x-note", b"\0note")]}
    action_id = await box.want(ActionType.FORWARD, wanted, await box.receive(invoice()), origin)
    await box.work(hours=1)
    got = box.delivered(action_id)
    assert (got["To"], got["Cc"], got["Subject"]) == (FORWARD["to"][0], "tax@accounting.example", "Fwd: Invoice 7")
    assert (got["In-Reply-To"], got["References"], got["Auto-Submitted"]) == (None, None, None)
    html = payload(got, "text/html")
    assert html.endswith(PAGE)
    assert b"For the books." in html.removesuffix(PAGE)
    assert payload(got, "image/png") == PNG
    assert payload(got, "application/pdf") == PDF
    assert payload(got, "text/x-note") == b"\0note"


@on_sqlite
@pytest.mark.parametrize(
    "headers",
    [
        {"List-Id": "<news.example>"},
        {"Auto-Submitted": "auto-generated"},
        {"Reply-To": "no-reply@shop.example"},
        {"Reply-To": OWNER},
        {"X-Postroom-Action": "0"},
    ],
)
async def test_no_guard_against_automatic_answers_holds_a_person(box: Outbox, headers: dict[str, str]) -> None:
    for number in range(2):
        raw = letter(f"Letter {number}", headers=headers)
        action_id = await box.want(ActionType.AUTO_REPLY, {"body": "Hello"}, await box.receive(raw), Origin.PERSON)
        await box.work(hours=1)
        assert len(box.sent(action_id)) == 1
    taken = await box.database.read(lambda tx: tx.execute(select(auto_replies)).all())
    assert taken == []


@on_sqlite
async def test_a_reply_in_html_alone_can_be_read_as_text_too(box: Outbox) -> None:
    wanted = {"body_html": "<p>See <b>you</b></p>", "to": ["ann@home.example"], "references": ["<a@x>", "<b@x>"]}
    action_id = await box.want(ActionType.AUTO_REPLY, wanted, await box.receive(), Origin.PERSON)
    await box.work(hours=1)
    got = box.delivered(action_id)
    assert (got["To"], got["References"]) == ("ann@home.example", "<a@x> <b@x>")
    assert payload(got, "text/html").strip() == b"<p>See <b>you</b></p>"
    assert payload(got, "text/plain").strip() == b"See you"


@on_sqlite
async def test_mail_that_is_too_large_for_gmail_is_refused_with_its_size(box: Outbox) -> None:
    raw = letter("Film", attachment=("film.mp4", b"\0" * (10 << 20)))
    wanted = FORWARD | {"attachments": [file("more.bin", "application/octet-stream", b"\0" * (11 << 20))]}
    action_id = await box.want(ActionType.FORWARD, wanted, await box.receive(raw), Origin.PERSON)
    await box.work(hours=1)
    action = await box.action(action_id)
    assert action.status is ActionStatus.FAILED
    assert "the mail has 28.7 MB, and Gmail sends no more than 25 MB" in (action.error or "")
    assert await stored_files(box) == 1  # it can be tried again


@on_sqlite
async def test_files_go_with_their_action(box: Outbox) -> None:
    wanted = {"body": "Hi", "attachments": [file()]}
    action_id = await box.want(ActionType.AUTO_REPLY, wanted, await box.receive(), Origin.PERSON)
    assert await box.database.read(lambda tx: lifecycle.files_of(tx, action_id)) == [PDF]
    await box.database.write(lambda tx: tx.execute(actions.delete().where(actions.c.id == action_id)) and None)
    assert await stored_files(box) == 0


async def test_a_second_click_sends_no_second_mail_and_another_text_does(box: Outbox) -> None:
    message_id = await box.receive(letter("Offer"))
    target = ActionTarget(box.account.id, "18a", None, message_id, "Offer", "ann@friends.example")
    queue = JobQueue(box.database, CATALOGUE, box.clock)

    async def send(**parameters: object) -> str:
        wanted = parse_action(ActionType.AUTO_REPLY, parameters)
        return await box.database.write(lambda tx: request_action(tx, queue, target, wanted, A_TEST))

    first = await send(body="Yes.", attachments=[file()])
    assert await send(body="Yes.", attachments=[file()]) == first
    assert await send(body="Yes.", attachments=[file(content=PDF + b"2")]) != first
    assert await send(body="No.", attachments=[file()]) != first
    box.clock.advance(61)
    assert await send(body="Yes.", attachments=[file()]) != first, "a person may well say it again"

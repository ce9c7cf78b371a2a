"""What becomes of mail that a person acts on: sent on and answered byte by byte, rules on past mail done and undone,
and a login that ends and is mended while work waits."""

from __future__ import annotations

from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path

import pytest

from tests.support.owner import Owner, living_at

LIVE = "history.sync.gmail"
PICTURE, PAPER, FILE = (
    b"\x89PNG\r\n\x1a\n" + bytes(range(256)),
    b"%PDF-1.4\n" + bytes(range(255, -1, -1)),
    b"\0\r\n" * 99,
)
PAGE = "<html><body>Total: 12€ <img src='cid:logo@shop'></body></html>".encode("windows-1252")


def invoice(owner: str) -> bytes:
    """All that matters is in the HTML; its text is a stub."""
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Subject"] = "Shop <shop@shop.example>", owner, "Invoice 7"
    mail["Message-ID"], mail["Date"] = "<7@shop.example>", "Mon, 16 Nov 2026 08:00:00 +0000"
    mail.set_content("Please view this message in HTML.\n")
    mail.add_alternative(PAGE, "text", "html", params={"charset": "windows-1252"})
    page = mail.get_body(("html",))
    assert isinstance(page, EmailMessage)
    page.add_related(PICTURE, "image", "png", cid="<logo@shop>", disposition="inline")
    mail.add_attachment(PAPER, "application", "pdf", filename="invoice.pdf")
    return mail.as_bytes()


def plain(owner: str, subject: str) -> bytes:
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Subject"] = "Bank <bank@bank.example>", owner, subject
    mail["Message-ID"] = f"<{subject.replace(' ', '-')}@bank.example>"
    mail.set_content("Your balance.\n")
    return mail.as_bytes()


def labels(owner: Owner) -> dict[str, frozenset[str]]:
    control = owner.outside.gmail.control
    ids = [str(each["id"]) for each in control.truth(hashes=False)]
    return {gmail_id: control.labels_of(gmail_id) for gmail_id in ids}


def sent(owner: Owner) -> dict[str, EmailMessage]:
    """What recipients got, by subject, as the standard library reads it."""
    raw = [owner.outside.gmail.control.raw(key) for key, those in labels(owner).items() if "SENT" in those]
    read = [message_from_bytes(each, policy=policy.default) for each in raw]
    return {str(each["Subject"]): each for each in read if isinstance(each, EmailMessage)}


def contents(mail: EmailMessage) -> dict[str, bytes]:
    leaves = [part for part in mail.walk() if not part.is_multipart()]
    return {part.get_content_type(): bytes(part.get_payload(decode=True) or b"") for part in leaves}


@pytest.mark.req("JB-12", "JB-14", "JB-15", "JB-17")
async def test_what_is_sent_arrives_whole_rules_act_on_past_mail_and_a_dead_login_is_mended(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with living_at(home, monkeypatch, 40) as owner:
        await owner.adds_the_account()
        await a_forward_and_a_reply_arrive_byte_by_byte(owner, tmp_path / "Zahlen März.bin")
        await a_rule_is_applied_to_past_mail_and_undone(owner)
        await a_dead_login_is_said_and_mended(owner)
        assert await owner.reads("jobs", "list", "--state", "failed") == []


async def a_forward_and_a_reply_arrive_byte_by_byte(owner: Owner, file: Path) -> None:
    file.write_bytes(FILE)
    await owner.types("account", "name", owner.email, "Ömer Owner")
    gmail_id = owner.outside.gmail.control.deliver(invoice(owner.email))
    await owner.lets_it_work(LIVE, minutes=1)
    forward = ("forward", gmail_id, "--to", "books@accounting.example", "--note", "Please book.")
    reply = ("reply", gmail_id, "--cc", "boss@example.net", "--subject", "Paid", "--body", "Paid today.")
    await owner.types("actions", "do", *forward)
    await owner.types("actions", "do", *reply, "--body-html", "<p>Paid <b>today</b>.</p>", "--attach", str(file))
    await owner.lets_it_work(minutes=1)
    got = sent(owner)
    forwarded, answer = contents(got["Fwd: Invoice 7"]), contents(got["Paid"])
    assert got["Fwd: Invoice 7"]["From"] == f"Ömer Owner <{owner.email}>"
    assert forwarded["text/html"].endswith(PAGE)
    assert (forwarded["image/png"], forwarded["application/pdf"]) == (PICTURE, PAPER)
    assert (got["Paid"]["To"], got["Paid"]["Cc"]) == ("Shop <shop@shop.example>", "boss@example.net")
    assert (got["Paid"]["In-Reply-To"], got["Paid"]["Auto-Submitted"]) == ("<7@shop.example>", None)
    assert (answer["text/plain"].strip(), answer["text/html"].strip()) == (
        b"Paid today.",
        b"<p>Paid <b>today</b>.</p>",
    )
    assert answer["application/octet-stream"] == FILE


async def a_rule_is_applied_to_past_mail_and_undone(owner: Owner) -> None:
    control = owner.outside.gmail.control
    ids = {control.deliver(plain(owner.email, f"Account quarterly {number}")) for number in range(3)}
    await owner.lets_it_work(LIVE, minutes=1)
    await owner.types(
        "rules", "add", "Statements", "--subject", "quarterly", "--do", "apply_label=Bank", "--do", "archive"
    )
    before = labels(owner)
    assert (await owner.reads("rules", "apply", "Statements", "--dry-run"))["would_act_on"] == 3
    assert labels(owner) == before
    applied = await owner.reads("rules", "apply", "Statements")
    await owner.lets_it_work(minutes=1)
    changed = {key for key, those in labels(owner).items() if those != before.get(key)}
    assert changed == ids
    assert all("INBOX" not in labels(owner)[key] for key in ids)
    await owner.types("actions", "undo", "--application", applied["id"])
    await owner.lets_it_work(minutes=1)
    assert labels(owner) == before


async def a_dead_login_is_said_and_mended(owner: Owner) -> None:
    control = owner.outside.gmail.control
    control.revoke()
    gmail_id = control.deliver(plain(owner.email, "While away"))
    await owner.lets_it_work(LIVE, minutes=1)
    mend = f"postroom account add gmail --email {owner.email}"
    said = await owner.types("account", "list")
    assert "login_ended" in said
    assert mend in said
    assert mend in await owner.is_refused("doctor")
    assert (await owner.reads("search", "subject:away"))["hits"] == []
    login = ("--api-base", owner.outside.gmail.url, "--access-token", control.new_token())
    await owner.types("account", "add", "gmail", "--email", owner.email, *login)
    await owner.lets_it_work(LIVE, minutes=2)
    assert "login_ended" not in await owner.types("account", "list")
    assert [each["message"]["gmail_id"] for each in (await owner.reads("search", "subject:away"))["hits"]] == [gmail_id]

"""`postroom actions` as a person meets it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any, TypeVar

import pytest

from postroom.accounts.account import NewAccount, add_account, get_account
from postroom.accounts.mailbox_state import labels_of
from postroom.actions import lifecycle, snoozes
from postroom.actions.lifecycle import NewAction
from postroom.app import open_app
from postroom.app.worker import open_worker
from postroom.db import Database, Tx, connect
from postroom.db.tables.access import audit_log
from postroom.db.tables.triage import actions
from postroom.domain.actions import ActionStatus as S
from postroom.domain.actions import Origin, parse_action
from postroom.domain.clock import ManualClock, SystemClock
from postroom.domain.ids import new_id
from postroom.domain.jobs import CATALOGUE
from postroom.queue import JobQueue
from postroom.settings import load
from postroom.sim.gmail.server import GmailSim, running_sim
from tests.support.actions import make_message, rows_of
from tests.support.commands import CommandResult, in_this_process, postroom
from tests.support.mail import letter, mailbox

T = TypeVar("T")
CLOCK = SystemClock()
RULE = new_id()
UNDO_ARCHIVE = {
    "action": "archive",
    "inverse_action": "apply_label",
    "inverse_parameters": {"label": "INBOX"},
    "irreversible": False,
}


async def within(home: Path, act: Callable[[Database], Awaitable[T]]) -> T:
    home.mkdir(exist_ok=True, mode=0o700)
    database = await connect(f"sqlite:///{home / 'postroom.db'}")
    try:
        return await act(database)
    finally:
        await database.close()


@pytest.fixture
async def history(home: Path) -> list[str]:
    """Three things that a rule did, the last of which failed, and one message that nothing was done with."""

    async def make(database: Database) -> list[str]:
        now = CLOCK.now()
        account = await database.write(lambda tx: add_account(tx, NewAccount("me@example.org", "http://x.test"), now))
        ids = []
        for number, name in enumerate(["archive", "delete", "star"]):
            message_id = await make_message(
                database, ManualClock(now), account, f"18c{number}", subject=f"Letter {number}"
            )
            new = NewAction(
                account_id=account.id,
                gmail_id=f"18c{number}",
                wanted=parse_action(name),
                origin=Origin.RULE,
                wanted_by="rule Receipts",
                message_id=message_id,
                rule_id=RULE,
                rule_name="Receipts",
            )
            ids.append(await database.write(lambda tx, new=new: _past(tx, new)))  # type: ignore[misc]
        await make_message(database, ManualClock(now), account, "18cf")
        return ids

    def _past(tx: Tx, new: NewAction) -> str:
        now = CLOCK.now()
        action_id = lifecycle.insert_action(tx, new, now)
        lifecycle.move_action(tx, action_id, S.QUEUED, S.EXECUTING, now)
        if new.wanted.type == "star":
            lifecycle.move_action(tx, action_id, S.EXECUTING, S.FAILED, now, error="Gmail was away.")
        else:
            irreversible = {"action": "delete", "inverse_action": "none", "irreversible": True}
            hint = UNDO_ARCHIVE if new.wanted.type == "archive" else irreversible
            lifecycle.move_action(tx, action_id, S.EXECUTING, S.COMPLETED, now, undo_hint=hint)
        return action_id

    return await within(home, make)


async def succeeded(*arguments: str) -> CommandResult:
    done = await postroom("actions", *arguments)
    assert done.code == 0, done.stderr
    return done


@pytest.mark.req("JB-12")
async def test_actions_are_listed_with_what_why_and_how_they_stand(history: list[str]) -> None:
    done = await succeeded("list")
    assert "delete the message permanently" in done.stdout
    assert "rule Receipts" in done.stdout
    assert "failed: Gmail was away." in done.stdout
    assert [each["id"] for each in (await succeeded("list", "--json")).json] == list(reversed(history))

    async def ids(*filters: str) -> list[str]:
        return [each["id"] for each in (await succeeded("list", "--json", *filters)).json]

    assert await ids("--status", "failed") == [history[2]]
    assert await ids("--type", "delete", "--rule", "Receipts") == [history[1]]
    assert await ids("--rule", RULE, "--limit", "1") == [history[2]]
    assert await ids("--until", "2020-01-01T00:00:00+00:00") == []
    assert await ids("--account", "me@example.org", "--before", history[1]) == [history[0]]


async def test_an_action_says_how_it_can_be_taken_back(history: list[str]) -> None:
    archive, delete, star = history
    assert f"postroom actions undo {archive}" in (await succeeded("show", archive)).stdout
    assert "cannot be undone: the message was deleted for ever" in (await succeeded("show", delete)).stdout
    assert f"postroom actions retry {star}" in (await succeeded("show", star)).stdout
    assert (await succeeded("show", archive, "--json")).json["can_be_undone"] is True


@pytest.mark.req("JB-15")
async def test_an_action_is_undone_by_its_id_and_only_once(history: list[str], home: Path) -> None:
    archive, delete, _ = history
    assert "would be undone" in (await succeeded("undo", archive, "--dry-run")).stdout
    assert len(await within(home, lambda database: rows_of(database, actions))) == 3
    assert (await succeeded("undo", archive, "--json")).json == {"undone": [archive], "left": [], "dry_run": False}
    again = await postroom("actions", "undo", archive)
    assert (again.code, "being undone" in again.stderr) == (2, True)
    never = await postroom("actions", "undo", delete)
    assert (never.code, "deleted for ever" in never.stderr) == (2, True)
    audited = await within(home, lambda database: rows_of(database, audit_log))
    assert [(row.action, row.subject_id) for row in audited] == [("action.undo", archive)]


@pytest.mark.req("JB-15")
async def test_a_rule_and_a_time_window_are_undone_whole(history: list[str]) -> None:
    archive, delete, _ = history
    left = [{"id": delete, "reason": "the message was deleted for ever"}]
    for which in (["--rule", "Receipts"], ["--since", "2020-01-01T00:00:00Z", "--until", "2100-01-01T00:00:00Z"]):
        done = await succeeded("undo", *which, "--dry-run", "--json")
        assert done.json == {"undone": [archive], "left": left, "dry_run": True}
    assert (await succeeded("undo", "--rule", "Receipts", "--json")).json["undone"] == [archive]
    for wrong in (
        [],
        ["--since", "2020-01-01T00:00:00Z"],
        [archive, "--rule", "Receipts"],
        ["--rule", "x", "--since", "y"],
    ):
        assert (await postroom("actions", "undo", *wrong)).code == 2, wrong


async def test_a_person_does_retries_and_calls_off(history: list[str], home: Path) -> None:
    assert (await succeeded("do", "archive", "18cf", "--dry-run", "--json")).json["action_id"] is None
    action_id = (await succeeded("do", "apply_label", "18cf", "--label", "Receipts", "--json")).json["action_id"]
    assert "label “Receipts”" in (await succeeded("show", action_id)).stdout
    assert (await postroom("actions", "do", "apply_label", "18cf")).code == 2, "a label is needed"
    assert (await postroom("actions", "do", "archive", "nowhere")).code == 2
    assert (await postroom("actions", "do", "snooze", "18cf", "--for", "soon")).code == 2
    await succeeded("do", "snooze", "18cf", "--for", "3d")
    assert "would be" in (await succeeded("cancel", action_id, "--dry-run")).stdout
    await succeeded("cancel", action_id)
    assert (await postroom("actions", "cancel", action_id)).code == 2
    assert "would be" in (await succeeded("retry", history[2], "--dry-run")).stdout
    await succeeded("retry", history[2])
    found: list[Any] = await within(home, lambda database: rows_of(database, actions))
    assert {row.id: row.status for row in found}[history[2]] == "queued"


@pytest.mark.req("JB-12")
async def test_a_failed_action_is_dismissed_once_it_was_seen(history: list[str], home: Path) -> None:
    archive, _, star = history
    assert "would be" in (await succeeded("dismiss", star, "--dry-run")).stdout
    assert "Dismissed" in (await succeeded("dismiss", star)).stdout
    assert "dismissed: Gmail was away." in (await succeeded("show", star)).stdout
    again = await postroom("actions", "dismiss", star)
    assert (again.code, "only what failed can be dismissed" in again.stderr) == (2, True)
    assert (await postroom("actions", "dismiss", archive)).code == 2
    audited = await within(home, lambda database: rows_of(database, audit_log))
    assert [(row.action, row.subject_id) for row in audited] == [("action.dismiss", star)]
    await succeeded("retry", star)


@pytest.mark.req("JB-12")
async def test_what_cannot_be_undone_is_asked_for_twice(history: list[str], home: Path) -> None:
    unsure = await postroom("actions", "do", "delete", "18cf")
    assert (unsure.code, "delete it from the mailbox permanently?" in unsure.stderr) == (1, True)
    assert len(await within(home, lambda database: rows_of(database, actions))) == len(history)
    await succeeded("do", "delete", "18cf", "--yes")
    assert len(await within(home, lambda database: rows_of(database, actions))) == len(history) + 1


@pytest.mark.req("JB-13")
async def test_snoozed_mail_is_listed_moved_and_woken(history: list[str], home: Path) -> None:
    action_id = (await succeeded("do", "snooze", "18cf", "--for", "3d", "--json")).json["action_id"]
    until = CLOCK.now() + timedelta(days=3)

    async def arrange(database: Database) -> None:
        queue = JobQueue(database, CATALOGUE, CLOCK)

        def write(tx: Tx) -> None:
            action = lifecycle.get_action(tx, action_id)
            job = snoozes.wake_job(action.account_id, action.message_id, action.id, "Label_1", until)
            snoozes.write_snooze(
                tx, action, until, ("Label_1", "Postroom/Snoozed"), queue.add(tx, job)[0].job_id, CLOCK.now()
            )

        await database.write(write)

    await within(home, arrange)
    assert [each["action_id"] for each in (await succeeded("snoozed", "--json")).json] == [action_id]
    later = (until + timedelta(days=1)).isoformat()
    assert "would come back" in (await succeeded("reschedule", action_id, later, "--dry-run")).stdout
    assert (await postroom("actions", "reschedule", action_id, "2100-01-01T09:00:00+01:00")).code == 2, "too far away"
    await succeeded("reschedule", action_id, later)
    assert (until + timedelta(days=1)).strftime("%Y-%m-%d %H:%M") in (await succeeded("snoozed")).stdout
    await succeeded("wake", action_id)
    assert (await postroom("actions", "wake", history[0])).code == 2


async def work() -> None:
    """What `postroom worker --once` does, on this thread."""
    async with open_app(load()) as app, open_worker(app, until_idle=True) as worker:
        await worker.run()


@pytest.mark.req("JB-12", "JB-15", "JB-17")
async def test_a_worker_does_what_was_asked_for_and_takes_it_back(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SYNC", "LIVE", "BACKFILL", "BAD_MESSAGES"):
        monkeypatch.setenv(f"POSTROOM_RECURRING__{name}", "off")
    async with running_sim(mailbox(0, Label_7="Receipts")) as sim:
        monkeypatch.setenv("POSTROOM_ACCESS_TOKEN", sim.token)
        added = await postroom("account", "add", "gmail", "--email", sim.email, "--api-base", sim.url)
        assert added.code == 0, added.stderr
        gmail_id = sim.control.deliver(letter(), frozenset({"INBOX"}))

        async def take_in(database: Database) -> set[str]:
            account = await database.read(lambda tx: get_account(tx, sim.email))
            await make_message(database, CLOCK, account, gmail_id)
            return {label.name for label in await database.read(lambda tx: labels_of(tx, account.id))}

        await work()
        assert "Receipts" in await within(home, take_in), "the labels of a new account are fetched"
        action_id = (await succeeded("do", "apply_label", gmail_id, "--label", "receipts", "--json")).json["action_id"]
        await work()
        assert "completed" in (await succeeded("show", action_id)).stdout
        assert [each["label_ids"] for each in sim.control.truth()] == [["INBOX", "Label_7"]]
        await succeeded("undo", action_id)
        await work()
        assert [each["label_ids"] for each in sim.control.truth()] == [["INBOX"]]
        assert "undone already" in (await succeeded("show", action_id)).stdout
        assert "completed, and undone" in (await succeeded("show", action_id)).stdout


def invoice(owner: str) -> tuple[bytes, dict[str, bytes]]:
    """HTML with a stub as its text, a picture in it and a file; and what each part contains."""
    parts = {
        "text/html": b"<html><body>Total: 12\x80 <img src='cid:logo@shop'></body></html>",
        "image/png": b"\x89PNG\r\n" + bytes(range(256)),
        "application/pdf": b"%PDF-1.7\n" + bytes(range(256)) * 500,
    }
    message = EmailMessage(policy=policy.SMTP)
    message["From"], message["To"], message["Subject"] = "Shop <shop@shop.example>", owner, "Invoice 7"
    message["Message-ID"], message["List-Id"] = "<7@shop.example>", "<invoices.shop.example>"
    message.set_content("Please view this message in HTML.\n")
    message.add_alternative(parts["text/html"], "text", "html", params={"charset": "windows-1252"})
    page = message.get_body(("html",))
    assert isinstance(page, EmailMessage)
    page.add_related(parts["image/png"], "image", "png", cid="<logo@shop>", disposition="inline")
    message.add_attachment(parts["application/pdf"], "application", "pdf", filename="invoice.pdf")
    return message.as_bytes(), parts


def delivered(sim: GmailSim) -> dict[str, EmailMessage]:
    """What recipients got, by subject, as the standard library reads it."""
    store = sim.control._box.store
    sent = [store.raw(mail.id) for _, mail in store.walk(None, None, None) if "SENT" in mail.label_ids]
    read = [message_from_bytes(raw, policy=policy.default) for raw in sent]
    return {str(each["Subject"]): each for each in read if isinstance(each, EmailMessage)}


def contents(message: EmailMessage) -> dict[str, bytes]:
    leaves = [part for part in message.walk() if not part.is_multipart()]
    return {part.get_content_type(): bytes(part.get_payload(decode=True) or b"") for part in leaves}


@pytest.mark.req("JB-14")
async def test_a_forward_and_a_reply_are_at_the_recipient_byte_by_byte(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SYNC", "LIVE", "BACKFILL", "BAD_MESSAGES"):
        monkeypatch.setenv(f"POSTROOM_RECURRING__{name}", "off")
    file = tmp_path / "Zahlen März.bin"
    file.write_bytes(bytes(range(256)) * 100)
    async with running_sim(mailbox(0)) as sim:
        monkeypatch.setenv("POSTROOM_ACCESS_TOKEN", sim.token)
        assert (await postroom("account", "add", "gmail", "--email", sim.email, "--api-base", sim.url)).code == 0
        assert (await postroom("account", "name", sim.email, "Ömer Owner")).code == 0
        raw, parts = invoice(sim.email)
        gmail_id = sim.control.deliver(raw, frozenset({"INBOX"}))

        async def take_in(database: Database) -> None:
            account = await database.read(lambda tx: get_account(tx, sim.email))
            await make_message(database, CLOCK, account, gmail_id)

        await within(home, take_in)
        await succeeded("do", "forward", gmail_id, "--to", "books@accounting.example", "--note", "Please book.")
        reply = ["do", "reply", gmail_id, "--cc", "boss@example.net", "--subject", "Paid", "--body", "Paid today."]
        await succeeded(*reply, "--body-html", "<p>Paid <b>today</b>.</p>", "--attach", str(file))
        await work()
        await work()
        got = delivered(sim)
    forward, answer = got["Fwd: Invoice 7"], got["Paid"]
    assert (forward["To"], forward["From"]) == ("books@accounting.example", f"Ömer Owner <{sim.email}>")
    arrived = contents(forward)
    assert arrived["text/html"].endswith(parts["text/html"])
    assert b"Please book." in arrived["text/html"].removesuffix(parts["text/html"])
    for kind in ("image/png", "application/pdf"):
        assert arrived[kind] == parts[kind]
    assert (answer["To"], answer["Cc"]) == ("Shop <shop@shop.example>", "boss@example.net")
    assert (answer["In-Reply-To"], answer["References"]) == ("<7@shop.example>", "<7@shop.example>")
    assert (answer["Auto-Submitted"], answer["Precedence"]) == (None, None)
    said = contents(answer)
    assert (said["text/plain"].strip(), said["text/html"].strip()) == (b"Paid today.", b"<p>Paid <b>today</b>.</p>")
    assert said["application/octet-stream"] == file.read_bytes()
    assert [part.get_filename() for part in answer.iter_attachments()] == [file.name]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["forward", "x", "--to", "bob"], "--to: is not an address such as ana@example.org"),
        (["forward", "x"], "--to: is missing"),
        (["reply", "x"], "type: reply needs --body or --body-html"),
        (["reply", "x", "--body", "a", "--reference", "b"], "--reference: is not a Message-ID"),
        (["reply", "x", "--body", "a", "--attach", "none.pdf"], "--attach: none.pdf cannot be read: No such file"),
        (["snooze", "x"], "type: snooze needs --until or --for"),
        (["snooze", "x", "--for", "30x"], "--for: '30x' is not a length of time"),
        (["snooze", "x", "--until", "soon"], "--until: is not a time such as"),
        (["apply_label", "x"], "--label: is missing"),
        (["archive", "x", "--label", "y"], "--label: does not go with archive"),
        (["nonsense", "x"], "type: 'nonsense' is no action; there are archive,"),
    ],
)
def test_a_refusal_names_the_option_that_it_is_about(arguments: list[str], said: str) -> None:
    done = in_this_process("actions", "do", *arguments)
    assert done.code == 2
    assert done.stderr.startswith(f"error: {said}")

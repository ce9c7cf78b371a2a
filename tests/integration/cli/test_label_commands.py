"""`postroom account labels | label`: the owner's words about labels, and what the model may use."""

from __future__ import annotations

from pathlib import Path

import pytest

from postroom.accounts.account import NewAccount, add_account, get_account
from postroom.accounts.mailbox_state import KnownLabel, labels_of, remember_labels
from postroom.audit import AuditFilter, list_entries
from postroom.db import Tx, connect
from postroom.domain.clock import SystemClock
from postroom.mailboxes.protocol import MailboxLabel
from postroom.sim.gmail.generated import GeneratedMailbox
from postroom.sim.gmail.server import running_sim
from tests.support.commands import postroom
from tests.support.gmail_sim import api_client

ME = "me@example.org"


@pytest.fixture
async def mailbox(home: Path) -> Path:
    """An account with two labels, as a worker has seen them."""
    home.mkdir(exist_ok=True)
    database = await connect(f"sqlite:///{home / 'postroom.db'}")
    now = SystemClock().now()

    def run(tx: Tx) -> None:
        account = add_account(tx, NewAccount(ME, "http://127.0.0.1:1", None, frozenset()), now)
        seen = [
            MailboxLabel(id="Label_1", name="Receipts", is_system=False),
            MailboxLabel(id="Label_2", name="Diary", is_system=False),
        ]
        remember_labels(tx, account.id, seen, now)

    await database.write(run)
    await database.close()
    return home


async def known(home: Path) -> tuple[list[KnownLabel], list[str]]:
    """The labels, and what was audited about them."""
    database = await connect(f"sqlite:///{home / 'postroom.db'}")
    found = await database.read(lambda tx: labels_of(tx, get_account(tx, ME).id))
    entries = (await database.read(lambda tx: list_entries(tx, AuditFilter(subject_type="label")))).entries
    await database.close()
    return found, [entry.subject_id for entry in entries]


@pytest.mark.req("JB-10", "JB-17")
async def test_a_label_is_described_and_kept_from_the_model(mailbox: Path) -> None:
    assert (await postroom("account", "label", ME, "receipts", "--describe", "Paid bills")).code == 0
    assert (await postroom("account", "label", ME, "Label_2", "--no-model")).code == 0
    (diary, receipts), audited = await known(mailbox)
    assert (diary.available_to_classifier, receipts.available_to_classifier) == (False, True)
    assert (diary.description, receipts.description) == (None, "Paid bills")
    assert sorted(audited) == ["Label_1", "Label_2"]
    listed = (await postroom("account", "labels", ME, "--json")).json
    assert [each["description"] for each in listed] == [None, "Paid bills"]


@pytest.mark.parametrize(
    ("arguments", "field"),
    [(["Receipts"], "describe"), (["Nothing", "--model"], "name"), (["Receipts", "--describe", "a\nb"], "describe")],
)
async def test_what_cannot_be_done_is_named_and_changes_nothing(
    mailbox: Path, arguments: list[str], field: str
) -> None:
    before = await known(mailbox)
    done = await postroom("account", "label", ME, *arguments)
    assert done.code == 2
    assert f"{field}:" in done.stderr
    assert (await postroom("account", "label", ME, "Receipts", "--no-model", "--dry-run")).code == 0
    assert await known(mailbox) == before


@pytest.mark.req("JB-17")
async def test_labels_are_fetched_at_once_and_rules_follow_them(home: Path) -> None:
    async with running_sim(GeneratedMailbox(3, 1, ME)) as sim:
        added = await postroom(
            "account", "add", "gmail", "--email", ME, "--api-base", sim.url, "--access-token", sim.token
        )
        assert added.code == 0, added.stderr
        async with api_client(sim.url, sim.token) as http:
            made = [(await http.post("labels", json={"name": name})).json()["id"] for name in ("Pay", "Fly")]
            first = (await postroom("account", "labels", ME, "--sync", "--json")).json
            assert {"Pay", "Fly"} <= {label["name"] for label in first["labels"]}
            for name in ("pay", "fly"):
                await postroom("rules", "add", name, "--label", name, "--do", "archive")
            (await http.patch(f"labels/{made[0]}", json={"name": "Bills"})).raise_for_status()
            sim.control.delete_label(made[1])
        done = await postroom("account", "labels", ME, "--sync")
        assert "Renamed: Pay is Bills now." in done.stdout
        assert "Rules that name a label by its new name now: pay." in done.stdout
        assert "Rules that are off for this mailbox, because they use a deleted label: fly." in done.stdout
        rules = {rule["name"]: rule for rule in (await postroom("rules", "list", "--json")).json}
        assert rules["pay"]["condition"] == {"label": "Bills"}
        assert rules["fly"]["disabled_reason"] == f"Label 'Fly' was deleted from Gmail ({ME})"

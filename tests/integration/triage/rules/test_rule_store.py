"""Rules in the database: changes are audited and refused when somebody was quicker; labels that go take rules along."""

from __future__ import annotations

import asyncio
from datetime import datetime
from functools import partial
from typing import Any

import pytest

from postroom.accounts.account import NewAccount, add_account
from postroom.accounts.mailbox_state import DeletedLabel, find_label, label_ids_by_name, remember_labels
from postroom.audit import Actor, AuditFilter, list_entries
from postroom.db import Database, Tx
from postroom.domain.clock import ManualClock
from postroom.domain.errors import BadInput, NotFound
from postroom.mailboxes.protocol import MailboxLabel
from postroom.triage.rules import store
from postroom.triage.rules.engine import RuleBook
from postroom.triage.rules.facts import label_keys
from postroom.triage.rules.rows import StoredRule
from postroom.triage.rules.rule import MOST_RULES, parse_draft
from postroom.triage.rules.store import MoveDirection, make_equal, move_rule
from tests.support.rules import facts as facts_of

ME = Actor("dashboard", "a test")


def draft(name: str = "Receipts", **given: Any) -> Any:
    known = {"name": name, "condition": {"label": "Receipts"}, "actions": ["archive"]}
    return parse_draft({**known, **given})


async def add(database: Database, clock: ManualClock, *names: str, **given: Any) -> list[StoredRule]:
    drafts = [draft(name, **given) for name in names]
    return await database.write(lambda tx: [store.add_rule(tx, each, ME, clock.now()) for each in drafts])


@pytest.mark.req("JB-9")
async def test_rules_come_in_the_order_in_which_they_are_tried(database: Database, clock: ManualClock) -> None:
    await add(database, clock, "b", "c")
    await add(database, clock, "a", priority=-1)
    assert [rule.name for rule in await database.read(store.list_rules)] == ["a", "b", "c"]


@pytest.mark.req("JB-9")
async def test_every_change_is_audited_with_before_and_after(database: Database, clock: ManualClock) -> None:
    [rule] = await add(database, clock, "Receipts")

    def changes(tx: Tx) -> None:
        edited = store.edit_rule(tx, rule, draft("Bills", priority=5), ME, clock.now())
        off = store.disable_rule(tx, edited, None, ME, clock.now())
        on = store.enable_rule(tx, off, ME, clock.now())
        store.remove_rule(tx, on, ME, clock.now())

    await database.write(changes)
    entries = (await database.read(lambda tx: list_entries(tx, AuditFilter(subject_id=rule.id)))).entries
    actions = [entry.action for entry in reversed(entries)]
    assert actions == ["rule.add", "rule.edit", "rule.disable", "rule.enable", "rule.remove"]
    edited = entries[-2]
    assert edited.before is not None
    assert edited.after is not None
    assert (edited.before["name"], edited.after["name"], edited.after["priority"]) == ("Receipts", "Bills", 5)


@pytest.mark.req("JB-9")
async def test_who_comes_second_with_an_old_copy_changes_nothing(database: Database, clock: ManualClock) -> None:
    [rule] = await add(database, clock, "Receipts")
    await database.write(lambda tx: store.edit_rule(tx, rule, draft(priority=1), ME, clock.now()))
    for late in (
        lambda tx: store.edit_rule(tx, rule, draft(priority=2), ME, clock.now()),
        lambda tx: store.disable_rule(tx, rule, None, ME, clock.now()),
        lambda tx: store.remove_rule(tx, rule, ME, clock.now()),
    ):
        with pytest.raises(BadInput, match="changed or removed by someone else"):
            await database.write(late)
    [stored] = await database.read(store.list_rules)
    assert (stored.priority, stored.enabled) == (1, True)
    await database.write(lambda tx: store.remove_rule(tx, stored, ME, clock.now()))
    with pytest.raises(NotFound, match="someone may have removed it"):
        await database.write(lambda tx: move_rule(tx, rule, MoveDirection.UP, ME, clock.now()))


async def test_two_at_once_cannot_take_the_same_name(database: Database, clock: ManualClock) -> None:
    async def one(name: str) -> bool:
        try:
            await add(database, clock, name)
        except BadInput:
            return False
        return True

    assert sorted(await asyncio.gather(*(one(name) for name in ("Receipts", "RECEIPTS", "receipts")))) == [
        False,
        False,
        True,
    ]


async def test_a_rule_is_found_by_name_or_id_and_a_missing_one_named(database: Database, clock: ManualClock) -> None:
    [rule] = await add(database, clock, "Receipts")
    names = ("Receipts", "receipts", rule.id)
    found = await database.read(lambda tx: {store.get_rule(tx, name).id for name in names})
    assert found == {rule.id}
    with pytest.raises(NotFound, match="rules list"):
        await database.read(lambda tx: store.get_rule(tx, "Bills"))


async def test_there_is_a_most_rules(database: Database, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MOST_RULES >= 500
    monkeypatch.setattr(store, "MOST_RULES", 2)
    with pytest.raises(BadInput, match="which is the most"):
        await add(database, clock, "a", "b", "c")


@pytest.mark.req("JB-9")
async def test_the_version_changes_with_every_change_even_when_the_clock_goes_back(database: Database) -> None:
    clock = ManualClock()
    seen = {await database.read(store.version)}

    async def changed(change: Any) -> Any:
        result = await database.write(change)
        version = await database.read(store.version)
        assert version not in seen
        seen.add(version)
        clock.advance(-5)
        return result

    first = await changed(lambda tx: store.add_rule(tx, draft("a"), ME, clock.now()))
    second = await changed(lambda tx: store.add_rule(tx, draft("b"), ME, clock.now()))
    first = await changed(lambda tx: store.edit_rule(tx, first, draft("c"), ME, clock.now()))
    first = await changed(lambda tx: store.disable_rule(tx, first, "because", ME, clock.now()))
    first = await changed(lambda tx: store.enable_rule(tx, first, ME, clock.now()))
    await changed(lambda tx: store.remove_rule(tx, second, ME, clock.now()))
    await changed(lambda tx: store.add_rule(tx, draft("d"), ME, clock.now()))


@pytest.mark.req("JB-17", "JB-9")
async def test_a_deleted_label_disables_the_rules_that_use_it_and_no_others(
    database: Database, clock: ManualClock
) -> None:
    mine, other = await database.write(lambda tx: _accounts(tx, clock.now()))
    uses: dict[str, dict[str, Any]] = {
        "condition": {"condition": {"any": [{"not": {"label": ["x", "RECEIPTS"]}}]}},
        "condition by id": {"condition": {"label": "Label_7"}},
        "action": {"condition": {"larger_than": 0}, "actions": ["apply_label=Receipts", "archive"]},
        "action by id": {"condition": {"larger_than": 0}, "actions": ["remove_label=Label_7"]},
        "this account's": {"scope": f"account:{mine}"},
    }
    others: dict[str, dict[str, Any]] = {
        "another label": {"condition": {"label": "Bills"}},
        "another account's": {"scope": f"account:{other}"},
        "only the word": {"condition": {"subject_contains": "Receipts"}},
        "off anyway": {"enabled": False},
    }
    for name, given in {**uses, **others}.items():
        await add(database, clock, name, **given)
    gone = DeletedLabel("Receipts", frozenset({"label_7", "receipts"}))
    names = await database.write(lambda tx: store.disable_rules_using(tx, mine, gone, clock.now()))
    assert sorted(names) == sorted(uses)
    stored = {rule.name: rule for rule in await database.read(store.list_rules)}
    reason = "Label 'Receipts' was deleted from Gmail (me@example.org)"
    alone = stored["this account's"]
    assert (alone.enabled, alone.disabled_reason, alone.off_for) == (False, reason, {})
    for name in uses.keys() - {"this account's"}:
        assert (stored[name].enabled, stored[name].disabled_reason, stored[name].off_for) == (
            True,
            None,
            {mine: reason},
        )
    assert {(stored[name].enabled, stored[name].disabled_reason) for name in others} == {(True, None), (False, None)}
    assert await database.write(lambda tx: store.disable_rules_using(tx, mine, gone, clock.now())) == []


@pytest.mark.req("JB-17", "JB-9")
async def test_a_rule_is_off_once_all_its_mailboxes_lack_the_label_and_enabling_it_clears_that(
    database: Database, clock: ManualClock
) -> None:
    mine, other = await database.write(lambda tx: _accounts(tx, clock.now()))
    await add(database, clock, "Receipts", condition={"label": "Receipts"})
    gone = DeletedLabel("Receipts", frozenset({"label_7", "receipts"}))
    for account in (mine, other):
        await database.write(partial(store.disable_rules_using, account_id=account, label=gone, now=clock.now()))
    [rule] = await database.read(store.list_rules)
    assert (rule.enabled, rule.disabled_reason) == (
        False,
        "Label 'Receipts' was deleted from Gmail (other@example.org)",
    )
    on = await database.write(lambda tx: store.enable_rule(tx, rule, ME, clock.now()))
    assert (on.enabled, on.off_for) == (True, {})


@pytest.mark.req("JB-17", "JB-9")
async def test_a_rule_that_is_off_for_a_mailbox_judges_the_mail_of_the_others(
    database: Database, clock: ManualClock
) -> None:
    mine, other = await database.write(lambda tx: _accounts(tx, clock.now()))
    await add(database, clock, "Receipts", condition={"any": [{"label": "Receipts"}, {"larger_than": 0}]})
    gone = DeletedLabel("Receipts", frozenset({"receipts"}))
    await database.write(lambda tx: store.disable_rules_using(tx, mine, gone, clock.now()))
    book = RuleBook(database, clock)
    mail = {account: facts_of(account_id=account, size_bytes=10) for account in (mine, other)}
    assert await book.match(mail[mine]) is None
    assert await book.match(mail[other]) is not None


@pytest.mark.req("JB-17", "JB-9")
async def test_a_renamed_label_gets_its_new_name_in_rules_unless_another_mailbox_still_uses_the_old_one(
    database: Database, clock: ManualClock
) -> None:
    mine, other = await database.write(lambda tx: _accounts(tx, clock.now()))

    async def known(account: str, **names: str) -> None:
        listed = [MailboxLabel(label_id, name, False) for label_id, name in names.items()]
        await database.write(lambda tx: remember_labels(tx, account, listed, clock.now()))

    await known(mine, L1="Receipts", L2="Trips")
    await known(other, L9="Trips")
    await add(database, clock, "receipts", condition={"any": [{"not": {"label": ["RECEIPTS", "x"]}}]})
    await add(database, clock, "trips", condition={"label": "Trips"}, actions=["apply_label=Trips"])
    await add(database, clock, "my trips", scope=f"account:{mine}", actions=["apply_label=trips", "archive"])
    await known(mine, L1="Bills", L2="Travel")
    changed = await database.write(lambda tx: store.follow_renamed_labels(tx, mine, clock.now()))
    assert sorted(changed) == ["my trips", "receipts"]
    drafts = {rule.name: rule.draft for rule in await database.read(store.list_rules) if rule.draft is not None}
    assert drafts["receipts"].condition == {"any": [{"not": {"label": ["Bills", "x"]}}]}
    assert drafts["my trips"].actions[0].to_json() == {"type": "apply_label", "label": "Travel"}
    assert drafts["trips"].condition == {"label": "Trips"}
    found = await database.read(lambda tx: find_label(tx, mine, "Trips"))
    assert found is not None
    assert (found.label_id, found.name) == ("L2", "Travel")
    ids = await database.read(lambda tx: label_ids_by_name(tx, mine))
    assert "trips" in label_keys(["Travel"], ids)
    assert await database.write(lambda tx: store.follow_renamed_labels(tx, mine, clock.now())) == []


@pytest.mark.req("JB-17")
async def test_a_former_name_that_another_label_takes_means_that_label(database: Database, clock: ManualClock) -> None:
    mine, _ = await database.write(lambda tx: _accounts(tx, clock.now()))
    for listed in ([("L1", "Old")], [("L1", "New")], [("L1", "New"), ("L2", "Old")]):
        labels = [MailboxLabel(label_id, name, False) for label_id, name in listed]
        await database.write(partial(remember_labels, account_id=mine, found=labels, now=clock.now()))
    assert await database.read(lambda tx: label_ids_by_name(tx, mine)) == {"new": "L1", "old": "L2"}


async def test_an_edit_keeps_the_reason_until_the_rule_is_enabled(database: Database, clock: ManualClock) -> None:
    [rule] = await add(database, clock, "Receipts")
    off = await database.write(lambda tx: store.disable_rule(tx, rule, "It failed", ME, clock.now()))
    edited = await database.write(
        lambda tx: store.edit_rule(tx, off, draft(priority=3, enabled=False), ME, clock.now())
    )
    assert (edited.enabled, edited.disabled_reason) == (False, "It failed")
    on = await database.write(lambda tx: store.enable_rule(tx, edited, ME, clock.now()))
    assert (on.enabled, on.disabled_reason) == (True, None)


@pytest.mark.req("JB-9")
async def test_an_import_touches_only_what_differs(database: Database, clock: ManualClock) -> None:
    same, changed, removed = await add(database, clock, "same", "changed", "removed")
    wanted = [draft("same"), draft("changed", priority=7), draft("new")]
    found = await database.write(lambda tx: make_equal(tx, wanted, ME, clock.now()))
    assert ([each.name for each in found.added], found.unchanged) == (["new"], 1)
    assert [(each.before.id, each.fields) for each in found.changed] == [(changed.id, ("priority",))]
    assert [each.id for each in found.removed] == [removed.id]
    rules = {rule.name: rule for rule in await database.read(store.list_rules)}
    assert rules["same"] == same
    assert (await database.write(lambda tx: make_equal(tx, wanted, ME, clock.now()))).is_empty


async def test_an_import_with_a_fault_changes_nothing(database: Database, clock: ManualClock) -> None:
    [rule] = await add(database, clock, "same")
    unknown = [draft("new"), draft("other", scope="account:nobody@example.org")]
    with pytest.raises(NotFound, match="there is no account nobody"):
        await database.write(lambda tx: make_equal(tx, unknown, ME, clock.now()))
    assert await database.read(store.list_rules) == [rule]


def _accounts(tx: Tx, now: datetime) -> tuple[str, str]:
    base = "http://127.0.0.1:9"
    return add_account(tx, NewAccount("me@example.org", base), now).id, add_account(
        tx, NewAccount("other@example.org", base), now
    ).id


@pytest.mark.req("JB-9")
async def test_names_are_one_name_whatever_their_capitals_in_every_language(
    database: Database, clock: ManualClock
) -> None:
    [rule] = await add(database, clock, "Ärger")
    with pytest.raises(BadInput, match="already"):
        await add(database, clock, "ÄRGER")
    assert (await database.read(lambda tx: store.get_rule(tx, "äRGER"))).id == rule.id

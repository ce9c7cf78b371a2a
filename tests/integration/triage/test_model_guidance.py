"""What the model is told about a sender's mail: scopes merged, each rule once, within bounds."""

from __future__ import annotations

import pytest

from postroom.accounts.account import NewAccount, add_account
from postroom.audit import Actor, AuditFilter, list_entries
from postroom.db import Database
from postroom.db.tables.triage import model_rules
from postroom.domain.clock import ManualClock
from postroom.domain.errors import BadInput
from postroom.domain.ids import new_id
from postroom.domain.model_costs import MOST_GUIDANCE_BYTES
from postroom.triage import guidance as store
from postroom.triage.guidance import MOST_MODEL_RULES, guidance_for, within_bounds
from postroom.triage.rules.files import (
    GuidanceChanges,
    make_directions_equal,
    make_guidance_equal,
    parse_directions,
    parse_guidance,
)
from postroom.triage.rules.rule import parse_scope

ME = Actor("dashboard", "a test")


async def add(database: Database, clock: ManualClock, name: str, scope: str = "global", text: str = "") -> None:
    await database.write(
        lambda tx: store.add_model_rule(tx, name, parse_scope(scope), text or f"About {name}", ME, clock.now())
    )


async def names(database: Database, account_id: str | None, sender: str) -> list[str]:
    found = await database.read(lambda tx: guidance_for(tx, account_id, sender))
    return [rule.name for rule in found.rules]


@pytest.mark.req("JB-10")
async def test_all_scopes_that_concern_a_message_are_merged_the_narrowest_first(
    database: Database, clock: ManualClock
) -> None:
    account = await database.write(
        lambda tx: add_account(tx, NewAccount("me@example.org", "http://127.0.0.1:9"), clock.now())
    )
    await add(database, clock, "all")
    await add(database, clock, "mine", "account:me@example.org")
    await add(database, clock, "domain", "domain:Mail.Shop.example")
    await add(database, clock, "parent", "domain:shop.example")
    await add(database, clock, "sender", "sender:Ann@Mail.SHOP.example")
    await add(database, clock, "elsewhere", "domain:example.com")
    await add(database, clock, "like it", "domain:op.example")
    assert await names(database, account.id, "ANN@mail.shop.Example") == ["sender", "domain", "parent", "mine", "all"]
    assert await names(database, None, "bob@shop.example") == ["parent", "all"]
    assert await names(database, None, "") == ["all"]


@pytest.mark.req("JB-10")
async def test_capitals_in_the_table_make_no_difference(database: Database, clock: ManualClock) -> None:
    row = {"id": new_id(), "name": "by hand", "scope": "sender", "scope_ref": "ANN@Example.ORG", "text": "Hello"}
    await database.write(
        lambda tx: tx.execute(model_rules.insert().values(**row, created_at=clock.now(), updated_at=clock.now()))
    )
    assert await names(database, None, "ann@example.org") == ["by hand"]


@pytest.mark.req("JB-10")
async def test_what_is_switched_off_is_not_told(database: Database, clock: ManualClock) -> None:
    await add(database, clock, "all")
    told = ("Be brief.", "Be kind.")
    await database.write(lambda tx: [store.add_direction(tx, text, ME, clock.now()) for text in told])
    await database.write(
        lambda tx: store.change_direction(tx, store.get_direction(tx, 1), {"enabled": False}, ME, clock.now())
    )
    await database.write(
        lambda tx: store.change_model_rule(tx, store.get_model_rule(tx, "ALL"), {"enabled": False}, ME, clock.now())
    )
    found = await database.read(lambda tx: guidance_for(tx, None, "ann@example.org"))
    assert (found.directions, found.rules, found.left_out) == (("Be kind.",), (), ())


@pytest.mark.req("JB-10")
async def test_there_is_a_bound_and_what_is_left_out_is_named(database: Database, clock: ManualClock) -> None:
    for number in range(10):
        await add(database, clock, f"long {number}", text="ü" * 1_000)
    await add(database, clock, "Ann", "sender:ann@example.org")
    found = await database.read(lambda tx: guidance_for(tx, None, "ann@example.org"))
    assert found.rules[0].name == "Ann"
    assert sum(len(rule.text.encode()) for rule in found.rules) <= MOST_GUIDANCE_BYTES
    assert len(found.rules) <= MOST_MODEL_RULES
    assert {rule.name for rule in found.rules} | set(found.left_out) == {"Ann", *(f"long {n}" for n in range(10))}
    assert found.left_out


@pytest.mark.req("JB-10")
async def test_changes_are_audited_and_old_copies_refused(database: Database, clock: ManualClock) -> None:
    await add(database, clock, "Shops", "domain:shop.example")
    old = await database.read(lambda tx: store.get_model_rule(tx, "Shops"))
    await database.write(lambda tx: store.change_model_rule(tx, old, {"text": "Other"}, ME, clock.now()))
    with pytest.raises(BadInput, match="someone else"):
        await database.write(lambda tx: store.change_model_rule(tx, old, {"text": "Late"}, ME, clock.now()))
    with pytest.raises(BadInput, match="already"):
        await add(database, clock, "shops")
    await database.write(lambda tx: store.remove_model_rule(tx, store.get_model_rule(tx, "Shops"), ME, clock.now()))
    entries = (await database.read(lambda tx: list_entries(tx, AuditFilter(subject_id=old.id)))).entries
    assert [entry.action for entry in entries] == ["guidance.remove", "guidance.edit", "guidance.add"]


@pytest.mark.req("JB-17")
async def test_guidance_that_names_a_deleted_label_is_reported_and_left_on(
    database: Database, clock: ManualClock
) -> None:
    await add(database, clock, "a", text="Put shops under RECEIPTS.")
    await add(database, clock, "b", text="Something else.")
    assert await database.read(lambda tx: store.model_rules_naming(tx, new_id(), "Receipts")) == ["a"]
    assert all(rule.enabled for rule in await database.read(store.list_model_rules))


@pytest.mark.req("JB-10")
async def test_of_several_senders_only_what_concerns_them_all_is_told(database: Database, clock: ManualClock) -> None:
    for name, scope in (("boss", "sender:boss@bank.example"), ("bank", "domain:bank.example"), ("all", "global")):
        await add(database, clock, name, scope)

    async def told(*senders: str) -> list[str]:
        return [rule.name for rule in (await database.read(lambda tx: guidance_for(tx, None, *senders))).rules]

    assert await told("boss@bank.example") == ["boss", "bank", "all"]
    assert await told("boss@bank.example", "clerk@mail.bank.example") == ["bank", "all"]
    assert await told("boss@bank.example", "eve@example.com") == await told() == ["all"]


@pytest.mark.req("JB-10")
async def test_an_old_copy_of_anything_is_refused_even_within_one_moment(
    database: Database, clock: ManualClock
) -> None:
    await add(database, clock, "Shops")
    direction = await database.write(lambda tx: store.add_direction(tx, "Be brief.", ME, clock.now()))
    rule = await database.read(lambda tx: store.get_model_rule(tx, "Shops"))
    off = {"enabled": False}
    await database.write(lambda tx: store.change_direction(tx, direction, off, ME, clock.now()))
    await database.write(lambda tx: store.change_model_rule(tx, rule, off, ME, clock.now()))
    for late in (
        lambda tx: store.change_direction(tx, direction, {"text": "Late"}, ME, clock.now()),
        lambda tx: store.remove_direction(tx, direction, ME, clock.now()),
        lambda tx: store.change_model_rule(tx, rule, {"name": "Late"}, ME, clock.now()),
        lambda tx: store.remove_model_rule(tx, rule, ME, clock.now()),
    ):
        with pytest.raises(BadInput, match="someone else"):
            await database.write(late)


@pytest.mark.req("JB-10")
def test_the_longest_text_has_room_and_a_longer_one_is_refused() -> None:
    longest = "ü" * (store.LONGEST_TEXT // 2)
    assert within_bounds([store.parse_text(longest)], []).left_out == ()
    with pytest.raises(BadInput, match="2,002 bytes"):
        store.parse_text(longest + "ü")


@pytest.mark.req("JB-10")
async def test_directions_and_guidance_become_those_of_a_file(database: Database, clock: ManualClock) -> None:
    async def put(*texts: str) -> GuidanceChanges:
        drafts = parse_directions(list(texts))
        return await database.write(lambda tx: make_directions_equal(tx, drafts, ME, clock.now()))

    async def texts() -> list[str]:
        return [each.text for each in await database.read(store.list_directions)]

    assert (await put("a", "b", "c")).added == ("a", "b", "c")
    assert await put("a", "b", "c") == GuidanceChanges(unchanged=3)
    assert await put("a", "c") == GuidanceChanges(removed=("b",), unchanged=2)
    assert (await put("c", "d", "a")).added == ("d",)
    assert await texts() == ["c", "d", "a"]

    async def guide(*drafts: dict[str, str]) -> GuidanceChanges:
        read = parse_guidance(list(drafts))
        return await database.write(lambda tx: make_guidance_equal(tx, read, ME, clock.now()))

    shops = {"name": "Shops", "text": "Offers may go.", "scope": "domain:shop.example"}
    assert (await guide(shops, {"name": "All", "text": "x"})).added == ("Shops", "All")
    assert await guide(shops | {"name": "SHOPS", "text": "Keep."}) == GuidanceChanges(
        changed=("SHOPS: name, text",), removed=("All",)
    )
    assert [rule.text for rule in await database.read(store.list_model_rules)] == ["Keep."]

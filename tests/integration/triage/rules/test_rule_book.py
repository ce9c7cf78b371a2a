"""The rules at hand: changes of any process count for the next message, and a broken row harms only itself."""

from __future__ import annotations

import asyncio
import json

import pytest
from sqlalchemy import text

from postroom.audit import SYSTEM, Actor, AuditFilter, list_entries
from postroom.db import Database, Dialect, Tx
from postroom.domain.clock import ManualClock
from postroom.domain.ids import new_id
from postroom.triage.rules import engine, store
from postroom.triage.rules.conditions import RuleCondition, SenderIs
from postroom.triage.rules.engine import Check, RuleBook, compile_check
from postroom.triage.rules.rows import StoredRule
from postroom.triage.rules.rule import parse_draft
from tests.support.databases import on_sqlite
from tests.support.rules import facts

ME = Actor("dashboard", "a test")
_INSERT = (
    "INSERT INTO rules (id, name, scope, scope_ref, priority, condition, actions, unattended, enabled, created_at, "
    "updated_at) VALUES (:id, :name, 'global', '', 1, {condition}, {actions}, false, true, :now, :now)"
)


async def put(database: Database, clock: ManualClock, name: str, condition: str, actions: str = '["archive"]') -> None:
    """A row as somebody with a database tool would write it."""
    as_json = "CAST(:{0} AS jsonb)" if database.dialect is Dialect.POSTGRESQL else ":{0}"
    sql = _INSERT.format(condition=as_json.format("condition"), actions=as_json.format("actions"))
    now = clock.now() if database.dialect is Dialect.POSTGRESQL else clock.now().isoformat()
    values = {"id": new_id(), "name": name, "condition": condition, "actions": actions, "now": now}
    await database.write(lambda tx: tx.execute(text(sql), values))


async def add(database: Database, clock: ManualClock, name: str, subject: str) -> StoredRule:
    draft = parse_draft({"name": name, "condition": {"subject_contains": subject}, "actions": ["archive"]})
    return await database.write(lambda tx: store.add_rule(tx, draft, ME, clock.now()))


async def matched(book: RuleBook, subject: str = "A letter") -> str | None:
    found = await book.match(facts(subject=subject))
    return found.rule.name if found else None


@pytest.mark.req("JB-9")
async def test_a_change_counts_for_the_next_message(database: Database, clock: ManualClock) -> None:
    book = RuleBook(database, clock)
    assert await matched(book) is None
    rule = await add(database, clock, "Letters", "letter")
    assert await matched(book) == "Letters"
    off = await database.write(lambda tx: store.disable_rule(tx, rule, None, ME, clock.now()))
    assert await matched(book) is None
    await database.write(lambda tx: store.enable_rule(tx, off, ME, clock.now()))
    assert await matched(book) == "Letters"
    await database.write(lambda tx: store.remove_rule(tx, store.get_rule(tx, "Letters"), ME, clock.now()))
    assert await matched(book) is None


@pytest.mark.req("JB-9")
async def test_nothing_is_compiled_again_while_nothing_changes(
    database: Database, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await add(database, clock, "Letters", "letter")
    book = RuleBook(database, clock)
    await matched(book)
    monkeypatch.setattr(engine, "compile_check", None)
    assert await matched(book) == "Letters"


async def test_a_row_changed_by_hand_counts_after_a_while(database: Database, clock: ManualClock) -> None:
    book = RuleBook(database, clock)
    await add(database, clock, "Letters", "letter")
    await matched(book)
    await database.write(lambda tx: tx.execute(text("UPDATE rules SET name = 'By hand'")))
    clock.advance(600)
    assert await matched(book) == "By hand"


BROKEN = {
    "no object": "[]",
    "empty": "{}",
    "null": "null",
    "unknown": '{"colour": "red"}',
    "bad pattern": '{"subject_regex": "(a"}',
    "backreference": r'{"subject_regex": "(a)\\1"}',
    "deep": '{"not": ' * 50 + "{}" + "}" * 50,
    "wrong type": '{"sender": {"a": 1}}',
    "a number": "17",
}


@pytest.mark.req("JB-7", "JB-9")
@pytest.mark.parametrize("kind", BROKEN)
async def test_a_broken_stored_rule_is_disabled_with_the_reason_and_harms_no_other(
    database: Database, clock: ManualClock, kind: str
) -> None:
    await put(database, clock, kind, BROKEN[kind])
    await put(database, clock, "bad actions", '{"subject_contains": "letter"}', '["fly"]')
    await add(database, clock, "Letters", "letter")
    book = RuleBook(database, clock)
    assert await matched(book) == "Letters"
    rules = {rule.name: rule for rule in await database.read(store.list_rules)}
    assert rules["Letters"].enabled
    for name in (kind, "bad actions"):
        assert not rules[name].enabled
        assert (rules[name].disabled_reason or "").startswith("It cannot be read: ")
    audited = await database.read(lambda tx: list_entries(tx, AuditFilter(action="rule.disable")))
    assert {entry.actor for entry in audited.entries} == {SYSTEM}
    assert len(audited.entries) == 2
    assert await matched(book) == "Letters"
    assert len((await database.read(lambda tx: list_entries(tx, AuditFilter(action="rule.disable")))).entries) == 2


@pytest.mark.req("JB-7", "JB-9")
async def test_a_row_that_is_not_even_json_harms_no_other(clock: ManualClock, database: Database) -> None:
    if database.dialect is Dialect.POSTGRESQL:
        pytest.skip("PostgreSQL refuses to store it")
    await put(database, clock, "garbage", "{not json", "\x01")
    await put(database, clock, "endless", "[" * 100_000)
    times = "UPDATE rules SET created_at = 'yesterday', updated_at = datetime('now') WHERE name = 'garbage'"
    await database.write(lambda tx: tx.execute(text(times)))
    await add(database, clock, "Letters", "letter")
    assert await matched(RuleBook(database, clock)) == "Letters"
    off = [rule.name for rule in await database.read(store.list_rules) if not rule.enabled]
    assert sorted(off) == ["endless", "garbage"]


@pytest.mark.req("JB-7")
async def test_a_rule_that_fails_on_a_message_is_disabled_and_the_next_one_decides(
    database: Database, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(condition: RuleCondition) -> Check:
        return _fail if isinstance(condition, SenderIs) else compile_check(condition)

    monkeypatch.setattr(engine, "compile_check", failing)
    await put(database, clock, "Fails", json.dumps({"sender": "ann@example.org"}))
    await add(database, clock, "Letters", "letter")
    book = RuleBook(database, clock)
    assert await matched(book) == "Letters"
    failed = await database.read(lambda tx: store.get_rule(tx, "Fails"))
    assert failed.disabled_reason is not None
    assert failed.disabled_reason.startswith("It failed on a message: ZeroDivisionError at ")


@on_sqlite
@pytest.mark.req("JB-9")
async def test_five_hundred_rules_and_a_broken_one(database: Database, clock: ManualClock) -> None:
    def many(tx: Tx) -> None:
        for number in range(500):
            condition = {"subject_regex": f"(a+)+{number}$"}
            store.add_rule(
                tx, parse_draft({"name": f"{number}", "condition": condition, "actions": ["star"]}), ME, clock.now()
            )

    await database.write(many)
    await put(database, clock, "broken", '{"any": []}')
    book = RuleBook(database, clock)
    assert await matched(book, "a" * 2_000) is None
    assert await matched(book, "a" * 1_000 + "499") == "499"


def _fail(message: object, now: object) -> bool:
    return bool(1 / 0)


@on_sqlite
@pytest.mark.req("JB-9")
async def test_whoever_is_cancelled_while_rules_are_read_leaves_no_old_ones_behind(
    database: Database, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = RuleBook(database, clock)
    assert await matched(book) is None
    await add(database, clock, "Letters", "letter")

    def cancelled(*_: object) -> None:
        raise asyncio.CancelledError

    with monkeypatch.context() as patched:
        patched.setattr(engine, "RuleIndex", cancelled)
        with pytest.raises(asyncio.CancelledError):
            await matched(book)
    assert await matched(book) == "Letters"

"""The fast engine: right, quick on hostile patterns, and not to be stopped by a rule that fails."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import pytest
from benchmarks.peers.naive_rules import NaiveRules
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.mail import patterns
from postroom.mail.patterns import PatternSet
from postroom.triage.rules import engine
from postroom.triage.rules.conditions import RuleCondition, SenderIs
from postroom.triage.rules.engine import Check, RuleSet, compile_check
from postroom.triage.rules.facts import MessageFacts
from tests.support.rules import NOW, conditions, facts, mails, rule


@pytest.mark.req("JB-9")
@settings(max_examples=150, deadline=None)
@given(st.lists(conditions(), max_size=12), st.lists(mails(), min_size=1, max_size=5))
def test_the_engine_finds_what_a_naive_evaluator_finds(
    trees: list[dict[str, Any]], messages: list[MessageFacts]
) -> None:
    rules = RuleSet(rule(tree, f"{number:03}") for number, tree in enumerate(trees))
    for message in messages:
        found = rules.first_match(message, NOW)
        assert (int(found.rule.name) if found else None) == NaiveRules(trees).first(message, NOW)
    assert not rules.broken


@pytest.mark.req("JB-9")
def test_the_lowest_priority_number_comes_first_and_age_decides_between_equals() -> None:
    everything = {"larger_than": 0}
    rules = RuleSet([rule(everything, "c", priority=2), rule(everything, "b", priority=1), rule(everything, "a")])
    assert _name(rules, facts()) == "b"
    assert _name(RuleSet([rule(everything, "younger"), rule(everything, "older")]), facts()) == "older"


@pytest.mark.req("JB-9")
@pytest.mark.parametrize(
    ("scope", "message", "is_meant"),
    [
        ("global", {}, True),
        ("account:0199a1c2-7e5b-7abc-8def-0123456789ab", {"account_id": "0199a1c2-7e5b-7abc-8def-0123456789ab"}, True),
        ("account:0199a1c2-7e5b-7abc-8def-0123456789ab", {"account_id": None}, False),
        ("domain:example.org", {"sender": "ann@example.org"}, True),
        ("domain:EXAMPLE.org", {"sender": "ann@Mail.Example.ORG"}, True),
        ("domain:example.org", {"sender": "ann@notexample.org"}, False),
        ("sender:Ann@Example.org", {"sender": "ANN@example.ORG"}, True),
        ("sender:ann@example.org", {"sender": "bob@example.org"}, False),
    ],
)
def test_a_rule_is_for_the_mail_of_its_scope(scope: str, message: dict[str, Any], is_meant: bool) -> None:
    rules = RuleSet([rule({"larger_than": 0}, scope=scope)])
    assert (rules.first_match(facts(**message), NOW) is not None) is is_meant


@pytest.mark.req("JB-9")
def test_a_message_with_two_senders_is_from_neither_alone() -> None:
    rules = RuleSet([rule({"sender": "ann@example.org"}), rule({"sender_domain": "example.org"})])
    both = facts(headers={"from": "ann@example.org, eve@example.com"})
    assert rules.first_match(both, NOW) is None
    assert rules.first_match(facts(headers={"from": "Ann <ann@example.org>"}), NOW) is not None


@pytest.mark.req("JB-9")
def test_a_name_that_holds_an_address_is_not_the_sender() -> None:
    rules = RuleSet([rule({"sender": "bank@bank.example"})])
    assert rules.first_match(facts(headers={"from": '"bank@bank.example, " <eve@example.com>'}), NOW) is None


@pytest.mark.req("JB-9")
@pytest.mark.parametrize(
    "pattern", ["(a+)+$", "(a|a)*$", "(.*a){20}$", "^(([a-z])+.)+[A-Z]([a-z])+$", "(x+x+)+y", "((a{1,20}){1,20})b"]
)
def test_no_pattern_hangs_on_any_subject(pattern: str) -> None:
    rules = RuleSet([rule({"subject_regex": pattern}), rule({"header": {"name": "x-long", "regex": pattern}})])
    long = "a" * 100_000 + "!"
    started = time.process_time()
    for _ in range(20):
        rules.first_match(facts(subject=long, headers={"x-long": long}), NOW)
    assert time.process_time() - started < 5  # a backtracking engine would need longer than the sun will shine


@pytest.mark.req("JB-9")
def test_a_thousand_hostile_patterns_at_once_stay_right() -> None:
    trees = [{"subject_regex": rf"(a|b|ab)*c{{{number % 40}}}x{number}$"} for number in range(500)]
    names = [f"{number:03}" for number in range(500)]
    rules = RuleSet(rule(tree, name) for tree, name in zip(trees, names, strict=True))
    assert _name(rules, facts(subject="ab" * 200 + "c" * 13 + "x413")) == "413"
    assert _name(rules, facts(subject="ab" * 900)) is None


@pytest.mark.req("JB-9")
def test_a_set_of_patterns_that_runs_out_of_memory_looks_for_each_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    both = PatternSet(["receipt", "invoice"], "a test")

    class _Exhausted:
        def Match(self, text: bytes) -> None:
            return None

    monkeypatch.setattr(both, "_sets", [(0, 2, _Exhausted())])
    assert both.found_in(b"your invoice") == [1]


@pytest.mark.req("JB-7", "JB-9")
def test_a_rule_that_fails_is_passed_over_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(condition: RuleCondition) -> Check:
        if condition == SenderIs(frozenset({"ann@example.org"})):
            return _fail
        return compile_check(condition)

    monkeypatch.setattr(engine, "compile_check", failing)
    broken, sound = rule({"sender": "ann@example.org"}, "broken"), rule({"subject_contains": "letter"}, "sound")
    rules = RuleSet([broken, sound])
    assert _name(rules, facts()) == "sound"
    assert list(rules.broken) == ["broken"]
    assert rules.broken["broken"].startswith("It failed on a message: ValueError at _fail:")
    rules.broken.clear()
    assert _name(rules, facts()) == "sound"
    assert not rules.broken, "once is enough: it is not tried again"


@pytest.mark.req("JB-7")
def test_a_failing_index_costs_time_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = RuleSet([rule({"sender": "bob@example.org"}, "a"), rule({"subject_contains": "letter"}, "b")])

    def fail(message: MessageFacts) -> int:
        raise MemoryError

    monkeypatch.setattr(rules._index, "candidates", fail)
    assert _name(rules, facts()) == "b"


def test_an_unknown_size_is_neither_large_nor_small() -> None:
    unknown = facts(size_bytes=None)
    for condition in ({"larger_than": 0}, {"smaller_than": "1G"}):
        assert RuleSet([rule(condition)]).first_match(unknown, NOW) is None


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ({"subject_contains": "uberweisung"}, {"subject": "Ihre ÜBERWEISUNG"}),
        ({"subject_contains": "Ärger"}, {"subject": "viel arger"}),
        ({"recipient": "Me+Shop@Example.org"}, {"headers": {"cc": '"Me" <me+shop@example.ORG>'}}),
        ({"list_id": "Dev list <dev.lists.example.org>"}, {"headers": {"List-Id": "<DEV.lists.example.org>"}}),
        ({"label": "receipts"}, {"labels": ["Receipts"]}),
        ({"label": "Label_7"}, {"labels": ["Receipts"], "label_ids": {"receipts": "Label_7"}}),
        ({"sender_domain": "bücher.example"}, {"sender": "a@xn--bcher-kva.example"}),
    ],
)
def test_people_need_not_know_how_it_was_spelled(condition: Mapping[str, Any], message: dict[str, Any]) -> None:
    assert RuleSet([rule(condition)]).first_match(facts(**message), NOW) is not None


def _fail(message: MessageFacts, now: datetime) -> bool:
    raise ValueError("no such thing")


def _name(rules: RuleSet, message: MessageFacts) -> str | None:
    found = rules.first_match(message, NOW)
    return found.rule.name if found else None


@pytest.mark.req("JB-9")
def test_more_patterns_than_one_set_can_hold_break_no_mail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "_MOST_MEMORY_OF_A_SET", 1 << 16)
    trees = [{"subject_regex": [rf"[a-z]{{1,20}}{rule}x{n}$" for n in range(10)]} for rule in range(6)]
    rules = RuleSet([*(rule(tree, f"{n:03}") for n, tree in enumerate(trees)), rule({"larger_than": 0}, "last")])
    assert _name(rules, facts(subject="abc4x9")) == "004"
    assert _name(rules, facts(subject="A letter")) == "last"
    assert not rules.broken


@pytest.mark.req("JB-9", "PL-6")
def test_the_reason_of_a_failed_rule_holds_nothing_of_the_mail(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(condition: RuleCondition) -> Check:
        def check(facts: MessageFacts, now: datetime) -> bool:
            raise ValueError(facts.subject)

        return check

    monkeypatch.setattr(engine, "compile_check", failing)
    rules = RuleSet([rule({"larger_than": 0}, "a")])
    assert _name(rules, facts(subject="my secret")) is None
    assert rules.broken["a"].startswith("It failed on a message: ValueError at check:")
    assert "secret" not in rules.broken["a"] + "".join(capsys.readouterr())


@pytest.mark.req("JB-9")
@pytest.mark.parametrize("wanted", ["Receipts", "label_7"])
@pytest.mark.parametrize("there", ["Receipts", "Label_7"])
def test_a_label_is_found_by_name_and_by_id_whichever_the_message_has(wanted: str, there: str) -> None:
    rules = RuleSet([rule({"label": wanted})])
    ids = {"receipts": "Label_7", "other": "Label_8"}
    assert rules.first_match(facts(labels=[there], label_ids=ids), NOW) is not None
    assert rules.first_match(facts(labels=["Other"], label_ids=ids), NOW) is None

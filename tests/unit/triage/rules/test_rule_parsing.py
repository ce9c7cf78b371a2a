"""What is refused when a rule is saved, and where the fault is said to be."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.domain.actions import ActionType
from postroom.domain.errors import BadInput
from postroom.triage.rules.conditions import DEEPEST, MOST_NODES, parse_condition
from postroom.triage.rules.rule import parse_actions, parse_draft
from postroom.triage.rules.values import MOST_VALUES

OF_ANN = {"sender": "ann@example.org"}


@pytest.mark.req("JB-9")
@pytest.mark.parametrize(
    ("condition", "place", "problem"),
    [
        ({"all": [OF_ANN, {"subject_regex": "(a"}]}, "all[1].subject_regex", "missing )"),
        ({"any": [{"not": {"header": {"name": "X", "regex": ["a", "["]}}}]}, "any[0].not.header.regex[1]", "missing ]"),
        ({"subject_regex": "(?=lookahead)"}, "subject_regex", "RE2"),
        ({"sneder": "ann@example.org"}, "sneder", "is no condition; there are all, any, not, sender"),
        ({"sender": ["ann@example.org", "ann"]}, "sender[1]", "is not one mail address"),
        ({"sender": "*@example.org"}, "sender", "for a whole domain use `sender_domain` (--domain)"),
        ({"recipient": "ann@*.example.org"}, "recipient", "is not one mail address"),
        ({"sender": "ann@example.org, bob@example.org"}, "sender", "is not one mail address"),
        ({"sender_domain": "*.example.org"}, "sender_domain", "subdomains: true"),
        ({"sender_domain": {"domain": "example.org", "subdomain": True}}, "sender_domain.subdomain", "belong"),
        ({"sender_domain": {"subdomains": True}}, "sender_domain.domain", "is missing"),
        ({"header": {"name": "X-A"}}, "header", "exactly one of contains, regex and present"),
        ({"header": {"name": "X A", "present": True}}, "header.name", "name of a header"),
        ({"has_attachment": "yes"}, "has_attachment", "true or false"),
        ({"larger_than": "5 apples"}, "larger_than", "is a size"),
        ({"larger_than": -1}, "larger_than", "is a size"),
        ({"older_than": "3 days"}, "older_than", "for example 30m (minutes), 12h"),
        ({"older_than": "99999y"}, "older_than", "a hundred years"),
        ({"label": []}, "label", "1 to 200"),
        ({"label": ["x"] * (MOST_VALUES + 1)}, "label", "1 to 200"),
        ({"subject_contains": "  "}, "subject_contains", "not only space"),
        ({"subject_contains": "\u0301"}, "subject_contains", "nothing that can be looked for"),
        ({"subject_contains": "a\x00b"}, "subject_contains", "cannot be stored"),
        ({"subject_contains": "\ud800"}, "subject_contains", "cannot be stored"),
        ({"subject_contains": 7}, "subject_contains", "is a text, not a number"),
        ({"all": []}, "all", "at least one condition"),
        ({"not": [OF_ANN]}, "not", "is an object"),
        ({}, "", "holds no condition"),
        ([OF_ANN], "", "write all: [...]"),
        (None, "", "is an object"),
    ],
)
def test_a_fault_is_named_with_its_place(condition: Any, place: str, problem: str) -> None:
    with pytest.raises(BadInput) as refused:
        parse_draft({"name": "Receipts", "condition": condition, "actions": ["archive"]}, "rules[3]")
    where = f"rules[3] (Receipts).condition{'.' if place else ''}{place}"
    assert refused.value.field == where
    assert problem in refused.value.problem


@pytest.mark.req("JB-9")
@pytest.mark.parametrize(
    ("actions", "place", "problem"),
    [
        (["star", "unstar"], "[1]", "both touch the label STARRED"),
        (["archive", "snooze=3d"], "[1]", "both touch the label INBOX"),
        (["apply_label=Receipts", "remove_label=receipts"], "[1]", "both touch"),
        (["apply_label=STARRED", "star"], "[1]", "both touch"),
        (["trash", "restore"], "[1]", "both touch"),
        (["archive", "delete"], "[1]", "delete stands alone"),
        (["delete", "forward=a@example.org"], "[0]", "delete stands alone"),
        (["star", "star"], "[1]", "stands there already"),
        (["apply_label"], "[0].label", "is missing"),
        ([{"type": "apply_label", "lable": "x"}], "[0].l", ""),
        (["fly"], "[0].type", "is no action"),
        ([7], "[0]", "is the name of an action"),
        ([{"type": "auto_reply", "body": "a\x00b"}], "[0]", "cannot be stored"),
        ([], "", "1 to 10 actions"),
        ("archive", "", "1 to 10 actions"),
    ],
)
def test_actions_that_contradict_each_other_or_lack_something_are_refused(
    actions: Any, place: str, problem: str
) -> None:
    with pytest.raises(BadInput) as refused:
        parse_draft({"name": "Receipts", "condition": OF_ANN, "actions": actions})
    assert refused.value.field.startswith(f"rule (Receipts).actions{place}")
    assert problem in refused.value.problem


@pytest.mark.req("JB-9")
@pytest.mark.parametrize(
    ("data", "field"),
    [
        ({"name": "x", "condition": OF_ANN, "actions": ["star"], "colour": "red"}, "rule (x).colour"),
        ({"name": " ", "condition": OF_ANN, "actions": ["star"]}, "rule ( ).name"),
        ({"condition": OF_ANN, "actions": ["star"]}, "rule.name"),
        ({"name": "x", "condition": OF_ANN, "actions": ["star"], "priority": "high"}, "rule (x).priority"),
        ({"name": "x", "condition": OF_ANN, "actions": ["star"], "priority": True}, "rule (x).priority"),
        ({"name": "x", "condition": OF_ANN, "actions": ["star"], "scope": "galaxy"}, "rule (x).scope"),
        ({"name": "x", "condition": OF_ANN, "actions": ["star"], "scope": "global:x"}, "rule (x).scope"),
        ({"name": "x", "condition": OF_ANN, "actions": ["star"], "unattended": "no"}, "rule (x).unattended"),
    ],
)
def test_the_rest_of_a_rule_is_checked_too(data: dict[str, Any], field: str) -> None:
    with pytest.raises(BadInput) as refused:
        parse_draft(data)
    assert refused.value.field == field


@pytest.mark.req("JB-9")
def test_trees_are_bounded_in_depth_and_size() -> None:
    deep: dict[str, Any] = OF_ANN
    for _ in range(DEEPEST):
        deep = {"not": deep}
    with pytest.raises(BadInput, match="deep"):
        parse_condition(deep)
    with pytest.raises(BadInput, match="one too many"):
        parse_condition({"any": [OF_ANN] * MOST_NODES})
    endless: dict[str, Any] = {}
    endless["not"] = endless
    with pytest.raises(BadInput, match="deep"):
        parse_condition(endless)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["all", "any", "not", "sender", "header", "name", "label", "size", "larger_than"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=10,
)


@pytest.mark.req("JB-9")
@given(_JSON)
def test_anything_else_is_refused_and_never_an_accident(data: object) -> None:
    with suppress(BadInput):
        parse_condition(data)


@pytest.mark.parametrize(
    ("short", "parameters"),
    [
        ("apply_label=Receipts", {"label": "Receipts"}),
        ("snooze=3d", {"amount": 3, "units": "days"}),
        ("snooze=2026-12-24T08:00:00Z", {"until": "2026-12-24T08:00:00Z"}),
        ("forward=a@example.org, b@example.org", {"to": ["a@example.org", "b@example.org"]}),
        ("auto_reply=I am away.", {"body": "I am away."}),
        ("archive", {}),
    ],
)
def test_an_action_can_be_written_in_a_word(short: str, parameters: dict[str, Any]) -> None:
    [wanted] = parse_actions([short])
    assert wanted.parameters_json() == parameters
    assert wanted.type is ActionType(short.partition("=")[0])


@pytest.mark.req("JB-9")
def test_a_rule_larger_than_anybody_writes_is_refused() -> None:
    words = [f"{number:03}{'x' * 200}" for number in range(200)]
    with pytest.raises(BadInput, match=r"condition.*make it two rules"):
        parse_draft({"name": "A", "condition": {"subject_contains": words}, "actions": ["star"]})

"""Conditions in words, conditions of the simple kind, and the order of rules."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from postroom.triage.rules.conditions import AllOf, parse_condition
from postroom.triage.rules.store import in_order
from postroom.triage.rules.wording import in_words, simple_of
from tests.support.rules import conditions

SAID: dict[str, dict[str, Any]] = {
    "from ann@example.org or bob@example.org": {"sender": ["ann@example.org", "bob@example.org"]},
    "from shop.example or a subdomain": {"sender_domain": {"domain": "shop.example", "subdomains": True}},
    "the subject contains “a” or “b”, and has an attachment": {"subject_contains": ["a", "b"], "has_attachment": True},
    "has no header x-a": {"header": {"name": "x-a", "present": False}},
    "larger than 5M, and older than 1 day": {"larger_than": "5M", "older_than": "1d"},
    "not (of the mailing list dev.example)": {"not": {"list_id": "dev.example"}},
    "has the label “A” or (has no attachment, and smaller than 5,000 bytes)": {
        "any": [{"label": "A"}, {"has_attachment": False, "smaller_than": 5_000}]
    },
}


def test_conditions_are_said_as_a_person_would() -> None:
    for words, condition in SAID.items():
        assert in_words(condition) == words


@given(condition=conditions())
def test_every_condition_has_words_and_a_simple_one_means_the_same(condition: dict[str, Any]) -> None:
    assert in_words(condition)
    simple = simple_of(condition)
    if simple is not None:
        assert _parts(simple.condition()) == _parts(condition)


def _parts(condition: Any) -> list[str]:
    """All of which must hold, so that their order means nothing."""
    parsed = parse_condition(condition)
    return sorted(map(repr, parsed.parts if isinstance(parsed, AllOf) else [parsed]))


@given(st.lists(st.tuples(st.integers(-3, 3), st.uuids().map(str)), min_size=1, unique_by=lambda pair: pair[1]))
def test_raised_priorities_give_the_wanted_order(pairs: list[tuple[int, str]]) -> None:
    ids = [name for _, name in pairs]
    raised = in_order([priority for priority, _ in pairs], ids)
    assert sorted(zip(raised, ids, strict=True)) == list(zip(raised, ids, strict=True))
    assert all(new >= old for new, (old, _) in zip(raised, pairs, strict=True))

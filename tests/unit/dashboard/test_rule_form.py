"""The editor's fields hold every rule that can be written, and give back the same."""

from __future__ import annotations

from typing import Any

from hypothesis import given

from postroom.dashboard.forms import Form
from postroom.dashboard.rules import rule_form
from postroom.triage.rules.conditions import AllOf, AnyOf, Negation, RuleCondition, parse_condition
from postroom.triage.rules.rule import parse_draft
from tests.support.rules import conditions

ACTIONS: list[Any] = [
    ["archive"],
    ["apply_label=A, b=c", "remove_label=INBOX", "mark_read"],
    ["snooze=3h", {"type": "forward", "to": ["a@x.example", "b@x.example"], "note": "Two\nlines"}],
    [{"type": "snooze", "until": "2030-01-01T08:00:00+01:00"}, "auto_reply=Thank you."],
    [
        {"type": "auto_reply", "body_html": "<p>Hi</p>", "cc": ["c@x.example"], "subject": "Received"},
        {
            "type": "forward",
            "to": ["a@x.example"],
            "attachments": [{"filename": "a.txt", "mime_type": "text/plain", "data": "aGk="}],
        },
    ],
    ["delete"],
]


@given(condition=conditions())
def test_a_condition_survives_the_editor(condition: dict[str, Any]) -> None:
    draft = parse_draft({"name": "R", "condition": condition, "actions": ["star"]})
    again, form = rule_form.read(rule_form.filled(draft))
    assert again is not None, form.errors
    assert _unordered(parse_condition(again.condition)) == _unordered(parse_condition(condition))


def _unordered(condition: RuleCondition) -> object:
    """The editor has its own order of parts, which means nothing."""
    match condition:
        case AllOf(parts) | AnyOf(parts):
            return type(condition).__name__, frozenset(map(_unordered, parts))
        case Negation(part):
            return "not", _unordered(part)
        case _:
            return condition


def test_actions_scope_and_switches_survive_the_editor() -> None:
    for number, actions in enumerate(ACTIONS):
        data = {"name": "R", "condition": {"sender": "a@x.example"}, "actions": actions, "unattended": number % 2 == 0}
        draft = parse_draft({**data, "scope": "domain:shop.example", "priority": -5, "enabled": number % 2 == 1})
        again, form = rule_form.read(rule_form.filled(draft))
        assert again == draft, form.errors


def test_what_lines_cannot_hold_is_shown_as_it_is_written() -> None:
    for condition in (
        {"subject_regex": " x"},
        {"subject_contains": ["a\nb", "c"]},
        {"header": {"name": "a", "regex": "b"}},
    ):
        draft = parse_draft({"name": "R", "condition": condition, "actions": ["star"]})
        form = rule_form.filled(draft)
        assert form["condition"]
        again, _ = rule_form.read(form)
        assert again == draft


def test_there_is_always_room_for_one_more_action_up_to_the_most() -> None:
    assert rule_form.rows_of(Form()) == 3
    full = Form.filled(**{f"action_{number}": "star" for number in range(1, 11)})
    assert rule_form.rows_of(full) == 10
    four = {f"action_{number}": "star" for number in range(1, 5)}
    assert rule_form.rows_of(Form.filled(**four)) == 5
    assert rule_form.rows_of(Form.filled(**four, intent="more")) == 6

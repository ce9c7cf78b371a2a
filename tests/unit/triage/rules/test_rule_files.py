"""Rules as files: what is written is read back, and what is wrong is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.domain.errors import BadInput
from postroom.triage.rules.files import (
    DirectionDraft,
    GuidanceDraft,
    RulesDocument,
    RulesFileFormat,
    parse_text,
    read_file,
    written,
)
from postroom.triage.rules.rule import RuleDraft, RuleScope, ScopeKind, parse_draft
from tests.support.rules import conditions

_ACTIONS = st.sampled_from(
    [
        ["archive"],
        ["apply_label=A/B: \"c\" 'd' \\", "star"],
        [{"type": "snooze", "amount": 3, "units": "days"}, "mark_read"],
        [{"type": "auto_reply", "body": "Line one\nLine two\ttab # no comment"}],
        [{"type": "forward", "to": ["a@example.org"], "note": "ünicode ☃"}],
        [{"type": "forward", "to": ["a@example.org", "b@example.org"]}],
        [{"type": "snooze", "until": "2026-12-24T08:00:00Z"}],
    ]
)
_NAMES = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=20)
_TEXTS = st.sampled_from(["Be brief.", 'Say "no" \\ # never', "Zwei\nZeilen\t☃", "- {a: b}", "true"])
_DRAFTS = st.builds(
    lambda name, tree, actions, scope, priority, unattended, enabled: parse_draft(
        {
            "name": name,
            "condition": tree,
            "actions": actions,
            "scope": scope,
            "priority": priority,
            "unattended": unattended,
            "enabled": enabled,
        }
    ),
    _NAMES,
    conditions(),
    _ACTIONS,
    st.sampled_from(["global", "account:me@example.org", "domain:example.org", "sender:ann@example.org"]),
    st.integers(-5, 200),
    st.booleans(),
    st.booleans(),
)


@pytest.mark.req("JB-9")
@settings(max_examples=40, deadline=None)
@given(
    st.lists(_DRAFTS, max_size=4, unique_by=lambda draft: draft.name.lower()),
    st.lists(st.builds(DirectionDraft, _TEXTS, st.booleans()), max_size=3, unique_by=lambda draft: draft.text),
    st.lists(
        st.builds(GuidanceDraft, _NAMES, _TEXTS, st.just(RuleScope(ScopeKind.DOMAIN, "example.org")), st.booleans()),
        max_size=3,
        unique_by=lambda draft: draft.name.lower(),
    ),
    st.sampled_from(RulesFileFormat),
)
def test_what_is_written_is_read_back(
    drafts: list[RuleDraft], told: list[DirectionDraft], guidance: list[GuidanceDraft], format: RulesFileFormat
) -> None:
    whole = RulesDocument(drafts, told, guidance)
    assert parse_text(written(whole, format), format) == whole
    assert parse_text(written(RulesDocument(drafts), format), format) == RulesDocument(drafts)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("r.toml", "rules = 3", "rules: is a list"),
        ("r.toml", "", "one of them at least"),
        ("r.json", '{"rules": [], "rules": []}', "'rules' stands there twice"),
        ("r.toml", 'directions = ["a", "a"]', "directions[1]: is the same as directions[0]"),
        ("r.toml", 'directions = [{text = "a", on = true}]', "directions[0].on: does not belong here"),
        ("r.yaml", "guidance: [{name: A, text: x}, {name: a, text: y}]", "guidance[1].name: is the same as"),
        ("r.yaml", "guidance: [{name: A, scope: 'domain:a b', text: x}]", "guidance[0] (A).scope"),
        ("r.yaml", "guidance: [{name: A}]", "guidance[0] (A).text: is a text, not nothing"),
        ("r.yaml", f"directions: ['{'ü' * 1_500}']", "3,000 bytes"),
        ("r.toml", "[[rules]\n", "is not TOML"),
        ("r.toml", "rules = []\nother = 1", "nothing else"),
        ("r.yaml", "rules: [", "is not YAML"),
        ("r.yaml", "rules:\n- name: a\n  name: b\n", "'name' stands there twice"),
        ("r.yaml", "rules: &a [*a]", "rules[0]: is an object"),
        ("r.yaml", "rules: !!python/object/apply:os.system ['true']", "is not YAML"),
        ("r.json", "[" * 100_000, "is not JSON"),
        ("r.txt", "", ".toml or .yaml"),
        ("r.toml", b"\xff\xfe", "is not UTF-8"),
        (
            "r.yaml",
            "rules:\n- &r {name: A, condition: {label: x}, actions: [star]}\n- {<<: *r, name: a}\n",
            "rules[1] (a).name: is that of rules[0] too",
        ),
    ],
)
def test_a_file_that_cannot_be_used_says_why(tmp_path: Path, name: str, content: Any, said: str) -> None:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(BadInput) as refused:
        read_file(path)
    assert said in refused.value.message


def test_a_file_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be read: No such file"):
        read_file(tmp_path / "rules.toml")


def test_a_laughing_yaml_is_refused_at_once() -> None:
    bomb = ["a0: &a0 {sender: a@b.c}"]
    bomb += [f"a{n}: &a{n} {{any: [{', '.join([f'*a{n - 1}'] * 9)}]}}" for n in range(1, 9)]
    with pytest.raises(BadInput):
        parse_text("\n".join([*bomb, "rules: [{name: x, condition: *a8, actions: [star]}]"]), RulesFileFormat.YAML)

"""The tier policy as a text to edit, and mistakes named by their line."""

from __future__ import annotations

import pytest

from postroom.dashboard.filters.editors import definition_mistake, line_of, policy_rules, policy_text
from postroom.domain.errors import BadInput
from postroom.mail.tier_policy import RULES
from postroom.switchboard.definitions import CategoryBook

pytestmark = pytest.mark.req("UX-2")

TEXT = """\
# two rules
[[rule]]
note = "Offers"
tier = 2

[rule.condition]
sender_domain = ["shop.example"]

[[rule]]
note = "Nothing (at all)."
tier = 3
enabled = false

[rule.condition]
subject = "x"

[rule.condition.headers]
List-Id = "y"
"""


def test_the_rules_are_the_same_after_a_turn_through_the_text() -> None:
    rules = policy_rules(TEXT)
    assert [rule["note"] for rule in rules] == ["Offers", "Nothing (at all)."]
    assert policy_rules(policy_text(rules)) == rules
    assert policy_rules("") == []
    assert policy_text([]) == ""


def test_what_a_new_installation_starts_with_can_be_edited() -> None:
    rules = [dict(rule) for rule in RULES]
    again = policy_rules(policy_text(rules))
    assert [rule["note"] for rule in again] == [rule["note"] for rule in rules]


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("tier = 2", "tier = 4", "line 4, rule 1, tier: is more than 3"),
        ("tier = 2", "tier = ", "line 4: is not valid TOML"),
        ("tier = 3\n", "", "line 9, rule 2, tier: is missing"),
        ('["shop.example"]', '["shop example"]', "line 7, rule 1, condition.sender_domain.0: 'shop example' is not"),
        ('subject = "x"', 'subject = "("', "line 15, rule 2, condition.subject"),
        ('List-Id = "y"', 'List-Id = "["', "line 18, rule 2, condition.headers.List-Id"),
        ("enabled = false", "enabeld = false", "line 12, rule 2, enabeld: is not a field"),
        ("# two rules", "version = 1", "line 1, version is not known here"),
        ("# two rules", "[[rules]]\nx = 1", "line 1, rules is not known here"),
    ],
)
def test_a_mistake_is_named_by_its_line_its_rule_and_its_field(old: str, new: str, problem: str) -> None:
    with pytest.raises(BadInput) as refusal:
        policy_rules(TEXT.replace(old, new))
    assert refusal.value.field == "text"
    assert refusal.value.problem.startswith(problem), refusal.value.problem


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "version = 1\n[categories.choir]\ntitle = 'x'\nacept = []\n",
            "line 4, categories.choir.acept: is not a field",
        ),
        ("version = 1\n[categories.finance]\nyears = 0\n", "line 3, categories.finance.years: is less than 1"),
        ("version = 1\n[categories.x]\ntitle = 'x'\naccept = [{ subject = ['('] }]\n", "line 4, categories.x.accept"),
        ("version = 1\n[categories.x\n", "line 2: is not valid TOML"),
        ("[categories.finance]\nyears = 1\n", "version: is missing"),
    ],
)
def test_a_mistake_in_the_categories_is_named_by_its_line(text: str, problem: str) -> None:
    with pytest.raises(BadInput) as refusal:
        _ = CategoryBook(text).defined
    assert definition_mistake(text, refusal.value).problem.startswith(problem)


def test_hostile_text_has_lines_too() -> None:
    for text in ("[[", "]]]]", "[a]\n" * 3_000, "= = =\n[[[x]]]", '"' * 500, "[" * 5_000, "\u2028a = 1"):
        line_of(text, ("rule", "0", "tier"))
        with pytest.raises(BadInput):
            policy_rules(text + "\nx")

"""Conditions of rules as people say them: what a rule asks of a message, in words; and conditions of the simple kind,
which options of a command and fields of a form can say: all of several things. Pure.

Values stay as they were written. What needs `all`, `any` or `not` is written as in a file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from postroom.domain.clock import DURATION_UNITS, split_duration
from postroom.domain.errors import BadInput
from postroom.triage.rules.facts import MessageFacts
from postroom.triage.rules.rule import RuleScope, ScopeKind


def in_words(condition: Mapping[str, Any]) -> str:
    """One line: `from shop.example, and the subject contains “receipt” or “invoice”`."""
    return _all([_part(name, value) for name, value in condition.items()])


def scope_in_words(scope: RuleScope) -> str:
    match scope.kind:
        case ScopeKind.GLOBAL:
            return "all mail"
        case ScopeKind.ACCOUNT:
            return f"mail to {scope.ref}"
        case ScopeKind.DOMAIN:
            return f"mail from {scope.ref} and its subdomains"
        case ScopeKind.SENDER:
            return f"mail from {scope.ref}"


def _part(name: str, value: Any) -> str:
    match name:
        case "all":
            return _grouped(value, " and ")
        case "any":
            return _grouped(value, " or ")
        case "not":
            return f"not ({in_words(value)})"
        case "sender_domain":
            return _domain(value)
        case "header":
            return _header(value)
        case "has_attachment":
            return "has an attachment" if value else "has no attachment"
        case _:
            return _WORDS[name](value)


_WORDS: Mapping[str, Callable[[Any], str]] = {
    "sender": lambda value: f"from {_or(value)}",
    "recipient": lambda value: f"to {_or(value)}",
    "subject_contains": lambda value: f"the subject contains {_or(value, quoted=True)}",
    "subject_regex": lambda value: f"the subject matches {_or(value, quoted=True)}",
    "label": lambda value: f"has the label {_or(value, quoted=True)}",
    "list_id": lambda value: f"of the mailing list {_or(value)}",
    "larger_than": lambda value: f"larger than {_size(value)}",
    "smaller_than": lambda value: f"smaller than {_size(value)}",
    "older_than": lambda value: f"older than {_age(value)}",
    "younger_than": lambda value: f"younger than {_age(value)}",
}


def _all(parts: list[str]) -> str:
    return ", and ".join(parts)


def _grouped(parts: list[Mapping[str, Any]], joint: str) -> str:
    if len(parts) == 1:
        return in_words(parts[0])
    return joint.join(f"({in_words(part)})" if len(part) > 1 or _is_group(part) else in_words(part) for part in parts)


def _is_group(part: Mapping[str, Any]) -> bool:
    return not {"all", "any"}.isdisjoint(part)


def _domain(value: Any) -> str:
    if not isinstance(value, Mapping):
        return f"from {_or(value)}"
    return f"from {_or(value['domain'])}" + (" or a subdomain" if value.get("subdomains") else "")


def _header(value: Mapping[str, Any]) -> str:
    name = value["name"]
    if "contains" in value:
        return f"the header {name} contains {_or(value['contains'], quoted=True)}"
    if "regex" in value:
        return f"the header {name} matches {_or(value['regex'], quoted=True)}"
    return f"{'has the' if value['present'] else 'has no'} header {name}"


def _or(value: Any, *, quoted: bool = False) -> str:
    values = value if isinstance(value, list) else [value]
    return " or ".join(f"“{each}”" if quoted else str(each) for each in values)


def _size(value: Any) -> str:
    return f"{value:,} bytes" if isinstance(value, int) else str(value)


def _age(value: str) -> str:
    number, unit = split_duration(value) or (0, "d")
    return f"{number} {DURATION_UNITS[unit][0]}{'' if number == 1 else 's'}"


Texts = Sequence[str] | None

LEAVES: Mapping[str, str] = {
    "sender": "sender",
    "domain": "sender_domain",
    "to": "recipient",
    "subject": "subject_contains",
    "subject_regex": "subject_regex",
    "header": "header",
    "label": "label",
    "list_id": "list_id",
    "attachment": "has_attachment",
    "larger": "larger_than",
    "smaller": "smaller_than",
    "older": "older_than",
    "younger": "younger_than",
}
"""For each field the condition that it makes, in the order in which they are written."""
SEVERAL = frozenset({"sender", "domain", "to", "subject", "subject_regex", "label", "list_id"})
"""Fields that take more than one value, of which one is enough."""


@dataclass(frozen=True, slots=True)
class SimpleCondition:
    """What is asked of a message; None and an empty list ask nothing."""

    sender: Texts = None
    domain: Texts = None
    subdomains: bool = False
    to: Texts = None
    subject: Texts = None
    subject_regex: Texts = None
    header: str | None = None
    """`Name` or `Name: text`."""
    label: Texts = None
    list_id: Texts = None
    attachment: bool | None = None
    larger: str | None = None
    smaller: str | None = None
    older: str | None = None
    younger: str | None = None

    def condition(self) -> dict[str, Any]:
        """As it would stand in a file; empty if nothing is asked."""
        if self.subdomains and not self.domain:
            raise BadInput("subdomains", "needs a domain")
        found = {leaf: self._written(name) for name, leaf in LEAVES.items()}
        return {leaf: value for leaf, value in found.items() if value is not None}

    def _written(self, name: str) -> Any:
        value = getattr(self, name)
        if name in SEVERAL:
            value = _one_or_more(value)
        if name == "domain" and value is not None and self.subdomains:
            return {"domain": value, "subdomains": True}
        return _header_given(value) if name == "header" and value is not None else value


def simple_of(condition: Mapping[str, Any]) -> SimpleCondition | None:
    """The inverse of `SimpleCondition.condition`; None if the condition is not of the simple kind."""
    names = {leaf: name for name, leaf in LEAVES.items()}
    if not condition.keys() <= names.keys():
        return None
    found: dict[str, Any] = {}
    for leaf, value in condition.items():
        name = names[leaf]
        if name == "domain" and isinstance(value, Mapping):
            found |= {"subdomains": value.get("subdomains", False)}
            value = value["domain"]
        if name == "header":
            value = _header_text(value)
            if value is None:
                return None
        found[name] = _texts(value) if name in SEVERAL else value if name == "attachment" else str(value)
    simple = SimpleCondition(**found)
    return simple if _same(simple.condition(), condition) else None


def simple_like(facts: MessageFacts) -> SimpleCondition:
    """What fits a message and others of its kind: its mailing list, else its sender."""
    if facts.list_id:
        return SimpleCondition(list_id=[facts.list_id])
    if not facts.senders:
        raise BadInput("message", "has neither a sender nor a mailing list that a rule could ask for")
    return SimpleCondition(sender=list(facts.senders))


def simple_given(options: object) -> SimpleCondition:
    """From whatever has fields of these names."""
    return SimpleCondition(**{each.name: getattr(options, each.name) for each in fields(SimpleCondition)})


def _same(made: Mapping[str, Any], condition: Mapping[str, Any]) -> bool:
    """Sizes may have been written as numbers, and a single value as a list of one."""
    return {leaf: _plain(value) for leaf, value in made.items()} == {
        leaf: _plain(value) for leaf, value in condition.items()
    }


def _plain(value: Any) -> Any:
    match value:
        case Mapping():
            kept = {name: _plain(each) for name, each in value.items() if (name, each) != ("subdomains", False)}
            return kept["domain"] if kept.keys() == {"domain"} else kept
        case list() if len(value) == 1:
            return _plain(value[0])
        case int() if not isinstance(value, bool):
            return str(value)
        case _:
            return value


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(value) if isinstance(value, list) else (value,)


def _one_or_more(values: Texts) -> Any:
    if not values:
        return None
    return values[0] if len(values) == 1 else list(values)


def _header_given(text: str) -> dict[str, Any]:
    name, colon, wanted = text.partition(":")
    return {"name": name.strip(), "contains": wanted.strip()} if colon else {"name": name.strip(), "present": True}


def _header_text(value: Mapping[str, Any]) -> str | None:
    match value:
        case {"name": str(name), "present": True}:
            return name
        case {"name": str(name), "contains": str(text)}:
            return f"{name}: {text}"
        case _:
            return None

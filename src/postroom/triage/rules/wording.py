"""What a rule asks of a message, in a person's words. Pure; the values stay as they were written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from postroom.domain.clock import DURATION_UNITS, split_duration
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

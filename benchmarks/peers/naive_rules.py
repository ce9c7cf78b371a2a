"""Rules as a beginner would evaluate them: one after the other, with the standard library's `re`. A peer of ours in the
benchmark, and in the tests what the fast engine has to agree with. It knows nothing of how that one works."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from postroom.triage.rules.facts import MessageFacts

_BYTES = {"K": 1024, "M": 1024**2, "G": 1024**3}
_DAYS = {"h": 1 / 24, "d": 1, "w": 7, "m": 30, "y": 365}


class NaiveRules:
    def __init__(self, conditions: Sequence[Mapping[str, Any]]) -> None:
        self._conditions = conditions

    def first(self, facts: MessageFacts, now: datetime) -> int | None:
        """The number of the first condition that holds."""
        numbered = enumerate(self._conditions)
        return next((number for number, condition in numbered if holds(condition, facts, now)), None)


def holds(condition: Mapping[str, Any], facts: MessageFacts, now: datetime) -> bool:
    return all(_holds(name, value, facts, now) for name, value in condition.items())


def _holds(name: str, value: Any, facts: MessageFacts, now: datetime) -> bool:
    match name:
        case "all":
            return all(holds(part, facts, now) for part in value)
        case "any":
            return any(holds(part, facts, now) for part in value)
        case "not":
            return not holds(value, facts, now)
        case "sender" | "sender_domain":
            return bool(facts.senders) and all(_is_sender(name, value, sender) for sender in facts.senders)
        case "header":
            return _header(value, facts)
        case _:
            return _simple(name, value, facts, now)


def _is_sender(name: str, value: Any, sender: str) -> bool:
    if name == "sender":
        return sender in [each.lower() for each in _list(value)]
    domain = sender.split("@")[1]
    if isinstance(value, Mapping):
        wanted = [each.lower() for each in _list(value["domain"])]
        below = value.get("subdomains", False) and any(domain.endswith("." + each) for each in wanted)
        return domain in wanted or below
    return domain in [each.lower() for each in _list(value)]


def _header(value: Mapping[str, Any], facts: MessageFacts) -> bool:
    text = facts.headers.get(value["name"].lower())
    if "present" in value:
        return (text is not None) is value["present"]
    if text is None:
        return False
    if "contains" in value:
        return any(_fold(each) in _fold(text) for each in _list(value["contains"]))
    return any(_search(each, text) for each in _list(value["regex"]))


def _simple(name: str, value: Any, facts: MessageFacts, now: datetime) -> bool:
    given = [each.lower() if isinstance(each, str) else each for each in _list(value)]
    match name:
        case "subject_contains":
            return any(_fold(each) in _fold(facts.subject) for each in given)
        case "subject_regex":
            return any(_search(each, facts.subject) for each in _list(value))
        case "label":
            return any(each in facts.labels for each in given)
        case "recipient":
            return any(each in facts.recipients for each in given)
        case "list_id":
            return facts.list_id in given
        case "has_attachment":
            return facts.has_attachment is value
        case _:
            return _measured(name, value, facts, now)


def _measured(name: str, value: Any, facts: MessageFacts, now: datetime) -> bool:
    match name:
        case "larger_than":
            return facts.size_bytes is not None and facts.size_bytes > _size(value)
        case "smaller_than":
            return facts.size_bytes is not None and facts.size_bytes < _size(value)
        case "older_than":
            return now - facts.received_at > _age(value)
        case "younger_than":
            return now - facts.received_at < _age(value)
        case _:
            raise AssertionError(name)


def _search(pattern: str, text: str) -> bool:
    return re.search(pattern, text, re.IGNORECASE) is not None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _fold(text: str) -> str:
    decomposed = unicodedata.normalize("NFKD", text.casefold())
    return "".join(char for char in decomposed if not unicodedata.combining(char))


def _size(value: str | int) -> int:
    return value if isinstance(value, int) else int(value[:-1]) * _BYTES[value[-1]]


def _age(value: str) -> timedelta:
    return timedelta(days=int(value[:-1]) * _DAYS[value[-1]])

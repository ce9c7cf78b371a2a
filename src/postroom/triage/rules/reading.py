"""Conditions from JSON, TOML or YAML. What cannot be read is refused with the exact place of the fault.

An object holds when everything in it holds; where a value is a list, one entry is enough. `all` and `any` take lists of
objects, `not` takes one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from postroom.domain.errors import BadInput
from postroom.triage.rules import values
from postroom.triage.rules.conditions import (
    AllOf,
    AnyOf,
    Condition,
    HasAttachment,
    HasLabel,
    HeaderContains,
    HeaderMatches,
    HeaderPresent,
    LargerThan,
    Not,
    OlderThan,
    OnList,
    SenderDomain,
    SenderIs,
    SentTo,
    SmallerThan,
    SubjectContains,
    SubjectMatches,
    YoungerThan,
)
from postroom.triage.rules.values import one_or_more

DEEPEST = 10
MOST_NODES = 200

ReadLeaf = Callable[[object, str], Condition]


def parse_condition(data: object, where: str = "condition") -> Condition:
    return _Reading().condition(data, where, 1)


@dataclass(slots=True)
class _Reading:
    """Counts the nodes of one tree, however they are nested."""

    nodes: int = field(default=0)

    def condition(self, data: object, where: str, depth: int) -> Condition:
        if not isinstance(data, Mapping):
            raise BadInput(where, f"is an object with conditions, such as {{sender: ann@example.org}}{_hint(data)}")
        if not data:
            raise BadInput(where, "holds no condition, so it would match all mail")
        if depth > DEEPEST:
            raise BadInput(where, f"is nested more than {DEEPEST} deep")
        parts = tuple(self._part(name, value, f"{where}.{_shown(name)}", depth) for name, value in data.items())
        return parts[0] if len(parts) == 1 else AllOf(parts)

    def _part(self, name: object, value: object, where: str, depth: int) -> Condition:
        self.nodes += 1
        if self.nodes > MOST_NODES:
            raise BadInput(where, f"is one too many: a rule has at most {MOST_NODES} conditions")
        match name:
            case "all":
                return AllOf(self._parts(value, where, depth))
            case "any":
                return AnyOf(self._parts(value, where, depth))
            case "not":
                return Not(self.condition(value, where, depth + 1))
            case str() if name in _LEAVES:
                return _LEAVES[name](value, where)
            case _:
                raise BadInput(where, f"is no condition; there are all, any, not, {', '.join(_LEAVES)}")

    def _parts(self, data: object, where: str, depth: int) -> tuple[Condition, ...]:
        if not isinstance(data, list) or not data:
            raise BadInput(where, "is a list of at least one condition")
        return tuple(self.condition(part, f"{where}[{number}]", depth + 1) for number, part in enumerate(data))


def _sender_domain(data: object, where: str) -> Condition:
    if not isinstance(data, Mapping):
        return SenderDomain(frozenset(one_or_more(data, where, values.domain)))
    _only(data, where, {"domain", "subdomains"}, needed="domain")
    subdomains = values.truth(data.get("subdomains", False), f"{where}.subdomains")
    return SenderDomain(frozenset(one_or_more(data["domain"], f"{where}.domain", values.domain)), subdomains)


def _header(data: object, where: str) -> Condition:
    if not isinstance(data, Mapping):
        raise BadInput(where, "is an object such as {name: X-Mailer, contains: Outlook}")
    _only(data, where, {"name", "contains", "regex", "present"}, needed="name")
    name = values.header_name(data["name"], f"{where}.name")
    match [key for key in data if key != "name"]:
        case ["contains"]:
            return HeaderContains(name, one_or_more(data["contains"], f"{where}.contains", values.folded_text))
        case ["regex"]:
            return HeaderMatches(name, one_or_more(data["regex"], f"{where}.regex", values.pattern))
        case ["present"]:
            return HeaderPresent(name, values.truth(data["present"], f"{where}.present"))
        case _:
            raise BadInput(where, "needs exactly one of contains, regex and present beside the name")


def _only(data: Mapping[Any, Any], where: str, known: set[str], needed: str) -> None:
    for key in data:
        if key not in known:
            raise BadInput(f"{where}.{_shown(key)}", f"does not belong here; there are {', '.join(sorted(known))}")
    if needed not in data:
        raise BadInput(f"{where}.{needed}", "is missing")


_LEAVES: Mapping[str, ReadLeaf] = {
    "sender": lambda data, where: SenderIs(frozenset(one_or_more(data, where, values.address))),
    "sender_domain": _sender_domain,
    "subject_contains": lambda data, where: SubjectContains(one_or_more(data, where, values.folded_text)),
    "subject_regex": lambda data, where: SubjectMatches(one_or_more(data, where, values.pattern)),
    "header": _header,
    "label": lambda data, where: HasLabel(frozenset(one_or_more(data, where, values.label))),
    "recipient": lambda data, where: SentTo(frozenset(one_or_more(data, where, values.address))),
    "list_id": lambda data, where: OnList(frozenset(one_or_more(data, where, values.list_id))),
    "has_attachment": lambda data, where: HasAttachment(values.truth(data, where)),
    "larger_than": lambda data, where: LargerThan(values.size(data, where)),
    "smaller_than": lambda data, where: SmallerThan(values.size(data, where)),
    "older_than": lambda data, where: OlderThan(values.age(data, where)),
    "younger_than": lambda data, where: YoungerThan(values.age(data, where)),
}
LEAF_NAMES = tuple(_LEAVES)


def _shown(name: object) -> str:
    text = str(name)[:60]
    return text if text.isprintable() else repr(text)[1:-1]


def _hint(data: object) -> str:
    return "; for several of which each must hold, write all: [...]" if isinstance(data, list) else ""

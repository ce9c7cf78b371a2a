"""The conditions of rules, and how they are read from JSON, TOML or YAML; a refusal names the exact place.

An object holds if everything in it holds; where a value is a list, one entry is enough. `all` and `any` take lists
of objects, `not` takes one. Values are stored in the form in which they are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeAlias

from postroom.domain.errors import BadInput
from postroom.triage.rules import values
from postroom.triage.rules.values import one_or_more


@dataclass(frozen=True, slots=True)
class AllOf:
    parts: tuple[RuleCondition, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    parts: tuple[RuleCondition, ...]


@dataclass(frozen=True, slots=True)
class Negation:
    part: RuleCondition


@dataclass(frozen=True, slots=True)
class SenderIs:
    addresses: frozenset[str]


@dataclass(frozen=True, slots=True)
class SenderDomain:
    domains: frozenset[str]
    subdomains: bool = False


@dataclass(frozen=True, slots=True)
class SubjectContains:
    texts: tuple[str, ...]
    """Folded; one of them is enough."""


@dataclass(frozen=True, slots=True)
class SubjectMatches:
    patterns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HeaderContains:
    name: str
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HeaderMatches:
    name: str
    patterns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HeaderPresent:
    name: str
    present: bool = True


@dataclass(frozen=True, slots=True)
class HasLabel:
    labels: frozenset[str]


@dataclass(frozen=True, slots=True)
class SentTo:
    addresses: frozenset[str]


@dataclass(frozen=True, slots=True)
class OnList:
    ids: frozenset[str]


@dataclass(frozen=True, slots=True)
class AttachmentPresent:
    wanted: bool = True


@dataclass(frozen=True, slots=True)
class LargerThan:
    bytes: int


@dataclass(frozen=True, slots=True)
class SmallerThan:
    bytes: int


@dataclass(frozen=True, slots=True)
class OlderThan:
    age: timedelta


@dataclass(frozen=True, slots=True)
class YoungerThan:
    age: timedelta


@dataclass(frozen=True, slots=True)
class OfAccount:
    """Of a rule's scope; conditions that people write have no such leaf."""

    account_id: str


Leaf: TypeAlias = (
    SenderIs
    | SenderDomain
    | SubjectContains
    | SubjectMatches
    | HeaderContains
    | HeaderMatches
    | HeaderPresent
    | HasLabel
    | SentTo
    | OnList
    | AttachmentPresent
    | LargerThan
    | SmallerThan
    | OlderThan
    | YoungerThan
    | OfAccount
)
RuleCondition: TypeAlias = AllOf | AnyOf | Negation | Leaf


def labels_in(condition: RuleCondition) -> frozenset[str]:
    """Every label that the condition looks at, in its compared form."""
    match condition:
        case AllOf(parts) | AnyOf(parts):
            return frozenset().union(*map(labels_in, parts))
        case Negation(part):
            return labels_in(part)
        case HasLabel(labels):
            return labels
        case _:
            return frozenset()


def renamed_labels(data: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """The condition as people write it, with the labels' new names, which are given by the compared form of the old
    ones."""
    return {name: _renamed(name, value, names) for name, value in data.items()}


def _renamed(name: str, value: Any, names: Mapping[str, str]) -> Any:
    match name, value:
        case (("all" | "any"), list()):
            return [renamed_labels(each, names) for each in value]
        case "not", Mapping():
            return renamed_labels(value, names)
        case "label", list():
            return [_renamed(name, each, names) for each in value]
        case "label", str():
            return names.get(values.label(value, name), value)
        case _:
            return value


DEEPEST = 10
MOST_NODES = 200

ReadLeaf = Callable[[object, str], RuleCondition]


def parse_condition(data: object, where: str = "condition") -> RuleCondition:
    return _ConditionReader().condition(data, where, 1)


@dataclass(slots=True)
class _ConditionReader:
    """Counts the nodes of one tree, however they are nested."""

    nodes: int = field(default=0)

    def condition(self, data: object, where: str, depth: int) -> RuleCondition:
        if not isinstance(data, Mapping):
            raise BadInput(where, f"is an object with conditions, such as {{sender: ann@example.org}}{_hint(data)}")
        if not data:
            raise BadInput(where, "holds no condition, so it would match all mail")
        if depth > DEEPEST:
            raise BadInput(where, f"is nested more than {DEEPEST} deep")
        parts = tuple(self._part(name, value, f"{where}.{_shown(name)}", depth) for name, value in data.items())
        return parts[0] if len(parts) == 1 else AllOf(parts)

    def _part(self, name: object, value: object, where: str, depth: int) -> RuleCondition:
        self.nodes += 1
        if self.nodes > MOST_NODES:
            raise BadInput(where, f"is one too many: a rule has at most {MOST_NODES} conditions")
        match name:
            case "all":
                return AllOf(self._parts(value, where, depth))
            case "any":
                return AnyOf(self._parts(value, where, depth))
            case "not":
                return Negation(self.condition(value, where, depth + 1))
            case str() if name in _LEAVES:
                return _LEAVES[name](value, where)
            case _:
                raise BadInput(where, f"is no condition; there are all, any, not, {', '.join(_LEAVES)}")

    def _parts(self, data: object, where: str, depth: int) -> tuple[RuleCondition, ...]:
        if not isinstance(data, list) or not data:
            raise BadInput(where, "is a list of at least one condition")
        return tuple(self.condition(part, f"{where}[{number}]", depth + 1) for number, part in enumerate(data))


def _sender_domain(data: object, where: str) -> RuleCondition:
    if not isinstance(data, Mapping):
        return SenderDomain(frozenset(one_or_more(data, where, values.domain)))
    _only(data, where, {"domain", "subdomains"}, needed="domain")
    subdomains = values.truth(data.get("subdomains", False), f"{where}.subdomains")
    return SenderDomain(frozenset(one_or_more(data["domain"], f"{where}.domain", values.domain)), subdomains)


def _header(data: object, where: str) -> RuleCondition:
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
    "has_attachment": lambda data, where: AttachmentPresent(values.truth(data, where)),
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

"""What a rule can ask of a message. Values are in the form in which they are compared (see `reading.py`)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class AllOf:
    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Not:
    part: Condition


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
class HasAttachment:
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
    | HasAttachment
    | LargerThan
    | SmallerThan
    | OlderThan
    | YoungerThan
    | OfAccount
)
Condition: TypeAlias = AllOf | AnyOf | Not | Leaf


def labels_in(condition: Condition) -> frozenset[str]:
    """Every label that the condition looks at, in its compared form."""
    match condition:
        case AllOf(parts) | AnyOf(parts):
            return frozenset().union(*map(labels_in, parts))
        case Not(part):
            return labels_in(part)
        case HasLabel(labels):
            return labels
        case _:
            return frozenset()

"""A rule: for whose mail it is, what it asks of a message, and what is then done. Checked when it is saved."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from postroom.domain.actions import Wanted
from postroom.domain.errors import BadInput
from postroom.domain.ids import parse_id
from postroom.triage.rules import values
from postroom.triage.rules.conditions import Condition
from postroom.triage.rules.reading import parse_condition
from postroom.triage.rules.wishes import parse_actions

MOST_RULES = 1_000
LONGEST_NAME = 100
LARGEST_CONDITION = 32_000
DEFAULT_PRIORITY = 100
_MOST_PRIORITY = 1_000_000
_KEYS = ("name", "scope", "priority", "condition", "actions", "unattended", "enabled")


class ScopeKind(StrEnum):
    GLOBAL = "global"
    ACCOUNT = "account"
    DOMAIN = "domain"
    """Of the sender, subdomains included."""
    SENDER = "sender"


@dataclass(frozen=True, slots=True)
class Scope:
    """Whose mail: all, an account's (by its id; in files and commands by its address), a sender's or a domain's."""

    kind: ScopeKind = ScopeKind.GLOBAL
    ref: str = ""

    def __str__(self) -> str:
        return f"{self.kind}:{self.ref}" if self.ref else str(self.kind)


EVERYWHERE = Scope()


@dataclass(frozen=True, slots=True)
class RuleDraft:
    """A rule as people write it, checked: what is stored and exported is what they wrote."""

    name: str
    scope: Scope
    priority: int
    condition: Mapping[str, Any]
    actions: tuple[Wanted, ...]
    unattended: bool = False
    enabled: bool = True


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule to decide by."""

    id: str
    name: str
    scope: Scope
    priority: int
    condition: Condition
    actions: tuple[Wanted, ...]
    unattended: bool = False


def parse_draft(data: object, where: str = "rule") -> RuleDraft:
    """A rule from a file or a form, or BadInput with the place of the first fault."""
    if not isinstance(data, Mapping):
        raise BadInput(where, "is an object with name, condition and actions")
    return _draft(data, f"{named(data.get('name'), where)}.")


def parse_fields(data: Mapping[str, Any]) -> RuleDraft:
    """The same from a request, which knows its fields by their names alone."""
    return _draft(data, "")


def _draft(data: Mapping[Any, Any], where: str) -> RuleDraft:
    for key in data:
        if key not in _KEYS:
            raise BadInput(f"{where}{str(key)[:60]}", f"does not belong here; a rule has {', '.join(_KEYS)}")
    parse_condition(data.get("condition"), f"{where}condition")
    if (size := len(json.dumps(data["condition"]))) > LARGEST_CONDITION:
        raise BadInput(
            f"{where}condition", f"has {size:,} bytes; {LARGEST_CONDITION:,} are the most: make it two rules"
        )
    return RuleDraft(
        name=parse_name(data.get("name"), f"{where}name"),
        scope=parse_scope(data.get("scope", "global"), f"{where}scope"),
        priority=parse_priority(data.get("priority", DEFAULT_PRIORITY), f"{where}priority"),
        condition=data["condition"],
        actions=parse_actions(data.get("actions"), f"{where}actions"),
        unattended=values.truth(data.get("unattended", False), f"{where}unattended"),
        enabled=values.truth(data.get("enabled", True), f"{where}enabled"),
    )


def rule_of(rule_id: str, draft: RuleDraft) -> Rule:
    condition = parse_condition(draft.condition)
    return Rule(rule_id, draft.name, draft.scope, draft.priority, condition, draft.actions, draft.unattended)


def named(name: object, where: str) -> str:
    """The place with the rule's name, which people know better than its number."""
    return f"{where} ({name[:60]})" if isinstance(name, str) and name.isprintable() and name else where


def parse_name(data: object, where: str = "name") -> str:
    name = values.text(data, where, LONGEST_NAME).strip()
    if not name.isprintable():
        raise BadInput(where, "is one line of text")
    return name


def parse_priority(data: object, where: str = "priority") -> int:
    if not isinstance(data, int) or isinstance(data, bool) or abs(data) > _MOST_PRIORITY:
        raise BadInput(where, f"is a whole number from -{_MOST_PRIORITY:,} to {_MOST_PRIORITY:,}; lower comes first")
    return data


def parse_scope(data: object, where: str = "scope") -> Scope:
    """`global`, `account:me@example.org`, `domain:example.org` or `sender:ann@example.org`."""
    kind, _, ref = values.text(data, where).strip().partition(":")
    return checked_scope(kind.strip(), ref.strip(), where)


def checked_scope(kind: str, ref: str, where: str = "scope") -> Scope:
    match kind:
        case ScopeKind.GLOBAL:
            if ref:
                raise BadInput(where, "global takes in all mail and names nothing")
            return EVERYWHERE
        case ScopeKind.ACCOUNT:
            return Scope(ScopeKind.ACCOUNT, values.address(ref, where) if "@" in ref else parse_id(ref, where))
        case ScopeKind.DOMAIN:
            return Scope(ScopeKind.DOMAIN, values.domain(ref, where))
        case ScopeKind.SENDER:
            return Scope(ScopeKind.SENDER, values.address(ref, where))
        case _:
            ways = "global, account:me@example.org, domain:example.org or sender:ann@example.org"
            raise BadInput(where, f"{kind[:60]!r} is no scope; write {ways}")

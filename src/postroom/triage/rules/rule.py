"""A rule: its scope, its condition and its actions, checked when it is saved.

Actions are checked one by one and against each other; contradictions are refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from postroom.accounts.mailbox_state import label_key
from postroom.domain.actions import (
    ActionType,
    ForwardParameters,
    LabelParameters,
    SnoozeParameters,
    WantedAction,
    parse_action,
)
from postroom.domain.clock import as_amount
from postroom.domain.errors import BadInput
from postroom.domain.ids import parse_id
from postroom.domain.validation import DEFAULT_RULE_PRIORITY
from postroom.triage.rules import values
from postroom.triage.rules.conditions import RuleCondition, parse_condition, renamed_labels
from postroom.triage.rules.values import is_storable

MOST_ACTIONS = 10
MOST_FILES_BYTES = 60_000
_SEVERAL_TIMES = frozenset({ActionType.APPLY_LABEL, ActionType.REMOVE_LABEL})
_TOUCHED: Mapping[ActionType, tuple[str, ...]] = MappingProxyType(
    {
        ActionType.ARCHIVE: ("INBOX",),
        ActionType.SNOOZE: ("INBOX",),
        ActionType.MARK_READ: ("UNREAD",),
        ActionType.MARK_UNREAD: ("UNREAD",),
        ActionType.STAR: ("STARRED",),
        ActionType.UNSTAR: ("STARRED",),
        ActionType.TRASH: ("TRASH", "INBOX"),
        ActionType.RESTORE: ("TRASH",),
    }
)


def parse_actions(data: object, where: str = "actions") -> tuple[WantedAction, ...]:
    """A list of actions: `archive`, `apply_label=Receipts` or `{type: apply_label, label: Receipts}`."""
    if not isinstance(data, list) or not 1 <= len(data) <= MOST_ACTIONS:
        raise BadInput(where, f"is a list of 1 to {MOST_ACTIONS} actions, such as [archive]")
    wanted = tuple(_action(each, f"{where}[{number}]") for number, each in enumerate(data))
    _refuse_contradictions(wanted, where)
    for number, each in enumerate(wanted):
        if not all(map(is_storable, _texts(each.parameters_json()))):
            raise BadInput(f"{where}[{number}]", "holds a character that cannot be stored")
        if sum(file.length for file in each.files) > MOST_FILES_BYTES:
            raise BadInput(f"{where}[{number}].attachments", f"a rule can hold {MOST_FILES_BYTES // 1_000} KB of files")
    return wanted


def labels_named(wanted: Iterable[WantedAction]) -> frozenset[str]:
    """The labels that actions name, in their compared form."""
    return frozenset(
        label_key(each.parameters.label) for each in wanted if isinstance(each.parameters, LabelParameters)
    )


def short_form(wanted: WantedAction) -> str | dict[str, Any]:
    """As a person would write it: a word where that says everything."""
    match wanted.parameters:
        case LabelParameters(label=label):
            return f"{wanted.type}={label}"
        case SnoozeParameters(amount=int(amount), units=str(units)):
            return f"{wanted.type}={amount}{units[0]}"
        case ForwardParameters(to=to) if wanted.parameters_json().keys() == {"to"}:
            return f"{wanted.type}={', '.join(to)}"
    parameters = wanted.parameters_json()
    return {"type": str(wanted.type), **parameters} if parameters else str(wanted.type)


def described(wanted: WantedAction) -> str:
    """One line for people."""
    form = short_form(wanted)
    if isinstance(form, str):
        return form
    detail = ", ".join(f"{name} {value}" for name, value in form.items() if name != "type")
    return f"{wanted.type} ({detail if len(detail) <= 60 else detail[:59] + '…'})"


def _action(data: object, where: str) -> WantedAction:
    if isinstance(data, str):
        name, _, value = data.partition("=")
        return parse_action(name.strip(), _parameters(name.strip(), value.strip()), where)
    if not isinstance(data, Mapping) or "type" not in data:
        raise BadInput(where, "is the name of an action, or an object with its `type`")
    return parse_action(data["type"], {key: value for key, value in data.items() if key != "type"}, where)


def _parameters(name: str, value: str) -> dict[str, Any]:
    """What stands behind the `=`, which every action that needs one has its own use for."""
    if not value:
        return {}
    match name:
        case ActionType.SNOOZE:
            if (length := as_amount(value)) is not None:
                return {"amount": length[0], "units": length[1]}
            return {"until": value}
        case ActionType.FORWARD:
            return {"to": [part.strip() for part in value.split(",") if part.strip()]}
        case ActionType.AUTO_REPLY:
            return {"body": value}
        case _:
            return {"label": value}


def _refuse_contradictions(wanted: Sequence[WantedAction], where: str) -> None:
    by_label: dict[str, int] = {}
    types: dict[ActionType, int] = {}
    for number, each in enumerate(wanted):
        place = f"{where}[{number}]"
        if each.type is ActionType.UNSUBSCRIBE:
            raise BadInput(place, "unsubscribe is done once, from a message of the list; a rule can archive or trash")
        if ActionType.DELETE in (each.type, wanted[0].type) and len(wanted) > 1:
            raise BadInput(place, "delete stands alone: nothing else can be done with a message that is gone")
        if each.type in types and each.type not in _SEVERAL_TIMES:
            raise BadInput(place, f"{each.type} stands there already, at [{types[each.type]}]")
        types[each.type] = number
        for label in _touched(each):
            if (other := by_label.setdefault(label_key(label), number)) != number:
                raise BadInput(place, f"{each.type} and {wanted[other].type} at [{other}] both touch the label {label}")


def _texts(value: object) -> Iterator[str]:
    match value:
        case str():
            yield value
        case Mapping():
            for each in value.values():
                yield from _texts(each)
        case list():
            for each in value:
                yield from _texts(each)


def _touched(wanted: WantedAction) -> tuple[str, ...]:
    if isinstance(wanted.parameters, LabelParameters):
        return (wanted.parameters.label,)
    return _TOUCHED.get(wanted.type, ())


MOST_RULES = 1_000
LONGEST_NAME = 100
LARGEST_CONDITION = 32_000
DEFAULT_PRIORITY = DEFAULT_RULE_PRIORITY
_MOST_PRIORITY = 1_000_000
_KEYS = ("name", "scope", "priority", "condition", "actions", "unattended", "enabled")


class ScopeKind(StrEnum):
    GLOBAL = "global"
    ACCOUNT = "account"
    DOMAIN = "domain"
    """Of the sender, subdomains included."""
    SENDER = "sender"


@dataclass(frozen=True, slots=True)
class RuleScope:
    """Whose mail: all, an account's (by its id; in files and commands by its address), a sender's or a domain's."""

    kind: ScopeKind = ScopeKind.GLOBAL
    ref: str = ""

    def __str__(self) -> str:
        return f"{self.kind}:{self.ref}" if self.ref else str(self.kind)


EVERYWHERE = RuleScope()


@dataclass(frozen=True, slots=True)
class RuleDraft:
    """A rule as people write it, checked: what is stored and exported is what they wrote."""

    name: str
    scope: RuleScope
    priority: int
    condition: Mapping[str, Any]
    actions: tuple[WantedAction, ...]
    unattended: bool = False
    enabled: bool = True


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule to decide by."""

    id: str
    name: str
    scope: RuleScope
    priority: int
    condition: RuleCondition
    actions: tuple[WantedAction, ...]
    unattended: bool = False
    off_for: frozenset[str] = frozenset()
    """Ids of accounts whose mail it does not judge."""


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


def rule_of(rule_id: str, draft: RuleDraft, off_for: Iterable[str] = ()) -> Rule:
    condition = parse_condition(draft.condition)
    return Rule(
        rule_id, draft.name, draft.scope, draft.priority, condition, draft.actions, draft.unattended, frozenset(off_for)
    )


def with_renamed_labels(draft: RuleDraft, names: Mapping[str, str]) -> RuleDraft:
    """The same rule with the labels' new names, which are given by the compared form of the old ones."""
    data = [_renamed_action(each, names).to_json() for each in draft.actions]
    return replace(draft, condition=renamed_labels(draft.condition, names), actions=parse_actions(data))


def _renamed_action(wanted: WantedAction, names: Mapping[str, str]) -> WantedAction:
    if not isinstance(wanted.parameters, LabelParameters):
        return wanted
    label = wanted.parameters.label
    return replace(wanted, parameters=LabelParameters(label=names.get(label_key(label), label)))


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


def parse_scope(data: object, where: str = "scope") -> RuleScope:
    """`global`, `account:me@example.org`, `domain:example.org` or `sender:ann@example.org`."""
    kind, _, ref = values.text(data, where).strip().partition(":")
    return checked_scope(kind.strip(), ref.strip(), where)


def checked_scope(kind: str, ref: str, where: str = "scope") -> RuleScope:
    match kind:
        case ScopeKind.GLOBAL:
            if ref:
                raise BadInput(where, "global takes in all mail and names nothing")
            return EVERYWHERE
        case ScopeKind.ACCOUNT:
            return RuleScope(ScopeKind.ACCOUNT, values.address(ref, where) if "@" in ref else parse_id(ref, where))
        case ScopeKind.DOMAIN:
            return RuleScope(ScopeKind.DOMAIN, values.domain(ref, where))
        case ScopeKind.SENDER:
            return RuleScope(ScopeKind.SENDER, values.address(ref, where))
        case _:
            ways = "global, account:me@example.org, domain:example.org or sender:ann@example.org"
            raise BadInput(where, f"{kind[:60]!r} is no scope; write {ways}")

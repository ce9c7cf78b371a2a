"""The actions of a rule, each checked by itself and against the others: what contradicts itself is refused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from postroom.domain.actions import (
    ActionType,
    ForwardParameters,
    LabelParameters,
    SnoozeParameters,
    Wanted,
    parse_action,
)
from postroom.domain.errors import BadInput
from postroom.triage.rules.facts import label_key
from postroom.triage.rules.values import is_storable

MOST_ACTIONS = 10
_SHORT_UNITS = {"m": "minutes", "h": "hours", "d": "days"}
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


def parse_actions(data: object, where: str = "actions") -> tuple[Wanted, ...]:
    """A list of actions: `archive`, `apply_label=Receipts` or `{type: apply_label, label: Receipts}`."""
    if not isinstance(data, list) or not 1 <= len(data) <= MOST_ACTIONS:
        raise BadInput(where, f"is a list of 1 to {MOST_ACTIONS} actions, such as [archive]")
    wanted = tuple(_action(each, f"{where}[{number}]") for number, each in enumerate(data))
    _refuse_contradictions(wanted, where)
    for number, each in enumerate(wanted):
        if not all(map(is_storable, _texts(each.parameters_json()))):
            raise BadInput(f"{where}[{number}]", "holds a character that cannot be stored")
    return wanted


def labels_named(wanted: Iterable[Wanted]) -> frozenset[str]:
    """The labels that actions name, in their compared form."""
    return frozenset(
        label_key(each.parameters.label) for each in wanted if isinstance(each.parameters, LabelParameters)
    )


def short_form(wanted: Wanted) -> str | dict[str, Any]:
    """As a person would write it: a word where that says everything."""
    match wanted.parameters:
        case LabelParameters(label=label):
            return f"{wanted.type}={label}"
        case SnoozeParameters(amount=int(amount), units=str(units)):
            return f"{wanted.type}={amount}{units[0]}"
        case ForwardParameters(to=to, note=None):
            return f"{wanted.type}={', '.join(to)}"
    parameters = wanted.parameters_json()
    return {"type": str(wanted.type), **parameters} if parameters else str(wanted.type)


def described(wanted: Wanted) -> str:
    """One line for people."""
    form = short_form(wanted)
    if isinstance(form, str):
        return form
    detail = ", ".join(f"{name} {value}" for name, value in form.items() if name != "type")
    return f"{wanted.type} ({detail if len(detail) <= 60 else detail[:59] + '…'})"


def _action(data: object, where: str) -> Wanted:
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
            amount, unit = value[:-1].strip(), value[-1:]
            if amount.isdecimal() and unit in _SHORT_UNITS:
                return {"amount": int(amount[:9]), "units": _SHORT_UNITS[unit]}
            return {"until": value}
        case ActionType.FORWARD:
            return {"to": [part.strip() for part in value.split(",") if part.strip()]}
        case ActionType.AUTO_REPLY:
            return {"body": value}
        case _:
            return {"label": value}


def _refuse_contradictions(wanted: Sequence[Wanted], where: str) -> None:
    by_label: dict[str, int] = {}
    types: dict[ActionType, int] = {}
    for number, each in enumerate(wanted):
        place = f"{where}[{number}]"
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


def _touched(wanted: Wanted) -> tuple[str, ...]:
    if isinstance(wanted.parameters, LabelParameters):
        return (wanted.parameters.label,)
    return _TOUCHED.get(wanted.type, ())

"""What the model may choose for one message: a tool for each action, with what it needs to know; and `none`.

`delete` is never offered. Labels are those that the owner has and lets it use; mail is forwarded only to whom the owner
named; what makes no sense for the message as it stands is left out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from types import MappingProxyType
from typing import Any

from postroom.domain.actions import ActionType, parameters_of
from postroom.domain.metering import as_data
from postroom.triage.asking import Tool
from postroom.triage.decision import NOTHING

LONGEST_REASON = 500
LONGEST_LETTER = 4_000
LONGEST_SNOOZE = timedelta(days=30)
MOST_LABEL_CHOICES_BYTES = 1_500
MOST_REMOVABLE_BYTES = 500
MOST_ADDRESS_BYTES = 500
"""Of the labels, and of the addresses, that stand in a tool."""

_SAYS = MappingProxyType(
    {
        ActionType.ARCHIVE: "Take the message out of the inbox.",
        ActionType.APPLY_LABEL: "Add a label to the message.",
        ActionType.REMOVE_LABEL: "Take a label away from the message.",
        ActionType.MARK_READ: "Mark the message as read.",
        ActionType.MARK_UNREAD: "Mark the message as unread.",
        ActionType.STAR: "Star the message.",
        ActionType.UNSTAR: "Take the star away.",
        ActionType.TRASH: "Move the message to the trash.",
        ActionType.RESTORE: "Take the message out of the trash.",
        ActionType.SNOOZE: "Hide the message for a while; it comes back to the inbox by itself. 30 days at most.",
        ActionType.FORWARD: "Forward the message. A person is asked first.",
        ActionType.AUTO_REPLY: "Answer the sender. A person is asked first.",
    }
)
_COMMON: dict[str, Any] = {
    "confidence": {"type": "number", "minimum": 0, "maximum": 1},
    "reason": {"type": "string", "maxLength": LONGEST_REASON},
    "needs_approval": {"type": "boolean"},
}
COMMON = frozenset(_COMMON)


@dataclass(frozen=True, slots=True)
class Offer:
    """What fits one message and its owner."""

    labels: tuple[str, ...] = ()
    """Names of those that may be added."""
    on_message: frozenset[str] = field(default_factory=frozenset)
    """All labels that the message has."""
    forward_to: tuple[str, ...] = ()

    @property
    def removable(self) -> tuple[str, ...]:
        return bounded([label for label in self.labels if label in self.on_message], MOST_REMOVABLE_BYTES)

    @property
    def actions(self) -> tuple[ActionType, ...]:
        return tuple(action for action in _SAYS if self._fits(action))

    def choices(self, action: ActionType) -> tuple[str, ...] | None:
        """Whom or what the action may name; None where it names nothing of the kind."""
        match action:
            case ActionType.APPLY_LABEL:
                return self.labels
            case ActionType.REMOVE_LABEL:
                return self.removable
            case ActionType.FORWARD:
                return self.forward_to
            case _:
                return None

    def tools(self) -> tuple[Tool, ...]:
        nothing = Tool(NOTHING, "Leave the message as it is; also where you are not sure.", _schema({}))
        return nothing, *(Tool(action, _SAYS[action], self._schema(action)) for action in self.actions)

    def _fits(self, action: ActionType) -> bool:
        if (choices := self.choices(action)) is not None:
            return bool(choices)
        match action:
            case ActionType.RESTORE:
                return "TRASH" in self.on_message
            case ActionType.UNSTAR:
                return "STARRED" in self.on_message
            case ActionType.MARK_UNREAD:
                return "UNREAD" not in self.on_message
            case _:
                return True

    def _schema(self, action: ActionType) -> dict[str, Any]:
        properties = {name: _plain(part) for name, part in _properties(action).items()}
        chosen = list(self.choices(action) or ())
        match action:
            case ActionType.APPLY_LABEL | ActionType.REMOVE_LABEL:
                properties["label"] = {"type": "string", "enum": chosen}
            case ActionType.FORWARD:
                properties["to"] |= {"items": {"type": "string", "enum": chosen}}
                properties["note"] |= {"maxLength": LONGEST_LETTER}
                return _schema(properties, optional=("note",))
            case ActionType.AUTO_REPLY:
                properties["body"] |= {"maxLength": LONGEST_LETTER}
            case ActionType.SNOOZE:
                del properties["until"]  # a model is bad at calendars
                properties["amount"] |= {"maximum": LONGEST_SNOOZE.days}
                properties["units"] = {"type": "string", "enum": ["hours", "days"]}
        return _schema(properties)


def bounded(names: Collection[str], most_bytes: int) -> tuple[str, ...]:
    """As many of the choices as a tool has room for, in order."""
    kept: list[str] = []
    for name in dict.fromkeys(names):
        if len(as_data([*kept, name]).encode()) > most_bytes:
            break
        kept.append(name)
    return tuple(kept)


@cache
def _properties(action: ActionType) -> Mapping[str, dict[str, Any]]:
    found: Mapping[str, dict[str, Any]] = parameters_of(action).model_json_schema().get("properties", {})
    return found


def _plain(part: dict[str, Any]) -> dict[str, Any]:
    """A part of a schema as models read it best: without titles, defaults, and the possibility of nothing."""
    options = [option for option in part.get("anyOf", ()) if option.get("type") != "null"]
    merged = part | (options[0] if options else {})
    return {name: value for name, value in merged.items() if name not in ("anyOf", "title", "default")}


def _schema(properties: dict[str, Any], optional: Sequence[str] = ()) -> dict[str, Any]:
    every = properties | _COMMON
    return {
        "type": "object",
        "properties": every,
        "required": [name for name in every if name not in optional],
        "additionalProperties": False,
    }

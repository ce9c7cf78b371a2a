"""What the model may choose for a message, one tool for each action, and how its answer becomes a checked choice.

`delete` and `unsubscribe` are never offered. An answer counts only if it is exactly one valid call of an offered tool;
problems are reported in our own words, because they stand outside the fence around mail when the model is asked again.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache, lru_cache
from types import MappingProxyType
from typing import Any, Never

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from postroom.domain.actions import (
    ActionType,
    ForwardParameters,
    LabelParameters,
    Parameters,
    ReplyParameters,
    SnoozeParameters,
    WantedAction,
    parameters_of,
)
from postroom.domain.model_costs import as_data
from postroom.domain.validation import problem_text
from postroom.triage.decision import NOTHING
from postroom.triage.questions import ModelAnswer, ModelTool, ToolCall, one_line, readable

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
_MOST_TOOLS = 500
"""Kept, of those with different labels and addresses."""
_COMMON: dict[str, Any] = {
    "confidence": {"type": "number", "minimum": 0, "maximum": 1},
    "reason": {"type": "string", "maxLength": LONGEST_REASON},
    "needs_approval": {"type": "boolean"},
}
COMMON = frozenset(_COMMON)


@dataclass(frozen=True, slots=True)
class ToolOffer:
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

    def parameters(self, action: ActionType) -> tuple[str, ...]:
        """What the model may say with an action. Files, HTML and addresses of its own are not for it to write."""
        match action:
            case ActionType.FORWARD:
                return "to", "note"
            case ActionType.AUTO_REPLY:
                return ("body", "cc") if self.forward_to else ("body",)
            case _:
                return tuple(_properties(action))

    def tools(self) -> tuple[ModelTool, ...]:
        return _leave_alone(), *(
            _tool(action, self.parameters(action), self.choices(action) or (), self.forward_to)
            for action in self.actions
        )

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


# Made once for many messages: to make the tools and their JSON takes longer than the rest of a question.
@cache
def _leave_alone() -> ModelTool:
    return ModelTool(NOTHING, "Leave the message as it is; also where you are not sure.", _schema({}))


@lru_cache(maxsize=_MOST_TOOLS)
def _tool(
    action: ActionType, names: tuple[str, ...], choices: tuple[str, ...], forward_to: tuple[str, ...]
) -> ModelTool:
    return ModelTool(action, _SAYS[action], _tool_schema(action, names, list(choices), list(forward_to)))


def _tool_schema(
    action: ActionType, names: tuple[str, ...], chosen: list[str], forward_to: list[str]
) -> dict[str, Any]:
    properties = {name: _plain(_properties(action)[name]) for name in names}
    match action:
        case ActionType.APPLY_LABEL | ActionType.REMOVE_LABEL:
            properties["label"] = {"type": "string", "enum": chosen}
        case ActionType.FORWARD:
            properties["to"] |= {"items": {"type": "string", "enum": chosen}}
            properties["note"] |= {"maxLength": LONGEST_LETTER}
            return _schema(properties, optional=("note",))
        case ActionType.AUTO_REPLY:
            properties["body"] |= {"maxLength": LONGEST_LETTER}
            if "cc" in properties:
                properties["cc"] = {"type": "array", "items": {"type": "string", "enum": forward_to}}
                return _schema(properties, optional=("cc",))
        case ActionType.SNOOZE:
            del properties["until"]  # a model is bad at calendars
            properties["amount"] |= {"maximum": LONGEST_SNOOZE.days}
            properties["units"] = {"type": "string", "enum": ["hours", "days"]}
    return _schema(properties)


_LONGEST_ARGUMENTS = 60_000
_NAMED = ", ".join(f"`{name}`" for name in sorted(COMMON))


class UnusableAnswer(Exception):
    """The answer is no decision; the message says why without repeating it."""


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """What the model wants, checked."""

    wanted: WantedAction | None
    """None: leave the message as it is."""
    confidence: float
    reason: str
    asks_approval: bool = False


class _Common(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    confidence: float = Field(ge=0, le=1)
    reason: str = Field(min_length=1, max_length=2_000)
    needs_approval: bool


def read_answer(answer: ModelAnswer, offer: ToolOffer) -> ModelChoice:
    """What the model chose."""
    if answer.is_cut:
        raise UnusableAnswer("it was cut off at the limit of its length")
    if len(answer.calls) != 1:
        raise UnusableAnswer("it does not call exactly one tool")
    return read_call(answer.calls[0], offer)


def read_call(call: ToolCall, offer: ToolOffer) -> ModelChoice:
    """What a call of one of the offered tools asks for."""
    if call.name != NOTHING and call.name not in offer.actions:
        raise UnusableAnswer("it calls a tool that was not offered")
    arguments = call_arguments(call.arguments)
    common = _common({name: value for name, value in arguments.items() if name in COMMON})
    rest = {name: value for name, value in arguments.items() if name not in COMMON}
    reason = one_line(common.reason, LONGEST_REASON)
    if not reason:
        raise UnusableAnswer("reason: holds nothing that can be read")
    return ModelChoice(_wanted(call.name, rest, offer), common.confidence, reason, common.needs_approval)


def call_arguments(text: str) -> dict[str, Any]:
    """What a call says, as the model wrote it. Raises UnusableAnswer."""
    if len(text) > _LONGEST_ARGUMENTS:
        raise UnusableAnswer("arguments: are too long")
    try:
        value = json.loads(text, parse_constant=_no_number, object_pairs_hook=_once)
    except (ValueError, RecursionError):
        raise UnusableAnswer("arguments: are not JSON in which every name stands once") from None
    if not isinstance(value, dict):
        raise UnusableAnswer("arguments: are no object")
    return value


def _no_number(name: str) -> Never:
    raise ValueError("JSON knows neither NaN nor Infinity")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Of two values under one name, one reader takes the first and another the last."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands twice")
    return found


def _common(given: dict[str, Any]) -> _Common:
    try:
        return _Common.model_validate(given)
    except ValidationError as error:
        raise UnusableAnswer(_problem(error, COMMON)) from None


def _wanted(name: str, rest: dict[str, Any], offer: ToolOffer) -> WantedAction | None:
    if name == NOTHING:
        if rest:
            raise UnusableAnswer(f"arguments: `{NOTHING}` takes {_NAMED} and nothing else")
        return None
    action = ActionType(name)
    kind, known = parameters_of(action), frozenset(offer.parameters(action))
    if not rest.keys() <= known:
        raise UnusableAnswer("arguments: one of them does not belong there")
    try:
        parameters = kind.model_validate(rest)
    except ValidationError as error:
        raise UnusableAnswer(_problem(error, known)) from None
    return WantedAction(action, _within(parameters, offer.choices(action) or offer.forward_to))


def _within(parameters: Parameters, choices: tuple[str, ...]) -> Parameters:
    """The parameters, if they keep to what was offered, with texts that can be stored and sent."""
    match parameters:
        case LabelParameters(label=label) if label not in choices:
            raise UnusableAnswer("label: is not one of those that were offered")
        case SnoozeParameters(until=until) if until is not None:
            raise UnusableAnswer("arguments: one of them does not belong there")
        case SnoozeParameters() if parameters.wait > LONGEST_SNOOZE:
            raise UnusableAnswer(f"amount: {LONGEST_SNOOZE.days} days are the longest")
        case ForwardParameters(to=to, note=note):
            if not set(to) <= set(choices):
                raise UnusableAnswer("to: holds an address that was not offered")
            return ForwardParameters(to=list(dict.fromkeys(to)), note=None if note is None else _letter(note, "note"))
        case ReplyParameters(body=body, cc=cc):
            if not set(cc) <= set(choices):
                raise UnusableAnswer("cc: holds an address that was not offered")
            return ReplyParameters(body=_letter(body or "", "body"), cc=list(dict.fromkeys(cc)))
        case _:
            return parameters


def _letter(text: str, name: str) -> str:
    if len(text) > LONGEST_LETTER:
        raise UnusableAnswer(f"{name}: has more than {LONGEST_LETTER} characters")
    if not (letter := readable(text)):
        raise UnusableAnswer(f"{name}: holds nothing that can be read")
    return letter


def _problem(error: ValidationError, names: frozenset[str]) -> str:
    problem = error.errors(include_input=False, include_url=False)[0]
    place = str(problem["loc"][0]) if problem["loc"] else "arguments"
    return (
        f"{place}: {problem_text(problem)}"
        if place in names or not problem["loc"]
        else "arguments: are not as asked for"
    )

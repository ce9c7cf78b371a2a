"""A model's answer becomes a choice only if it is exactly one valid call of an offered tool.

What is wrong with another is said in words of ours alone: they stand outside of the mail's fence when the model is
asked again, and a word that the model made up may be one that the mail told it to make up.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Never

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from postroom.domain.actions import (
    ActionType,
    ForwardParameters,
    LabelParameters,
    Parameters,
    ReplyParameters,
    SnoozeParameters,
    Wanted,
    parameters_of,
)
from postroom.triage.asking import Answer, one_line, readable
from postroom.triage.decision import NOTHING
from postroom.triage.offers import COMMON, LONGEST_LETTER, LONGEST_REASON, LONGEST_SNOOZE, Offer

_LONGEST_ARGUMENTS = 60_000
_NAMED = ", ".join(f"`{name}`" for name in sorted(COMMON))


class UnusableAnswer(Exception):
    """The answer is no decision; the message says why without repeating it."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What the model wants, checked."""

    wanted: Wanted | None
    """None: leave the message as it is."""
    confidence: float
    reason: str
    asks_approval: bool = False


class _Common(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    confidence: float = Field(ge=0, le=1)
    reason: str = Field(min_length=1, max_length=2_000)
    needs_approval: bool


def read_answer(answer: Answer, offer: Offer) -> Choice:
    """What the model chose."""
    if answer.is_cut:
        raise UnusableAnswer("it was cut off at the limit of its length")
    if len(answer.calls) != 1:
        raise UnusableAnswer("it does not call exactly one tool")
    call = answer.calls[0]
    if call.name != NOTHING and call.name not in offer.actions:
        raise UnusableAnswer("it calls a tool that was not offered")
    arguments = _arguments(call.arguments)
    common = _common({name: value for name, value in arguments.items() if name in COMMON})
    rest = {name: value for name, value in arguments.items() if name not in COMMON}
    reason = one_line(common.reason, LONGEST_REASON)
    if not reason:
        raise UnusableAnswer("reason: holds nothing that can be read")
    return Choice(_wanted(call.name, rest, offer), common.confidence, reason, common.needs_approval)


def _arguments(text: str) -> dict[str, Any]:
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


def _wanted(name: str, rest: dict[str, Any], offer: Offer) -> Wanted | None:
    if name == NOTHING:
        if rest:
            raise UnusableAnswer(f"arguments: `{NOTHING}` takes {_NAMED} and nothing else")
        return None
    action = ActionType(name)
    kind = parameters_of(action)
    if not rest.keys() <= kind.model_fields.keys():
        raise UnusableAnswer("arguments: one of them does not belong there")
    try:
        parameters = kind.model_validate(rest)
    except ValidationError as error:
        raise UnusableAnswer(_problem(error, frozenset(kind.model_fields))) from None
    return Wanted(action, _within(parameters, offer.choices(action) or ()))


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
        case ReplyParameters(body=body):
            return ReplyParameters(body=_letter(body, "body"))
        case _:
            return parameters


def _letter(text: str, name: str) -> str:
    if len(text) > LONGEST_LETTER:
        raise UnusableAnswer(f"{name}: has more than {LONGEST_LETTER} characters")
    if not (letter := readable(text)):
        raise UnusableAnswer(f"{name}: holds nothing that can be read")
    return letter


def _problem(error: ValidationError, names: frozenset[str]) -> str:
    problem = error.errors(include_input=False, include_url=False, include_context=False)[0]
    place = str(problem["loc"][0]) if problem["loc"] else "arguments"
    said = problem["msg"].removeprefix("Value error, ")
    return f"{place}: {said}" if place in names or not problem["loc"] else "arguments: are not as asked for"

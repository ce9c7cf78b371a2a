"""What may be decided about a message, and how a model's answer becomes a decision or is refused."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from postroom.domain.actions import Proposal
from postroom.triage.model import Answer, Tool, one_line

TOOL_NAME = "decide"
LONGEST_REASON = 500


class Action(StrEnum):
    """What can be done with a message. Those that need parameters are not offered to the model yet."""

    NONE = "none"
    ARCHIVE = "archive"
    APPLY_LABEL = "apply_label"
    REMOVE_LABEL = "remove_label"
    MARK_READ = "mark_read"
    MARK_UNREAD = "mark_unread"
    STAR = "star"
    UNSTAR = "unstar"
    TRASH = "trash"
    RESTORE = "restore"
    DELETE = "delete"
    SNOOZE = "snooze"
    FORWARD = "forward"
    AUTO_REPLY = "auto_reply"


OFFERED = (Action.NONE, Action.ARCHIVE, Action.MARK_READ, Action.STAR, Action.TRASH)


class Source(StrEnum):
    """Who decided."""

    RULE = "deterministic"
    MODEL = "llm"
    NOBODY = "none"


@dataclass(frozen=True, slots=True)
class Decision:
    source: Source
    action: Action
    reason: str
    confidence: float | None = None
    needs_review: bool = False
    parameters: dict[str, Any] = field(default_factory=dict)
    actions: tuple[Proposal, ...] = ()
    rule_id: str | None = None
    rule_name: str | None = None

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why what it wants needs approval: each reason once, in order."""
        return tuple(dict.fromkeys(reason for proposal in self.actions for reason in proposal.reasons))


def left_alone(reason: str) -> Decision:
    return Decision(Source.NOBODY, Action.NONE, reason)


def for_review(reason: str) -> Decision:
    return Decision(Source.NOBODY, Action.NONE, reason, needs_review=True)


class _Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid")

    action: Action
    confidence: float = Field(ge=0, le=1, strict=False)
    reason: str = Field(min_length=1, max_length=2_000)

    @field_validator("action")
    @classmethod
    def _is_offered(cls, action: Action) -> Action:
        if action not in OFFERED:
            raise ValueError(f"choose one of {', '.join(OFFERED)}")
        return action


ANSWER_TOOL = Tool(
    TOOL_NAME,
    "Say what should be done with the message, how sure you are, and why.",
    {
        "type": "object",
        "properties": {
            "action": {"type": "string", "enum": [str(action) for action in OFFERED]},
            "confidence": {"type": "number", "minimum": 0, "maximum": 1},
            "reason": {"type": "string", "maxLength": LONGEST_REASON},
        },
        "required": ["action", "confidence", "reason"],
        "additionalProperties": False,
    },
)


class UnusableAnswer(Exception):
    """The answer is no decision; the message says why without repeating it."""


def read_answer(answer: Answer) -> Decision:
    """The decision that the model made. Exactly one call of the tool, with valid arguments, is one."""
    if answer.is_cut:
        raise UnusableAnswer("it was cut off at the limit of its length")
    if len(answer.calls) != 1 or answer.calls[0].name != TOOL_NAME:
        raise UnusableAnswer(f"it does not call the tool {TOOL_NAME} exactly once")
    try:
        found = _Arguments.model_validate_json(answer.calls[0].arguments)
    except ValidationError as error:
        raise UnusableAnswer(_problem(error)) from None
    reason = one_line(found.reason, LONGEST_REASON)
    if not reason:
        raise UnusableAnswer("reason: holds nothing that can be read")
    return Decision(Source.MODEL, found.action, reason, found.confidence)


def _problem(error: ValidationError) -> str:
    """In words of ours alone. It stands outside of the mail's fence when the model is asked again, and a name that the
    model made up may be one that the mail told it to make up."""
    problem = error.errors(include_input=False, include_url=False)[0]
    place = ".".join(str(part) for part in problem["loc"]) or "arguments"
    match problem["type"]:
        case "json_invalid":
            return "arguments: is not JSON"
        case "extra_forbidden":
            return "arguments: one of them does not belong there"
        case _ if place in (*_Arguments.model_fields, "arguments"):
            return f"{place}: {problem['msg']}"
        case _:
            return "arguments: are not as asked for"

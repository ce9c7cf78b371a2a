"""Our errors as they travel from the Switchboard to whoever called a tool, and back into errors on the other side."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Any

from postroom.domain.errors import BadInput, Fatal, NotAllowed, NotFound, PostroomError, Retryable


class Kind(StrEnum):
    BAD_INPUT = "bad_input"
    NOT_FOUND = "not_found"
    NOT_ALLOWED = "not_allowed"
    RETRYABLE = "retryable"
    FATAL = "fatal"


def to_wire(error: PostroomError) -> dict[str, Any]:
    """What a failed call answers: `{"error": {"kind", "message", ...}}`."""
    described: dict[str, Any] = {"kind": _kind_of(error), "message": error.message}
    if isinstance(error, BadInput):
        described |= {"field": error.field, "problem": error.problem}
    if isinstance(error, Retryable) and error.retry_after is not None:
        described["retry_after"] = error.retry_after.total_seconds()
    return {"error": described}


def from_wire(answer: Mapping[str, Any] | None, text: str = "") -> PostroomError:
    """The error that an answer describes; one that says nothing we know is fatal, with its text."""
    described = (answer or {}).get("error")
    if not isinstance(described, Mapping):
        return Fatal(text or "The Switchboard refused the call and did not say why.")
    message = str(described.get("message", text))
    match described.get("kind"):
        case Kind.BAD_INPUT:
            return BadInput(str(described.get("field", "")), str(described.get("problem", message)))
        case Kind.NOT_FOUND:
            return NotFound(str(described.get("field", "")), str(described.get("problem", message)))
        case Kind.NOT_ALLOWED:
            return NotAllowed(message)
        case Kind.RETRYABLE:
            return Retryable(message, retry_after=_seconds(described.get("retry_after")))
        case _:
            return Fatal(message)


def _kind_of(error: PostroomError) -> Kind:
    match error:
        case NotFound():
            return Kind.NOT_FOUND
        case BadInput():
            return Kind.BAD_INPUT
        case NotAllowed():
            return Kind.NOT_ALLOWED
        case Retryable():
            return Kind.RETRYABLE
        case _:
            return Kind.FATAL


def _seconds(value: object) -> timedelta | None:
    return timedelta(seconds=value) if isinstance(value, int | float) and 0 <= value < 1e9 else None

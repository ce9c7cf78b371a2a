"""Every error that Postroom raises on purpose, and how it travels from the Switchboard to the caller of a tool and
back.

    PostroomError
    ├── Retryable        the same call may succeed later; knows how long to wait, if the source said so
    ├── Fatal            trying again cannot help; a person has to change something
    │   └── NewerSchema  the database was written by a newer Postroom
    ├── BadInput         a value was refused; names the field, changes nothing
    │   └── NotFound     the thing that the input names does not exist
    └── NotAllowed       the caller is known but may not do this

A library's own errors are mapped to these once, at the edge where the library is called. The docstring of a class is
its default message, so it is written for the person who reads it.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from enum import StrEnum
from typing import Any


class PostroomError(Exception):
    """Something went wrong in Postroom."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or inspect.getdoc(type(self)))

    @property
    def message(self) -> str:
        return str(self.args[0])


class Retryable(PostroomError):
    """The work could not be done now and will be tried again."""

    def __init__(self, message: str | None = None, *, retry_after: timedelta | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Fatal(PostroomError):
    """The work cannot succeed as it stands; trying again will not help."""


class NewerSchema(Fatal):
    """This database was written by a newer Postroom. Upgrade Postroom, or restore an older backup."""


class BadInput(PostroomError):
    """A value was refused and nothing was changed."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem

    def rename(self, field: str) -> None:
        """Name the field as the caller knows it."""
        self.field = field
        self.args = (f"{field}: {self.problem}",)


class NotFound(BadInput):
    """What was asked for does not exist."""


class NotAllowed(PostroomError):
    """You are not allowed to do this."""


class ErrorKind(StrEnum):
    BAD_INPUT = "bad_input"
    NOT_FOUND = "not_found"
    NOT_ALLOWED = "not_allowed"
    RETRYABLE = "retryable"
    FATAL = "fatal"


def error_to_wire(error: PostroomError) -> dict[str, Any]:
    """What a failed call answers: `{"error": {"kind", "message", ...}}`."""
    described: dict[str, Any] = {"kind": _kind_of(error), "message": error.message}
    if isinstance(error, BadInput):
        described |= {"field": error.field, "problem": error.problem}
    if isinstance(error, Retryable) and error.retry_after is not None:
        described["retry_after"] = error.retry_after.total_seconds()
    return {"error": described}


def error_from_wire(answer: Mapping[str, Any] | None, text: str = "") -> PostroomError:
    """The error that an answer describes; one that says nothing we know is fatal, with its text."""
    described = (answer or {}).get("error")
    if not isinstance(described, Mapping):
        return Fatal(text or "The Switchboard refused the call and did not say why.")
    message = str(described.get("message", text))
    match described.get("kind"):
        case ErrorKind.BAD_INPUT:
            return BadInput(str(described.get("field", "")), str(described.get("problem", message)))
        case ErrorKind.NOT_FOUND:
            return NotFound(str(described.get("field", "")), str(described.get("problem", message)))
        case ErrorKind.NOT_ALLOWED:
            return NotAllowed(message)
        case ErrorKind.RETRYABLE:
            return Retryable(message, retry_after=_seconds(described.get("retry_after")))
        case _:
            return Fatal(message)


def _kind_of(error: PostroomError) -> ErrorKind:
    match error:
        case NotFound():
            return ErrorKind.NOT_FOUND
        case BadInput():
            return ErrorKind.BAD_INPUT
        case NotAllowed():
            return ErrorKind.NOT_ALLOWED
        case Retryable():
            return ErrorKind.RETRYABLE
        case _:
            return ErrorKind.FATAL


def _seconds(value: object) -> timedelta | None:
    return timedelta(seconds=value) if isinstance(value, int | float) and 0 <= value < 1e9 else None


@contextmanager
def first_error() -> Iterator[None]:
    """Around a task group: raise its first PostroomError alone. A group with any other error is raised as it is."""
    try:
        yield
    except BaseExceptionGroup as group:
        ours, others = group.split(PostroomError)
        if ours is None or others is not None:
            raise
        raise _first(ours) from None


def _first(group: BaseExceptionGroup[PostroomError]) -> PostroomError:
    first = group.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first

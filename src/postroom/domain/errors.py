"""Every error that Postroom raises on purpose.

    PostroomError
    ├── Retryable        the same call may succeed later; knows how long to wait, if the source said so
    ├── Fatal            trying again cannot help; a person has to change something
    │   └── NewerSchema  the database was written by a newer Postroom
    ├── BadInput         a value was refused; names the field, changes nothing
    │   └── NotFound     the thing that the input names does not exist
    └── NotAllowed       the caller is known but may not do this

A library's own errors are mapped to these once, at the edge where the library is called.
The docstring of a class is its default message, so it is written for the person who reads it.
"""

from __future__ import annotations

import inspect
from datetime import timedelta


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


class NotFound(BadInput):
    """What was asked for does not exist."""


class NotAllowed(PostroomError):
    """You are not allowed to do this."""

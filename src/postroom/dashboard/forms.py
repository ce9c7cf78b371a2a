"""What a person entered: form fields, kept as written so that a page can show them again beside their errors; choices
from a page's address; and the position of an error in a search query.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Annotated, Any, TypeVar
from urllib.parse import urlencode

from fastapi import Query
from starlette.datastructures import FormData

from postroom.domain.errors import BadInput
from postroom.mail.query import QueryError

_LONGEST = 100_000


@dataclass(frozen=True)
class Form:
    """`form["name"]` is the text of a field, empty where it was not sent."""

    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def sent(cls, data: FormData) -> Form:
        texts: dict[str, tuple[str, ...]] = {}
        for name, value in data.multi_items():
            if not isinstance(value, str):
                raise BadInput(name, "is a file, which is not expected here")
            if len(value) > _LONGEST or "\x00" in value:
                raise BadInput(name, "is too long, or has characters that are not allowed")
            texts[name] = (*texts.get(name, ()), value)
        return cls(texts)

    @classmethod
    def filled(cls, **values: Any) -> Form:
        """A form filled in with current values."""
        return cls({name: _texts(value) for name, value in values.items() if value is not None})

    def __getitem__(self, name: str) -> str:
        values = self.values.get(name)
        return values[-1].strip() if values else ""

    def secret(self, name: str) -> str:
        """Not stripped: surrounding spaces are part of a passphrase."""
        return self.values.get(name, ("",))[-1]

    def all(self, name: str) -> tuple[str, ...]:
        return self.values.get(name, ())

    def checked(self, name: str) -> bool:
        return bool(self[name])

    def error(self, name: str) -> str:
        return self.errors.get(name, "")

    def number(self, name: str) -> int:
        try:
            return int(self[name])
        except ValueError:
            raise BadInput(name, "is not a whole number") from None

    def optional(self, name: str) -> str | None:
        return self[name] or None

    def one_of(self, name: str, choices: Sequence[str]) -> str:
        if self[name] not in choices:
            raise BadInput(name, f"is not one of {', '.join(choices)}")
        return self[name]

    def refused(self, error: BadInput) -> Form:
        """The same form, with the problem beside the field that it names."""
        return replace(self, errors={**self.errors, error.field: error.problem})


def _texts(value: Any) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        return (str(value),)
    return tuple(str(item) for item in value)


E = TypeVar("E", bound=Enum)

FilterChoice = Annotated[str, Query(max_length=200)]


def chosen(kind: type[E], text: str, field: str) -> E | None:
    """The member that the text names; None if nothing was chosen."""
    if not text:
        return None
    try:
        return kind(text)
    except ValueError:
        raise BadInput(field, f"{text!r} is not one of {', '.join(str(item.value) for item in kind)}") from None


def query_of(**filters: object) -> str:
    """A query string of the values that are set."""
    return urlencode({name: str(value) for name, value in filters.items() if value})


_CONTEXT = 60


@dataclass(frozen=True, slots=True)
class QueryMistake:
    """The part of the query around the error."""

    before: str
    at: str
    """The character; empty if something is missing at the end."""
    after: str
    expected: str


def mistake_in(query: str, error: BadInput) -> QueryMistake | None:
    if not isinstance(error, QueryError):
        return None
    place = error.position - 1
    before, after = query[max(place - _CONTEXT, 0) : place], query[place + 1 : place + _CONTEXT]
    return QueryMistake(before, query[place : place + 1], after, error.expected)

"""A query with its mistake pointed at, as the command line does it."""

from __future__ import annotations

from dataclasses import dataclass

from postroom.domain.errors import BadInput
from postroom.mail.query import QueryError

_CONTEXT = 60


@dataclass(frozen=True, slots=True)
class Mistake:
    """The query around the place: of a long one, a part."""

    before: str
    at: str
    """The character; empty where something is missing at the end."""
    after: str
    expected: str


def mistake_in(query: str, error: BadInput) -> Mistake | None:
    if not isinstance(error, QueryError):
        return None
    place = error.position - 1
    before, after = query[max(place - _CONTEXT, 0) : place], query[place + 1 : place + _CONTEXT]
    return Mistake(before, query[place : place + 1], after, error.expected)

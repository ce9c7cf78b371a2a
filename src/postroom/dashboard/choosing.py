"""Filters of a page, from its address. A select that was left on `any` sends an empty text."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, TypeVar
from urllib.parse import urlencode

from fastapi import Query

from postroom.domain.errors import BadInput

E = TypeVar("E", bound=Enum)

Choice = Annotated[str, Query(max_length=200)]


def chosen(kind: type[E], text: str, field: str) -> E | None:
    """The member that the text names; none where nothing was chosen."""
    if not text:
        return None
    try:
        return kind(text)
    except ValueError:
        raise BadInput(field, f"{text!r} is not one of {', '.join(str(item.value) for item in kind)}") from None


def query_of(**filters: object) -> str:
    """The filters in force as a query, so that the link to the next page keeps them."""
    return urlencode({name: str(value) for name, value in filters.items() if value})

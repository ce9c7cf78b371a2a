"""Long lists, a page at a time: from a place in the order onwards, so that page 1,000 costs what page 1 does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Generic, TypeVar
from uuid import UUID

from fastapi import Query
from sqlalchemy import Column, Select, and_, or_

T = TypeVar("T")

PAGE = 50
MOST = 200

Limit = Annotated[int, Query(ge=1, le=MOST, description="how many at most")]
AfterId = Annotated[UUID | None, Query(description="`next` of the page before")]
"""Of a list whose places are ids."""
After = Annotated[str | None, Query(max_length=200, description="`next` of the page before")]


@dataclass(frozen=True, slots=True)
class Paged(Generic[T]):
    items: Sequence[T]
    next: str | None
    """Asks for the page after this one, as `after`; null on the last."""


@dataclass(frozen=True, slots=True)
class Order:
    """Of a list: by these columns, of which the last is different in every row."""

    columns: tuple[Column[Any], ...]
    falling: tuple[str, ...] = ()

    def apply(self, query: Select[Any], start: Any = None) -> Select[Any]:
        """In this order, from beyond the row `start`: differs in one column, and agrees in those before it."""
        query = query.order_by(*(column.desc() if column.name in self.falling else column for column in self.columns))
        if start is None:
            return query
        alternatives = []
        for place, column in enumerate(self.columns):
            value = getattr(start, column.name)
            agrees = [other == getattr(start, other.name) for other in self.columns[:place]]
            alternatives.append(and_(*agrees, column < value if column.name in self.falling else column > value))
        return query.where(or_(*alternatives))


def paged(found: Sequence[T], limit: int, place_of: Callable[[T], str]) -> Paged[T]:
    """From one row more than the page holds: it tells whether there is another page."""
    shown = found[:limit]
    return Paged(shown, place_of(shown[-1]) if len(found) > limit else None)

"""Long lists, a page at a time by keyset, so that page 1,000 costs what page 1 does; and counts that stop at a bound,
because a page says "more than 10,000" as well as the exact number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Generic, TypeVar
from uuid import UUID

from fastapi import Query
from sqlalchemy import Column, Select, and_, func, or_, select

from postroom.db import Tx

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
class SortOrder:
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


ENOUGH = 10_000


@dataclass(frozen=True, slots=True)
class BoundedCount:
    number: int
    is_more: bool
    """There are more than were counted."""

    def __str__(self) -> str:
        return f"{self.number:,}{'+' if self.is_more else ''}"


def bounded_count(tx: Tx, query: Select[Any], most: int = ENOUGH) -> BoundedCount:
    found = tx.execute(select(func.count()).select_from(query.limit(most + 1).subquery())).scalar_one()
    return BoundedCount(min(found, most), found > most)

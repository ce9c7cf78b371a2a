"""Long lists, a page at a time by keyset, so that page 1,000 costs what page 1 does; and counts that stop at a bound,
because a page says "more than 10,000" as well as the exact number.

A list has one `ListQuery`: its page and its API take the same filters, read once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from urllib.parse import urlencode

from pydantic import BaseModel, Field, model_validator
from sqlalchemy import Column, FromClause, Select, and_, func, or_, select

from postroom.db import Tx
from postroom.domain.errors import BadInput, NotFound
from postroom.domain.ids import parse_id

T = TypeVar("T")

PAGE = 50
MOST = 200


class ListQuery(BaseModel, frozen=True):
    """The query of a list. An empty value, as a form sends it, is no filter."""

    after: str | None = Field(None, max_length=600, description="`next` of the previous page")
    limit: int = Field(PAGE, ge=1, le=MOST, description="how many at most")

    @model_validator(mode="before")
    @classmethod
    def _without_empty(cls, sent: Any) -> Any:
        if not isinstance(sent, dict):
            return sent
        stripped = {name: value.strip() if isinstance(value, str) else value for name, value in sent.items()}
        return {name: value for name, value in stripped.items() if value not in ("", None)}

    @property
    def filter(self) -> str:
        """The filters in force as a query string, so that the link to the next page keeps them."""
        place = ("after", "before", "limit")
        return urlencode({name: str(value) for name, value in self if name not in place and value not in (None, "")})

    @property
    def is_first_page(self) -> bool:
        return self.after is None


@dataclass(frozen=True, slots=True)
class Paged(Generic[T]):
    items: Sequence[T]
    next: str | None
    """Asks for the page after this one, as `after`; null on the last."""


@dataclass(frozen=True, slots=True)
class SortOrder:
    """The order of a list: by these columns, the last of which differs in every row."""

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


def row_before(tx: Tx, table: FromClause, after: str | None) -> Any:
    """The row that the previous page ended with, named by its id; None on the first page."""
    if after is None:
        return None
    row = tx.execute(select(table).where(table.c.id == parse_id(after, "after"))).one_or_none()
    if row is None:
        raise NotFound("after", "the last item of the previous page is gone; start again at the first page")
    return row


def number_after(after: str | None, most: int) -> int | None:
    """Where a list goes on whose places are numbers; None on the first page."""
    if after is None:
        return None
    if not (after.isascii() and after.isdecimal() and len(after) <= 18 and int(after) <= most):
        raise BadInput("after", "is not the `next` of a page of this list; start again at the first page")
    return int(after)


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


def counted(number: BoundedCount, noun: str) -> str:
    """`1 job`, `12 jobs`, `1,000+ jobs`"""
    return f"{number} {noun if number.number == 1 and not number.is_more else noun + 's'}"


Key = TypeVar("Key", bound=Hashable)


def bounded_counts(tx: Tx, queries: Mapping[Key, Select[Any]], most: int = ENOUGH) -> dict[Key, BoundedCount]:
    """Several counts by one statement: on PostgreSQL a statement costs more than most counts do."""
    counts = (select(func.count()).select_from(query.limit(most + 1).subquery()) for query in queries.values())
    found = tx.execute(select(*(count.scalar_subquery() for count in counts))).one()
    return {name: bounded(number, most) for name, number in zip(queries, found, strict=True)}


def bounded(number: int, most: int = ENOUGH) -> BoundedCount:
    """Of a number that was counted to one beyond the most."""
    return BoundedCount(min(number, most), number > most)

"""Counting without reading more than is worth it: a page says "more than 10,000" as well as the exact number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, func, select

from postroom.db import Tx

ENOUGH = 10_000


@dataclass(frozen=True, slots=True)
class Bounded:
    number: int
    is_more: bool
    """There are more than were counted."""

    def __str__(self) -> str:
        return f"{self.number:,}{'+' if self.is_more else ''}"


def bounded(tx: Tx, query: Select[Any], most: int = ENOUGH) -> Bounded:
    found = tx.execute(select(func.count()).select_from(query.limit(most + 1).subquery())).scalar_one()
    return Bounded(min(found, most), found > most)

"""Which mail a backfill is after: the shipped categories, asked for by name."""

from __future__ import annotations

from collections.abc import Sequence

from postroom.mail.categories import Categories, facts_of, shipped
from postroom.mail.headers import Headers


class CategorySelector:
    def __init__(self, categories: Categories | None = None) -> None:
        self._categories = categories or shipped()

    @property
    def headers_read(self) -> frozenset[str]:
        return self._categories.headers_read

    def query(self, names: Sequence[str]) -> str:
        return self._categories.query(names)

    def selects(self, names: Sequence[str], headers: Headers, *, is_known: bool) -> bool:
        return bool(self._categories.matching(facts_of(headers, is_known=is_known), names))

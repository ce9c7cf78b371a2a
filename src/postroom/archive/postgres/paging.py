"""Page tokens of the archive in PostgreSQL: after which message a page ended."""

from __future__ import annotations

from dataclasses import dataclass

from postroom.archive.search.model import Sort
from postroom.archive.search.paging import decoded, encoded, refused


@dataclass(frozen=True, slots=True)
class AfterRow:
    """Everything older, and of the same instant everything in later accounts."""

    account: str
    row_id: int

    def encoded(self) -> str:
        return encoded([Sort.DATE, self.account, self.row_id])


def after_row(token: str) -> AfterRow:
    match decoded(token):
        case [Sort.DATE, str(account), int(row_id)] if row_id is not True and 0 <= row_id < 1 << 63:
            return AfterRow(account, row_id)
    raise refused()

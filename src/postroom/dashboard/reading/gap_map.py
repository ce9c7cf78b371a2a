"""What of an account's time is proven to be in the archive, from the first mail to now, and what is not. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from postroom.sync.state import SliceRow


class Holding(StrEnum):
    PROVEN = "proven"
    """Before the watermark: every message is stored, listed as bad, or gone at the source."""
    AHEAD = "ahead"
    """Done, but after something that is not, so the watermark has not come here."""
    OPEN = "open"
    """Planned, and not done yet."""
    UNLISTED = "unlisted"
    """Since the last look at the source."""


@dataclass(frozen=True, slots=True)
class Span:
    holding: Holding
    start: datetime
    end: datetime

    @property
    def seconds(self) -> float:
        return (self.end - self.start).total_seconds()


def gap_map(watermark: int, slices: Sequence[SliceRow], first: datetime, now: datetime) -> list[Span]:
    """From `first` to now, without a hole and without an overlap; neighbours of a kind are one."""
    left, right = int(first.timestamp()), int(now.timestamp())
    return list(_spans(_joined(_pieces(watermark, slices, left, right))))


Piece = tuple[Holding, int, int]


def _pieces(watermark: int, slices: Sequence[SliceRow], left: int, right: int) -> Iterator[Piece]:
    reached = max(left, min(watermark, right))
    if reached > left:
        yield Holding.PROVEN, left, reached
    for row in slices:
        if row.slice.end is None:
            break
        start, end = max(row.slice.start, reached), min(row.slice.end, right)
        if start > reached and start < right:
            yield Holding.UNLISTED, reached, start
        if end > start:
            yield (Holding.AHEAD if row.is_done else Holding.OPEN), start, end
            reached = end
    if reached < right:
        yield Holding.UNLISTED, reached, right


def _joined(pieces: Iterable[Piece]) -> Iterator[Piece]:
    last: Piece | None = None
    for holding, start, end in pieces:
        if last is not None and last[0] is holding:
            last = (holding, last[1], end)
            continue
        if last is not None:
            yield last
        last = (holding, start, end)
    if last is not None:
        yield last


def _spans(pieces: Iterable[Piece]) -> Iterator[Span]:
    for holding, start, end in pieces:
        yield Span(holding, datetime.fromtimestamp(start, UTC), datetime.fromtimestamp(end, UTC))

"""The account of each slice that is being worked on: what was listed, and what is still open. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import count

from postroom.sync.slices import Slice


@dataclass(slots=True)
class SliceTally:
    listing: int
    part: Slice
    listed: int = 0
    jobs: int = 0
    open_jobs: int = 0
    at_listing: Counter[str] = field(default_factory=Counter)
    """Those of its outcomes that were known without asking Gmail."""
    is_listed: bool = False
    outcomes: Counter[str] = field(default_factory=Counter)
    """What became of its messages: stored, known, gone, bad."""

    @property
    def is_complete(self) -> bool:
        """Everything it holds was listed, and no job of it is open."""
        return self.is_listed and self.open_jobs == 0


class SliceTallies:
    """All listings under way, by number. A job of one that was given up counts for nobody."""

    def __init__(self) -> None:
        self._under_way: dict[int, SliceTally] = {}
        self._numbers = count(1)

    def begin(self, part: Slice) -> SliceTally:
        tally = SliceTally(next(self._numbers), part)
        self._under_way[tally.listing] = tally
        return tally

    def drop(self, listing: int) -> None:
        """The slice is listed again, or in halves."""
        self._under_way.pop(listing, None)

    def of(self, listing: int) -> SliceTally | None:
        return self._under_way.get(listing)

    def take_complete(self) -> list[SliceTally]:
        """Those that are complete, oldest first; they are no longer under way."""
        complete = [tally for tally in self._under_way.values() if tally.is_complete]
        for tally in complete:
            del self._under_way[tally.listing]
        return sorted(complete, key=lambda tally: tally.part.start)

"""The starvation guard: strict tier order, with a bounded wait for every tier.

`runs[T]` counts the services of tier T since a tier below T was last served. When it has reached the limit N and a
lower tier waits, the next service goes to the highest waiting tier below T, by the same rule among those. So with
N = 10 and all three tiers busy they are served 100 : 10 : 1, and nobody waits for more than N² + N = 110 services.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized

from postroom.domain.tiers import TIERS


class StarvationGuard:
    """Decides one service after another. Tiers are known by their rank, 0 being the most urgent.

    Its whole memory is `runs`, a count for each tier but the lowest.
    """

    def __init__(self, limit: int, runs: Sequence[int] = (0,) * (len(TIERS) - 1)) -> None:
        self._limit = limit
        self.runs = list(runs)

    def choose(self, lines: Sequence[Sized]) -> int | None:
        """The rank to serve, given what waits in each tier; None if nothing does."""
        for rank in range(len(self.runs) - 1, -1, -1):
            if self.runs[rank] >= self._limit:
                lower = _first_waiting(lines, rank + 1)
                if lower is not None:
                    return lower
        return _first_waiting(lines, 0)

    def served(self, rank: int) -> None:
        """Remember a service. A count stops at the limit: all beyond it mean the same."""
        for higher in range(rank):
            self.runs[higher] = 0
        if rank < len(self.runs) and self.runs[rank] < self._limit:
            self.runs[rank] += 1


def _first_waiting(lines: Sequence[Sized], start: int) -> int | None:
    for rank in range(start, len(lines)):
        if lines[rank]:
            return rank
    return None

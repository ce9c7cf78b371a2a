"""The starvation guard: strict tier order, with a bounded wait for every tier.

`runs[T]` counts the services of tier T since a tier below T was last served. When it has reached the limit N and a
lower tier waits, the next service goes to the highest waiting tier below T, by the same rule among those. So with
N = 10 and all three tiers busy they are served 100 : 10 : 1, and nobody waits for more than N² + N = 110 services.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from postroom.domain.tiers import TIERS, Tier


@dataclass(frozen=True, slots=True)
class Service:
    """Which tier is served next, and whether that overrides the strict order."""

    tier: Tier
    override: bool


class StarvationGuard:
    """Decides one service after another. Its whole memory is `runs`."""

    def __init__(self, limit: int, runs: Mapping[Tier, int] | None = None) -> None:
        self._limit = limit
        self.runs: dict[Tier, int] = {tier: (runs or {}).get(tier, 0) for tier in TIERS[:-1]}

    def choose(self, waiting: Collection[Tier]) -> Service | None:
        """The tier to serve, given the tiers that have something waiting; None if none has."""
        present = [tier for tier in TIERS if tier in waiting]
        if not present:
            return None
        for tier, run in reversed(self.runs.items()):
            lower = [other for other in present if TIERS.index(other) > TIERS.index(tier)]
            if run >= self._limit and lower:
                return Service(lower[0], override=lower[0] is not present[0])
        return Service(present[0], override=False)

    def served(self, tier: Tier) -> None:
        """Remember a service. A count stops at the limit, where all larger ones mean the same."""
        for higher in TIERS[: TIERS.index(tier)]:
            self.runs[higher] = 0
        if tier in self.runs:
            self.runs[tier] = min(self.runs[tier] + 1, self._limit)

"""Several rankings of the same things as one, by reciprocal rank. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TypeVar

T = TypeVar("T", bound=Hashable)

_DAMPING = 60
"""The customary value: the first places count more than later ones, but no single first place decides."""


def fused(*rankings: Sequence[T]) -> list[T]:
    """Everything that one of them has, once, the best first. Each place counts 1 / (60 + place); of equal sums, the
    one whose best place is better comes first, then the one that an earlier ranking has."""
    sums: dict[T, float] = {}
    best: dict[T, int] = {}
    for ranking in rankings:
        for place, each in enumerate(dict.fromkeys(ranking), 1):
            sums[each] = sums.get(each, 0.0) + 1 / (_DAMPING + place)
            best[each] = min(place, best.get(each, place))
    return sorted(sums, key=lambda each: (-sums[each], best[each]))

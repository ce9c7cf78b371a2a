"""From a margin to the probability that the guess is right, by how often guesses of such a margin were. Pure.

Isotonic regression over guesses that were made before their answer was learned. Where few are known, the probability is
drawn towards a half, so that nothing is sure without evidence.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_LEAST_OF_STEP = 50
"""Guesses that a step rests on; with fewer, a short run of luck would look like certainty."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """A rising staircase: from each margin on, the probability beside it."""

    margins: tuple[float, ...] = ()
    probabilities: tuple[float, ...] = ()

    def probability(self, margin: float) -> float:
        place = bisect_right(self.margins, margin)
        return self.probabilities[place - 1] if place else 0.0

    def to_json(self) -> list[list[float]]:
        return [list(step) for step in zip(self.margins, self.probabilities, strict=True)]

    @classmethod
    def from_json(cls, steps: Sequence[Sequence[float]]) -> Calibration:
        return cls(tuple(step[0] for step in steps), tuple(step[1] for step in steps))


@dataclass(slots=True)
class _Step:
    margin: float
    right: int
    count: int

    @property
    def rate(self) -> float:
        return (self.right + 0.5) / (self.count + 1)

    def join(self, other: _Step) -> None:
        self.right += other.right
        self.count += other.count


def calibrated(guesses: Iterable[tuple[float, bool]]) -> Calibration:
    """`guesses` are margins, and whether the guess was right."""
    steps: list[_Step] = []
    for step in _even_steps(sorted(guesses)):
        steps.append(step)
        while len(steps) > 1 and steps[-2].rate >= steps[-1].rate:
            last = steps.pop()
            steps[-1].join(last)
    return Calibration(tuple(step.margin for step in steps), tuple(step.rate for step in steps))


def _even_steps(guesses: Sequence[tuple[float, bool]]) -> Iterable[_Step]:
    for start in range(0, len(guesses), _LEAST_OF_STEP):
        some = guesses[start : start + _LEAST_OF_STEP]
        yield _Step(some[0][0], sum(right for _, right in some), len(some))

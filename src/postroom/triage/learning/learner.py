"""A linear model over hashed facts: softmax regression, learned one example at a time with steps that shrink for each
fact as it is seen. Pure; the same examples in the same order give the same weights."""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

_STEP = 0.5
_MOST_ANSWERS = 40
"""What an account's mail is answered with; rarer answers are not learned."""
_BIAS = 0
"""Stands in every message."""


@dataclass(frozen=True, slots=True)
class Guess:
    """What the model would answer. Without any example it has none."""

    answer: str
    margin: float
    """By how much it is ahead of the second; what `calibration.py` turns into a probability."""


@dataclass
class LinearModel:
    answers: list[str] = field(default_factory=list)
    _weights: dict[int, list[float]] = field(default_factory=dict)
    """By hashed fact, a weight for each answer."""
    _squares: dict[int, float] = field(default_factory=dict)
    """By hashed fact, the sum of its squared slopes so far."""

    def guess(self, hashes: Sequence[int]) -> Guess | None:
        if not self.answers:
            return None
        scores = self._scores(hashes)
        best = max(range(len(scores)), key=scores.__getitem__)
        others = [score for place, score in enumerate(scores) if place != best]
        return Guess(self.answers[best], scores[best] - max(others) if others else 0.0)

    def learn(self, hashes: Sequence[int], answer: str) -> None:
        place = self._place(answer)
        if place is None:
            return
        slopes = _softmax(self._scores(hashes))
        slopes[place] -= 1.0
        square = sum(slope * slope for slope in slopes)
        for each in (_BIAS, *hashes):
            total = self._squares.get(each, 0.0) + square
            self._squares[each] = total
            step = _STEP / math.sqrt(total + 1.0)
            weights = self._weights.setdefault(each, [])
            if len(weights) < len(slopes):
                weights.extend([0.0] * (len(slopes) - len(weights)))
            for number, slope in enumerate(slopes):
                weights[number] -= step * slope

    def known_share(self, hashes: Sequence[int]) -> float:
        """The share of these facts that occurred before."""
        return sum(each in self._squares for each in hashes) / len(hashes) if hashes else 0.0

    def reasons(self, hashes: Sequence[int], kinds: Sequence[str], answer: str) -> dict[str, float]:
        """How much each kind of fact speaks for the answer, beside the average of all answers."""
        place = self.answers.index(answer)
        found: dict[str, float] = {}
        for each, kind in zip(hashes, kinds, strict=True):
            weights = self._weights.get(each)
            if weights and place < len(weights):
                found[kind] = found.get(kind, 0.0) + weights[place] - sum(weights) / len(self.answers)
        return found

    def _scores(self, hashes: Sequence[int]) -> list[float]:
        scores = [0.0] * len(self.answers)
        known = self._weights
        for each in (_BIAS, *hashes):
            if (weights := known.get(each)) is not None:
                for number, weight in enumerate(weights):
                    scores[number] += weight
        return scores

    def _place(self, answer: str) -> int | None:
        if answer not in self.answers:
            if len(self.answers) >= _MOST_ANSWERS:
                return None
            self.answers.append(answer)
        return self.answers.index(answer)

    def to_bytes(self) -> bytes:
        kept = list(self._weights)
        width = len(self.answers)
        head = json.dumps({"answers": self.answers, "facts": len(kept)}).encode()
        numbers = array("f", [self._squares[each] for each in kept])
        for each in kept:
            weights = self._weights[each]
            numbers.extend(weights + [0.0] * (width - len(weights)))
        return len(head).to_bytes(4, "big") + head + array("q", kept).tobytes() + numbers.tobytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> LinearModel:
        size = int.from_bytes(data[:4], "big")
        head = json.loads(data[4 : 4 + size])
        count, width = head["facts"], len(head["answers"])
        place = 4 + size
        hashes = array("q")
        hashes.frombytes(data[place : place + 8 * count])
        numbers = array("f")
        numbers.frombytes(data[place + 8 * count :])
        model = cls(list(head["answers"]))
        model._squares = dict(zip(hashes, numbers[:count], strict=True))
        model._weights = {
            each: list(numbers[count + row * width : count + (row + 1) * width]) for row, each in enumerate(hashes)
        }
        return model


def _softmax(scores: Sequence[float]) -> list[float]:
    highest = max(scores)
    powers = [math.exp(score - highest) for score in scores]
    total = sum(powers)
    return [power / total for power in powers]

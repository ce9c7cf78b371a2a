"""What an account's local triage knows: a linear model over hashed facts, what its margins are worth, and how it came
to that from labels. Pure, so that every process that reads the same labels in the same order knows the same.

The model is softmax regression, learned one example at a time with steps that shrink for each fact as it is seen.
Isotonic regression, over guesses that were made before their answer was learned, turns a margin into the probability
that the guess is right. Where few are known, it is drawn towards a half, so that nothing is sure without evidence.
"""

from __future__ import annotations

import json
import math
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from postroom.triage.learning.features import Features, names_of

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
    """By how much it is ahead of the second; what `learner.py` turns into a probability."""


@dataclass
class LinearModel:
    answers: list[str] = field(default_factory=list)
    _weights: dict[int, list[float]] = field(default_factory=dict)
    """By hashed fact, a weight for each answer."""
    _squares: dict[int, float] = field(default_factory=dict)
    """By hashed fact, the sum of its squared slopes so far."""

    def guess(self, hashes: Sequence[int]) -> Guess | None:
        return self.guess_by(self.scores(hashes))

    def guess_by(self, scores: Sequence[float]) -> Guess | None:
        if not self.answers:
            return None
        best = max(range(len(scores)), key=scores.__getitem__)
        others = [score for place, score in enumerate(scores) if place != best]
        return Guess(self.answers[best], scores[best] - max(others) if others else 0.0)

    def learn(self, hashes: Sequence[int], answer: str, scores: Sequence[float] | None = None) -> None:
        """`scores` are those of these facts, where the caller has them."""
        place = self._place(answer)
        if place is None:
            return
        known = self.scores(hashes) if scores is None else scores
        slopes = _softmax([*known, *[0.0] * (len(self.answers) - len(known))])
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

    def scores(self, hashes: Sequence[int]) -> list[float]:
        known = filter(None, map(self._weights.get, (_BIAS, *hashes)))  # the first has a weight for every answer
        return [sum(weights) for weights in zip_longest(*known, fillvalue=0.0)]

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


OWNER_WEIGHT = 3
"""A label of the owner counts as so many of the model."""


@dataclass(frozen=True, slots=True)
class Label:
    seq: int
    facts: Sequence[int]
    answer: str
    by_owner: bool = False


@dataclass(frozen=True, slots=True)
class Opinion:
    answer: str
    confidence: float
    because: tuple[str, ...]
    """Kinds of facts that spoke for it most, never what they say."""


@dataclass
class Learned:
    model: LinearModel = field(default_factory=LinearModel)
    calibration: Calibration = field(default_factory=Calibration)
    seq: int = 0
    """Of the last label that is in it."""

    def opinion(self, features: Features) -> Opinion | None:
        guess = self.model.guess(features.hashes)
        if guess is None:
            return None
        confidence = self.calibration.probability(self._worth(features.hashes, guess.margin))
        because = names_of(self.model.reasons(features.hashes, features.kinds, guess.answer))
        return Opinion(guess.answer, confidence, tuple(because))

    def take(self, labels: Iterable[Label]) -> None:
        """Learn what came since."""
        for label in labels:
            self.take_one(label)

    def take_one(self, label: Label, scores: Sequence[float] | None = None) -> None:
        """`scores` are the model's for its facts, where the caller has them."""
        self.model.learn(label.facts, label.answer, scores)
        for _ in range(OWNER_WEIGHT - 1 if label.by_owner else 0):
            self.model.learn(label.facts, label.answer)
        self.seq = max(self.seq, label.seq)

    def _worth(self, hashes: Sequence[int], margin: float) -> float:
        """A margin counts less, the less of the message is known: what never occurred says nothing either way."""
        return margin * self.model.known_share(hashes) ** 2


def refitted(labels: Sequence[Label]) -> Learned:
    """The model of these labels, from nothing. Each is guessed before it is learned, and by these guesses margins are
    calibrated."""
    learned, guesses = Learned(), list[tuple[float, bool]]()
    for label in labels:
        scores = learned.model.scores(label.facts)
        guess = learned.model.guess_by(scores)
        if guess is not None:
            guesses.append((learned._worth(label.facts, guess.margin), guess.answer == label.answer))
        learned.take_one(label, scores)
    learned.calibration = calibrated(guesses)
    return learned


def is_due(labels: int, fitted: int) -> bool:
    """Whether so many labels call for a refit before the night, where the last was made with `fitted` of them. A refit
    looks at all of them, so that it comes the less often, the more there are."""
    return labels - fitted >= max(25, min(4_000, fitted // 5))

"""What an account's local triage knows at one moment: a model, what its margins are worth, and how it came to that from
labels. Pure, so that every process that reads the same labels in the same order knows the same."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from postroom.triage.learning.calibration import Calibration, calibrated
from postroom.triage.learning.features import Features, names_of
from postroom.triage.learning.learner import LinearModel

OWNER_WEIGHT = 3
"""A label of the owner counts as so many of the model."""


@dataclass(frozen=True, slots=True)
class Label:
    seq: int
    facts: tuple[int, ...]
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
            for _ in range(OWNER_WEIGHT if label.by_owner else 1):
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
        guess = learned.model.guess(label.facts)
        if guess is not None:
            guesses.append((learned._worth(label.facts, guess.margin), guess.answer == label.answer))
        learned.take([label])
    learned.calibration = calibrated(guesses)
    return learned


def is_due(labels: int, fitted: int) -> bool:
    """Whether so many labels call for a refit before the night, where the last was made with `fitted` of them."""
    return labels - fitted >= max(25, min(500, fitted // 10))

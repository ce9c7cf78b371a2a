"""Mail that was handed over to be stored, and the wait until it is."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass

from postroom.archive.model import Stored


@dataclass(frozen=True, slots=True)
class Submission:
    """Mail on its way to disk."""

    count: int
    parts: list[tuple[list[int], Future[list[Stored]]]]

    def result(self) -> list[Stored]:
        """Wait until all of it is on disk; the answers stand in the order of the mail."""
        answers = {
            number: stored
            for numbers, future in self.parts
            for number, stored in zip(numbers, future.result(), strict=True)
        }
        return [answers[number] for number in range(self.count)]

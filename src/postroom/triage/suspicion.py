"""Whether a message seems to talk to a model instead of to a person. Pure, and a guess."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Suspicion:
    """What makes a message suspicious, in words of ours; false where nothing does."""

    signs: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.signs)

    def __str__(self) -> str:
        return ", ".join(self.signs)


NOTHING_SUSPICIOUS = Suspicion()

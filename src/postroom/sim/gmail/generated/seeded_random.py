"""Numbers that look random and are a pure function of what they are for.

Python's own `random` promises the same stream only within a version; mailboxes must be the same bytes everywhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")
MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def mix(value: int) -> int:
    """A 64-bit finaliser (splitmix64): every bit of the input moves half the bits of the output."""
    value = (value + _GOLDEN) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def derive(*parts: int) -> int:
    """One number for a list of numbers; the order matters."""
    state = 0
    for part in parts:
        state = mix(state ^ (part & MASK))
    return state


class SeededRandom:
    """A stream of draws for one purpose."""

    __slots__ = ("_state",)

    def __init__(self, *parts: int) -> None:
        self._state = derive(*parts)

    def draw(self) -> int:
        self._state = (self._state + _GOLDEN) & MASK
        return mix(self._state)

    def below(self, limit: int) -> int:
        return (self.draw() * limit) >> 64

    def between(self, low: int, high: int) -> int:
        """Both ends included."""
        return low + self.below(high - low + 1)

    def chance(self, per_mille: int) -> bool:
        return self.below(1000) < per_mille

    def pick(self, options: Sequence[T]) -> T:
        return options[self.below(len(options))]

    def sample(self, options: Sequence[T], count: int) -> list[T]:
        """So many different options, in no order."""
        left = list(options)
        return [left.pop(self.below(len(left))) for _ in range(min(count, len(left)))]

    def data(self, length: int) -> bytes:
        return hashlib.shake_128(self.draw().to_bytes(8, "big")).digest(length)


def weighted(options: Sequence[tuple[T, int]]) -> tuple[T, ...]:
    """A table to pick from in which each option stands as often as it weighs."""
    return tuple(option for option, weight in options for _ in range(weight))

"""What every provider of a mailbox offers, in words that are no provider's."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """Mail received from `start` up to and without `end`, in seconds since 1970; without an end, all that comes
    after."""

    start: int
    end: int | None = None

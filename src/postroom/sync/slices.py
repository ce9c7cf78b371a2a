"""The mailbox cut into slices of time. Pure: knows nothing of Gmail, databases or clocks."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Granularity(StrEnum):
    DAY = "day"
    WEEK = "week"
    MONTH = "month"


@dataclass(frozen=True, slots=True, order=True)
class Slice:
    """Mail dated from `start` up to and without `end`, in seconds since 1970; without an end, all that comes after."""

    start: int
    end: int | None

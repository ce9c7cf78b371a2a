"""Whether local triage may decide for an action by itself: in shadow, earned, or lost. Pure.

Held-out comparisons alone move it. In shadow each is a sure guess that was made before the model's answer was learned;
once earned they are the sure decisions that still went to the model, and are never learned from.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum

_Z = 1.645
"""One-sided, 95 %."""
_MOST_WINDOW = 200
ALLOWED = 0.005
"""Share of decisions on which it may differ from the model; proof of more, by two differences at least, ends a
right."""
TO_EARN = 0.05
"""A right is earned when the true share is proven to lie below this: 52 comparisons without a difference do."""
TO_EARN_HIDING = 0.025
"""The same for an answer that hides mail: 106 comparisons."""


class RightState(StrEnum):
    SHADOW = "shadow"
    """It only compares itself with the model."""
    EARNED = "earned"
    LOST = "lost"
    """As in shadow, but it takes twice as much to earn it again."""


@dataclass(frozen=True, slots=True)
class Right:
    state: RightState = RightState.SHADOW
    recent: str = ""
    """The latest comparisons since it came into this state, oldest first: `=` agreed, `x` differed."""

    @property
    def may_decide(self) -> bool:
        return self.state is RightState.EARNED

    @property
    def compared(self) -> int:
        return len(self.recent)

    @property
    def differed(self) -> int:
        return self.recent.count("x")

    def after(self, agreed: bool, *, hides: bool) -> Right:
        """The right after one more held-out comparison; `hides` says whether the answer takes mail out of sight."""
        seen = replace(self, recent=(self.recent + ("=" if agreed else "x"))[-self._window :])
        match self.state:
            case RightState.EARNED:
                lost = seen.differed > 1 and lower_bound(seen.differed, seen.compared) > ALLOWED
                return Right(RightState.LOST) if lost else seen
            case RightState.SHADOW | RightState.LOST:
                once = TO_EARN_HIDING if hides else TO_EARN
                needed = once if self.state is RightState.SHADOW else once / 2
                earned = upper_bound(seen.differed, seen.compared) <= needed
                return Right(RightState.EARNED) if earned else seen

    @property
    def _window(self) -> int:
        return _MOST_WINDOW if self.state is RightState.EARNED else 5 * _MOST_WINDOW


def upper_bound(count: int, total: int) -> float:
    """The share may be as high as this (Wilson's interval)."""
    return _wilson(count, total, 1.0)


def lower_bound(count: int, total: int) -> float:
    return _wilson(count, total, -1.0)


def _wilson(count: int, total: int, sign: float) -> float:
    if total == 0:
        return 1.0 if sign > 0 else 0.0
    share, square = count / total, _Z * _Z
    middle = share + square / (2 * total)
    spread = _Z * math.sqrt(share * (1 - share) / total + square / (4 * total * total))
    return max(0.0, (middle + sign * spread) / (1 + square / total))

"""When a sync deserves a person's attention: too many bad messages, metadata running full, Gmail holding us back. Pure.

Each threshold is a condition of its own, so that a matter that gets worse is told at once, and neither more than once
an hour. Of two thresholds of the same thing only the graver one is in force.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from postroom.settings import SyncSettings

_FEWEST_BAD = 3
"""One or two bad messages are no rate, however few others there were."""
_PARTS = 100


class Level(StrEnum):
    WARNING = "warning"
    CRITICAL = "critical"


class Condition(StrEnum):
    BAD_RATE_HIGH = "bad_rate_high"
    BAD_RATE_CRITICAL = "bad_rate_critical"
    BAD_SPIKE = "bad_spike"
    METADATA_HIGH = "metadata_high"
    METADATA_CRITICAL = "metadata_critical"
    THROTTLED = "throttled"


@dataclass(frozen=True, slots=True)
class Alert:
    condition: Condition
    level: Level
    message: str


@dataclass(frozen=True, slots=True)
class Signs:
    """What is judged."""

    messages: int = 0
    """How many were worked on last, as many as the window holds."""
    bad: int = 0
    """How many of those went bad."""
    bad_in_an_hour: int = 0
    metadata_bytes: int = 0
    cuts: int = 0
    """How often Gmail made us slow down lately."""


def judge(signs: Signs, settings: SyncSettings) -> list[Alert]:
    """Every condition that is in force."""
    return [alert for rule in (_bad_rate, _bad_spike, _metadata, _throttling) for alert in rule(signs, settings)]


def _bad_rate(signs: Signs, settings: SyncSettings) -> Iterator[Alert]:
    if signs.bad < _FEWEST_BAD or not signs.messages:
        return
    rate = signs.bad / signs.messages
    text = (
        f"{signs.bad:,} of the last {signs.messages:,} messages ({rate:.2%}) could not be stored. "
        "`postroom sync bad list` names them with their reasons; they are tried again by themselves."
    )
    if rate >= settings.bad_rate_critical:
        yield Alert(Condition.BAD_RATE_CRITICAL, Level.CRITICAL, text)
    elif rate >= settings.bad_rate_warn:
        yield Alert(Condition.BAD_RATE_HIGH, Level.WARNING, text)


def _bad_spike(signs: Signs, settings: SyncSettings) -> Iterator[Alert]:
    if signs.bad_in_an_hour > settings.bad_per_hour_critical:
        text = f"{signs.bad_in_an_hour:,} messages went bad within an hour. `postroom sync bad list` tells why."
        yield Alert(Condition.BAD_SPIKE, Level.CRITICAL, text)


def _metadata(signs: Signs, settings: SyncSettings) -> Iterator[Alert]:
    share = signs.metadata_bytes / settings.metadata_budget_bytes
    text = (
        f"What is kept about this account's sync takes {signs.metadata_bytes:,} bytes, {share:.0%} of its budget. At "
        "100 % the sync stops: see `postroom sync bad list`, or raise sync.metadata_budget_bytes."
    )
    if share >= settings.metadata_critical:
        yield Alert(Condition.METADATA_CRITICAL, Level.CRITICAL, text)
    elif share >= settings.metadata_warn:
        yield Alert(Condition.METADATA_HIGH, Level.WARNING, text)


def _throttling(signs: Signs, settings: SyncSettings) -> Iterator[Alert]:
    if signs.cuts >= settings.throttle_cuts_warn:
        text = (
            f"Gmail made the sync slow down {signs.cuts} times in {settings.throttle_window_s / 60:g} minutes. Other "
            "programs may be using the same quota; the sync goes on at the pace that is left."
        )
        yield Alert(Condition.THROTTLED, Level.WARNING, text)


@dataclass(frozen=True, slots=True)
class OutcomeWindow:
    """How the last messages went. Old ones leave in portions, so the window holds its size and a little more."""

    size: int
    parts: tuple[tuple[int, int], ...] = ()
    """Messages and how many of them are bad, oldest first."""

    @property
    def messages(self) -> int:
        return sum(messages for messages, _ in self.parts)

    @property
    def bad(self) -> int:
        return sum(bad for _, bad in self.parts)

    def with_more(self, messages: int, bad: int) -> OutcomeWindow:
        parts = deque(self.parts)
        if parts and parts[-1][0] + messages <= max(self.size // _PARTS, 1):
            last = parts.pop()
            messages, bad = last[0] + messages, last[1] + bad
        parts.append((messages, bad))
        total = sum(each for each, _ in parts)
        while total - parts[0][0] >= self.size:
            total -= parts.popleft()[0]
        return OutcomeWindow(self.size, tuple(parts))


class RecentCuts:
    """How often the pace was cut within the last stretch of time, made of a total that only grows."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._totals: deque[tuple[float, int]] = deque()

    def see(self, total: int, now: float) -> int:
        """The total as it stands now, in; how much of it is recent, out."""
        self._totals.append((now, total))
        while len(self._totals) > 1 and self._totals[1][0] <= now - self._window_s:
            self._totals.popleft()
        return total - self._totals[0][1]

"""How a sync is doing: counters that the engine updates, and the snapshot of them that a person is shown."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from postroom.domain.clock import Clock
from postroom.gmail.limiter import Limiter
from postroom.gmail.quota import QuotaProfile

_RATE_OVER_S = 60.0
Note = Callable[[int, int], None]
"""Is told of messages that were worked on, and how many of them are bad."""


class Phase(StrEnum):
    PLANNING = "planning"
    WALKING = "walking"
    """Listing slices and fetching what they hold."""
    FOLLOWING = "following"
    """Everything is there; only changes are read."""
    WAITING = "waiting"
    """Gmail cannot be reached, or asked for a pause."""


@dataclass(frozen=True, slots=True)
class SyncProgress:
    """One moment of a sync."""

    phase: Phase
    slices_done: int
    slices_total: int
    watermark: int
    """Seconds since 1970: all older mail is stored, listed as bad, or gone at the source."""
    stored: int
    known: int
    """Listed, and in the archive already."""
    gone: int
    bad: int
    messages_total: int
    """Of the mailbox, as Gmail counted them at the start."""
    messages_per_second: float
    units_per_minute: int
    """Quota units that this process used in the last minute."""
    allowance: int | None
    """Units a minute that the account may use; None where nobody knows."""
    throttles: int
    """How often the pace was cut."""
    splits: int
    retries: int
    stalls: int
    workers: int
    rps: float
    seconds_left: float | None
    """None while there is nothing to judge by."""

    @property
    def settled(self) -> int:
        """Messages of which it is known what became of them."""
        return self.stored + self.known + self.gone + self.bad


class ProgressCounters:
    """What the parts of the engine count as they go. Only ever read through `snapshot`."""

    def __init__(
        self,
        clock: Clock,
        limiter: Limiter,
        profile: QuotaProfile | None,
        note: Note = lambda messages, bad: None,
    ) -> None:
        self.phase = Phase.PLANNING
        self.slices_done = self.slices_total = self.watermark = self.messages_total = 0
        self.stored = self.known = self.gone = self.bad = 0
        self.splits = self.retries = self.stalls = 0
        self.earlier = 0
        """Messages whose fate was settled before this run."""
        self._note = note
        self._clock = clock
        self._limiter = limiter
        self._allowance = None if profile is None else profile.units_per_minute
        self._started = clock.monotonic()
        self._recent: deque[tuple[float, int]] = deque()

    def add(self, outcomes: Mapping[str, int]) -> None:
        """So many more messages were stored, known, gone or bad."""
        self.stored += outcomes.get("stored", 0)
        self.known += outcomes.get("known", 0)
        self.gone += outcomes.get("gone", 0)
        self.bad += outcomes.get("bad", 0)
        self._note(sum(outcomes.values()) - outcomes.get("known", 0), outcomes.get("bad", 0))

    def fetched(self, messages: int) -> None:
        """So many messages came through just now; what the rate is made of."""
        now = self._clock.monotonic()
        self._recent.append((now, messages))
        self._forget(now)

    def snapshot(self, *, is_waiting: bool = False) -> SyncProgress:
        now = self._clock.monotonic()
        gate = self._limiter.gate
        rate = self._rate(now)
        return SyncProgress(
            phase=Phase.WAITING if is_waiting else self.phase,
            slices_done=self.slices_done,
            slices_total=self.slices_total,
            watermark=self.watermark,
            stored=self.stored,
            known=self.known,
            gone=self.gone,
            bad=self.bad,
            messages_total=self.messages_total,
            messages_per_second=rate,
            units_per_minute=gate.used(now),
            allowance=self._allowance,
            throttles=gate.tuner.cuts,
            splits=self.splits,
            retries=self.retries,
            stalls=self.stalls,
            workers=gate.tuner.workers,
            rps=gate.tuner.rps,
            seconds_left=self._seconds_left(rate),
        )

    def _rate(self, now: float) -> float:
        self._forget(now)
        over = min(_RATE_OVER_S, now - self._started)
        return sum(messages for _, messages in self._recent) / over if over > 0 else 0.0

    def _forget(self, now: float) -> None:
        while self._recent and self._recent[0][0] < now - _RATE_OVER_S:
            self._recent.popleft()

    def _seconds_left(self, rate: float) -> float | None:
        if self.phase is Phase.FOLLOWING:
            return 0.0
        left = self.messages_total - self.earlier - self.stored - self.known - self.gone - self.bad
        return max(left, 0) / rate if rate > 0 else None

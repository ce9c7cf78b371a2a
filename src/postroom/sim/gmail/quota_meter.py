"""Charges each call in quota units over a sliding minute, and counts what was called, used and refused."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from datetime import timedelta

from postroom.domain.clock import Clock
from postroom.mailboxes.gmail.quota import MINUTE_S, GmailMethod, QuotaProfile
from postroom.sim.gmail.api_errors import over_quota, too_many_in_flight


@dataclass(frozen=True)
class QuotaLimits:
    """What an account may use. The default is no limit at all, for measuring clients and not the service."""

    profile: QuotaProfile | None = None
    requests_in_flight: int | None = None
    batch_parts_at_once: int | None = None
    """The parts of a batch run together; those beyond this many are refused one by one."""
    service_time_s: float = 0.0
    """How long every request takes. Without it answers are instant, and requests hardly ever meet in flight."""


@dataclass
class QuotaTally:
    """What the stand-in saw since it started, or since the counters were set back."""

    calls: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    requests: int = 0
    batches: int = 0
    units: int = 0
    throttled: int = 0
    max_in_flight: int = 0
    most_units_in_a_minute: int = 0


class QuotaMeter:
    def __init__(self, limits: QuotaLimits, clock: Clock) -> None:
        self.limits = limits
        self.tally = QuotaTally()
        self._clock = clock
        self._spent: deque[tuple[float, int]] = deque()
        self._in_window = 0
        self._in_flight = 0

    @property
    def in_flight(self) -> int:
        return self._in_flight

    def enter(self) -> None:
        """A request begins. Every enter is followed by one leave, also where this refuses."""
        self._in_flight += 1
        self.tally.requests += 1
        self.tally.max_in_flight = max(self.tally.max_in_flight, self._in_flight)

    def leave(self) -> None:
        self._in_flight -= 1

    def check_in_flight(self) -> None:
        if self.limits.requests_in_flight is not None and self._in_flight > self.limits.requests_in_flight:
            self.tally.throttled += 1
            raise too_many_in_flight()

    def check_batch_part(self, number: int) -> None:
        if self.limits.batch_parts_at_once is not None and number >= self.limits.batch_parts_at_once:
            self.tally.throttled += 1
            raise too_many_in_flight()

    def charge(self, method: GmailMethod) -> None:
        """Take the units of one call, or refuse it; a refused call takes none."""
        profile = self.limits.profile
        if profile is None:
            return
        now, cost = self._clock.monotonic(), profile.cost(method)
        while self._spent and self._spent[0][0] <= now - MINUTE_S:
            self._in_window -= self._spent.popleft()[1]
        if self._in_window + cost > profile.units_per_minute:
            self.tally.throttled += 1
            raise over_quota(self._time_with_room_for(cost, profile.units_per_minute, now))
        self._spent.append((now, cost))
        self._in_window += cost
        self.tally.units += cost
        self.tally.most_units_in_a_minute = max(self.tally.most_units_in_a_minute, self._in_window)

    def _time_with_room_for(self, cost: int, allowed: int, now: float) -> str:
        free, wait = allowed - self._in_window, 0.0
        for spent_at, units in self._spent:
            if free >= cost:
                break
            free, wait = free + units, spent_at + MINUTE_S - now
        return (self._clock.now() + timedelta(seconds=wait)).isoformat(timespec="milliseconds").replace("+00:00", "Z")

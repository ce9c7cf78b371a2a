"""A service whose limit nobody was told, and a client that is only paced by the tuner; all in simulated time."""

from __future__ import annotations

import heapq
import random
from collections import deque
from dataclasses import dataclass, field

from postroom.domain.clock import ManualClock
from postroom.gmail.tuner import Tuner, TunerLimits

IN_FLIGHT = 8


@dataclass
class UnknownService:
    """Bears `limit` calls a second, counted over `window_s`; says when to come back only if `tells_when`."""

    limit: float
    window_s: float
    tells_when: bool = False
    _taken: deque[float] = field(default_factory=deque)

    @property
    def real_limit(self) -> float:
        """Calls are whole, so a little less than `limit` fits where the window is short."""
        return int(self.limit * self.window_s) / self.window_s

    def refuses(self, now: float) -> bool:
        while self._taken and self._taken[0] <= now - self.window_s:
            self._taken.popleft()
        if len(self._taken) + 1 > self.limit * self.window_s:
            return True
        self._taken.append(now)
        return False

    def retry_after(self, now: float) -> float | None:
        return max(self._taken[0] + self.window_s - now, 0.0) if self.tells_when and self._taken else None


@dataclass
class Run:
    answered: list[float]
    throttled: list[float]
    sent: list[float]

    def mean_rate(self, start: float, end: float) -> float:
        return sum(start <= at < end for at in self.answered) / (end - start)

    @property
    def throttled_share(self) -> float:
        return len(self.throttled) / len(self.sent)


def run(service: UnknownService, minutes: float, seed: int, limits: TunerLimits | None = None) -> Run:
    """Send as fast as the tuner allows, with at most so many calls in flight."""
    clock, dice = ManualClock(), random.Random(seed)
    tuner = Tuner(limits or TunerLimits(), random.Random(seed + 1), clock.monotonic())
    done = Run([], [], [])
    in_flight: list[tuple[float, float, bool, float | None]] = []
    next_send = 0.0
    while clock.monotonic() < minutes * 60:
        now = clock.monotonic()
        while in_flight and in_flight[0][0] <= now:
            ended, sent_at, refused, retry_after = heapq.heappop(in_flight)
            if refused:
                tuner.throttled(sent_at, ended, retry_after)
            else:
                tuner.succeeded(sent_at, ended)
        may_send = max(next_send, tuner.hold_until)
        if len(in_flight) < min(IN_FLIGHT, tuner.workers) and may_send <= now:
            refused = service.refuses(now)
            done.sent.append(now)
            (done.throttled if refused else done.answered).append(now)
            latency = dice.uniform(0.02, 0.06) if refused else dice.uniform(0.1, 0.35)
            heapq.heappush(in_flight, (now + latency, now, refused, service.retry_after(now) if refused else None))
            next_send = max(next_send, now - 0.5 / tuner.rps) + 1 / tuner.rps
        else:
            events = [in_flight[0][0]] if in_flight else []
            if len(in_flight) < min(IN_FLIGHT, tuner.workers):
                events.append(may_send)
            clock.advance(max(min(events) - now, 1e-6))
    return done

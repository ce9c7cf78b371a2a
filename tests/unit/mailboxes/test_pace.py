"""The tuner alone, in simulated time: a service whose limit is unknown, and a client that only the tuner paces."""

from __future__ import annotations

import heapq
import random
from collections import deque
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.domain.clock import ManualClock
from postroom.mailboxes.pace import Tuner, TunerLimits

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


MINUTES = 30.0


def new_tuner(**limits: float) -> Tuner:
    return Tuner(TunerLimits(**limits), random.Random(1), 0.0)  # type: ignore[arg-type]


def healthy_windows(tuner: Tuner, count: int, start: float = 0.0, latency: float = 0.1) -> float:
    """So many windows in which the whole rate is used."""
    now = start
    for _ in range(count):
        end = now + 5.0
        while now < end:
            now += 1 / tuner.rps
            tuner.succeeded(now - latency, now)
    return now


@pytest.mark.req("SY-4")
@pytest.mark.parametrize("tells_when", [True, False])
@pytest.mark.parametrize("window_s", [1.0, 10.0, 60.0])
@pytest.mark.parametrize("limit", [3, 7, 12, 15])
def test_the_rate_converges_to_a_limit_that_nobody_told(limit: float, window_s: float, tells_when: bool) -> None:
    for seed in (1, 2):
        done = run(UnknownService(limit, window_s, tells_when), MINUTES, seed)
        assert done.mean_rate((MINUTES - 10) * 60, MINUTES * 60) == pytest.approx(limit, rel=0.10)
        assert done.throttled_share < 0.01


@pytest.mark.req("SY-4")
@given(limit=st.floats(2.0, 15.9), window_s=st.sampled_from([5.0, 20.0, 60.0]), seed=st.integers(0, 10_000))
@settings(max_examples=12, deadline=None, derandomize=True)
def test_the_rate_converges_to_any_limit(limit: float, window_s: float, seed: int) -> None:
    service = UnknownService(limit, window_s)
    done = run(service, MINUTES, seed)
    assert done.mean_rate((MINUTES - 10) * 60, MINUTES * 60) == pytest.approx(service.real_limit, rel=0.10)
    assert done.throttled_share < 0.01


@pytest.mark.req("SY-4")
def test_a_healthy_window_adds_a_worker_and_half_a_request_a_second() -> None:
    tuner = new_tuner()
    healthy_windows(tuner, 3)
    assert (tuner.workers, tuner.rps) == (11, 5.5)


def test_a_rate_that_is_not_used_does_not_grow() -> None:
    tuner = new_tuner()
    for number in range(20):
        tuner.succeeded(number * 5.0, number * 5.0 + 0.1)
    assert tuner.rps == 4.0


@pytest.mark.req("SY-4")
def test_a_refusal_for_rate_halves_both() -> None:
    tuner = new_tuner()
    tuner.throttled(1.0, 1.1)
    assert (tuner.workers, tuner.rps) == (4, 2.0)


def test_refusals_of_calls_that_were_under_way_cut_only_once() -> None:
    tuner = new_tuner()
    for number in range(8):
        tuner.throttled(1.0 + number / 100, 2.0)
    assert tuner.cuts == 1
    tuner.throttled(2.5, 2.6)
    assert tuner.cuts == 2


@pytest.mark.req("SY-4")
def test_slow_answers_halve_the_rate() -> None:
    tuner = new_tuner()
    healthy_windows(tuner, 1, latency=2.5)
    assert tuner.rps == 2.0
    assert tuner.hold_until <= 10.0


@pytest.mark.req("SY-4")
def test_nothing_is_sent_before_the_time_that_gmail_gave() -> None:
    tuner = new_tuner()
    tuner.throttled(1.0, 1.1, retry_after_s=90.0)
    tuner.throttled(1.0, 1.2)
    assert tuner.hold_until == pytest.approx(91.1)


@pytest.mark.req("SY-4")
def test_without_a_time_the_pause_grows_and_is_never_twice_the_same() -> None:
    pauses = []
    tuner = new_tuner()
    now = 1.0
    for _ in range(5):
        tuner.throttled(now, now)
        pauses.append(tuner.hold_until - now)
        now = tuner.hold_until + 0.1
    assert all(2.0**number <= pause <= 2.0 ** (number + 1) for number, pause in enumerate(pauses))
    assert len({round(pause / 2**number, 6) for number, pause in enumerate(pauses)}) == 5


@pytest.mark.req("SY-4")
def test_after_a_cut_the_last_good_rate_is_approached_and_not_passed() -> None:
    tuner = new_tuner()
    now = healthy_windows(tuner, 16)
    bad = tuner.rps
    tuner.throttled(now, now)
    healthy_windows(tuner, 25, start=tuner.hold_until)
    assert 0.8 * bad <= tuner.rps < bad


def test_a_limit_that_rises_is_found_again() -> None:
    tuner = new_tuner()
    now = healthy_windows(tuner, 8)
    tuner.throttled(now, now)
    cut_at = tuner.rps * 2
    healthy_windows(tuner, 200, start=tuner.hold_until)
    assert tuner.rps > 1.5 * cut_at


def test_errors_that_are_not_about_rate_neither_slow_down_nor_speed_up() -> None:
    tuner = new_tuner()
    for number in range(60):
        tuner.failed(number / 3, number / 3 + 0.1)
        tuner.succeeded(number / 3, number / 3 + 0.1)
    assert (tuner.rps, tuner.cuts) == (4.0, 0)


@given(st.lists(st.tuples(st.sampled_from(["ok", "throttled", "failed"]), st.floats(0.001, 5)), max_size=200))
@settings(max_examples=50, deadline=None, derandomize=True)
def test_the_rate_stays_within_its_bounds_whatever_happens(events: list[tuple[str, float]]) -> None:
    tuner, now = new_tuner(), 0.0
    for kind, step in events:
        sent_at, now = now, now + step
        getattr(tuner, {"ok": "succeeded"}.get(kind, kind))(sent_at, now)
        assert tuner.limits.min_rps <= tuner.rps <= tuner.limits.max_rps
        assert 1 <= tuner.workers <= tuner.limits.max_workers

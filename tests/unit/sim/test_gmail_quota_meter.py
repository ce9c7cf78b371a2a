"""Quota units over a sliding minute."""

from __future__ import annotations

import re
from datetime import datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.domain.clock import ManualClock
from postroom.mailboxes.gmail.methods import PROFILES, GmailMethod, ProfileName
from postroom.sim.gmail.api_errors import ApiError
from postroom.sim.gmail.gateway import QuotaLimits, QuotaMeter


def meter(profile: ProfileName, clock: ManualClock) -> QuotaMeter:
    return QuotaMeter(QuotaLimits(PROFILES[profile]), clock)


def charged(meter: QuotaMeter, method: GmailMethod, times: int) -> int:
    """How many of so many calls pass."""
    refused = 0
    for _ in range(times):
        try:
            meter.charge(method)
        except ApiError:
            refused += 1
    return times - refused


@pytest.mark.parametrize(("profile", "gets"), [(ProfileName.LEGACY, 3000), (ProfileName.MAY_2026, 300)])
def test_a_minute_holds_as_many_gets_as_the_profile_pays_for(profile: ProfileName, gets: int) -> None:
    clock = ManualClock()
    counting = meter(profile, clock)
    assert charged(counting, GmailMethod.MESSAGES_GET, gets + 5) == gets
    assert counting.tally.throttled == 5
    clock.advance(59.9)
    assert charged(counting, GmailMethod.MESSAGES_GET, 1) == 0
    clock.advance(0.2)
    assert charged(counting, GmailMethod.MESSAGES_GET, gets) == gets


def test_a_refusal_says_when_there_is_room_again() -> None:
    clock = ManualClock()
    counting = meter(ProfileName.MAY_2026, clock)
    charged(counting, GmailMethod.MESSAGES_GET, 150)
    clock.advance(20)
    charged(counting, GmailMethod.MESSAGES_GET, 150)
    with pytest.raises(ApiError, match="Retry after") as refused:
        counting.charge(GmailMethod.MESSAGES_GET)
    assert (refused.value.code, refused.value.reason) == (429, "userRateLimitExceeded")
    told = re.search(r"Retry after (\S+)", refused.value.message)
    assert told
    wait = (datetime.fromisoformat(told[1]) - clock.now()).total_seconds()
    assert wait == pytest.approx(40)
    clock.advance(wait)
    assert charged(counting, GmailMethod.MESSAGES_GET, 1) == 1


def test_a_refused_call_takes_no_units() -> None:
    clock = ManualClock()
    counting = meter(ProfileName.MAY_2026, clock)
    charged(counting, GmailMethod.MESSAGES_SEND, 60)
    assert counting.tally.units == 6000
    assert charged(counting, GmailMethod.MESSAGES_SEND, 10) == 0
    assert counting.tally.units == 6000


@settings(deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.floats(0, 30), st.sampled_from(list(GmailMethod))), max_size=200))
def test_no_minute_ever_holds_more_than_the_allowance(steps: list[tuple[float, GmailMethod]]) -> None:
    clock = ManualClock()
    profile = PROFILES[ProfileName.MAY_2026]
    counting = QuotaMeter(QuotaLimits(profile), clock)
    spent: list[tuple[float, int]] = []
    for wait, method in steps:
        clock.advance(wait)
        for _ in range(20):
            if charged(counting, method, 1):
                spent.append((clock.monotonic(), profile.cost(method)))
        window = sum(units for when, units in spent if when > clock.monotonic() - 60)
        assert window <= profile.units_per_minute

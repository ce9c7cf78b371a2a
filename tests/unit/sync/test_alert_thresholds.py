"""When a sync deserves attention: the thresholds, each from both sides."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.settings import SyncSettings
from postroom.sync.alerts import AlertCondition, AlertLevel, OutcomeWindow, RecentCuts, SyncSigns, alerts_in_force

pytestmark = pytest.mark.req("SY-12")

SETTINGS = SyncSettings()


def conditions(signs: SyncSigns) -> list[AlertCondition]:
    return [alert.condition for alert in alerts_in_force(signs, SETTINGS)]


@pytest.mark.parametrize(
    ("signs", "expected"),
    [
        (SyncSigns(10_000, 19), []),
        (SyncSigns(10_000, 20), [AlertCondition.BAD_RATE_HIGH]),
        (SyncSigns(10_000, 99), [AlertCondition.BAD_RATE_HIGH]),
        (SyncSigns(10_000, 100), [AlertCondition.BAD_RATE_CRITICAL]),
        (SyncSigns(bad_in_an_hour=200), []),
        (SyncSigns(bad_in_an_hour=201), [AlertCondition.BAD_SPIKE]),
        (SyncSigns(metadata_bytes=(1 << 19) - 1), []),
        (SyncSigns(metadata_bytes=1 << 19), [AlertCondition.METADATA_HIGH]),
        (SyncSigns(metadata_bytes=838_860), [AlertCondition.METADATA_HIGH]),
        (SyncSigns(metadata_bytes=838_861), [AlertCondition.METADATA_CRITICAL]),
        (SyncSigns(cuts=9), []),
        (SyncSigns(cuts=10), [AlertCondition.THROTTLED]),
    ],
)
def test_each_threshold_is_in_force_from_its_value_on(signs: SyncSigns, expected: list[AlertCondition]) -> None:
    assert conditions(signs) == expected


def test_thresholds_come_from_the_settings() -> None:
    settings = SyncSettings(bad_rate_warn=0.5, bad_rate_critical=0.9, metadata_budget_bytes=2_048, throttle_cuts_warn=1)
    signs = SyncSigns(messages=100, bad=50, metadata_bytes=1_024, cuts=1)
    found = {alert.condition for alert in alerts_in_force(signs, settings)}
    assert found == {AlertCondition.BAD_RATE_HIGH, AlertCondition.METADATA_HIGH, AlertCondition.THROTTLED}


def test_two_bad_messages_are_no_rate_and_three_in_a_small_mailbox_are() -> None:
    assert conditions(SyncSigns(messages=10, bad=2)) == []
    assert conditions(SyncSigns(messages=300, bad=3)) == [AlertCondition.BAD_RATE_CRITICAL]


def test_an_alert_says_what_is_wrong_and_what_to_do() -> None:
    [alert] = alerts_in_force(SyncSigns(10_000, 25), SETTINGS)
    assert alert.level is AlertLevel.WARNING
    assert "25 of the last 10,000 messages (0.25%)" in alert.message
    assert "postroom sync bad list" in alert.message


@given(st.lists(st.tuples(st.integers(1, 700), st.integers(0, 3)), max_size=60))
def test_the_window_holds_the_last_messages_and_hardly_more(outcomes: list[tuple[int, int]]) -> None:
    window = OutcomeWindow(1_000)
    for messages, bad in outcomes:
        window = window.with_more(messages, min(bad, messages))
    total = sum(messages for messages, _ in outcomes)
    assert min(total, 1_000) <= window.messages <= 1_000 + 700
    assert window.bad <= sum(bad for _, bad in outcomes)
    assert len(window.parts) <= 210


def test_many_small_outcomes_take_little_room() -> None:
    """A sync that follows changes brings messages one by one; the window must not keep ten thousand entries."""
    window = OutcomeWindow(10_000)
    for number in range(12_000):
        window = window.with_more(1, number == 0)
    assert len(window.parts) <= 110
    assert window.bad == 0, "the first has left the window"


def test_only_recent_cuts_count() -> None:
    cuts = RecentCuts(600)
    assert cuts.see(5, 0) == 0, "what was before we looked is not ours"
    assert cuts.see(12, 300) == 7
    assert cuts.see(12, 601) == 7
    assert cuts.see(13, 901) == 1

"""Lengths of time: one meaning in rules, snoozes and settings."""

from __future__ import annotations

from datetime import timedelta

import pytest

from postroom.cli.terminal import parse_length
from postroom.domain.clock import as_amount, parse_duration
from postroom.queue.schedules import Every, parse_cadence
from postroom.triage.rules.conditions import OlderThan, parse_condition
from postroom.triage.rules.rule import parse_actions
from postroom.triage.rules.wording import in_words


@pytest.mark.req("JB-9", "JB-13")
def test_30m_is_thirty_minutes_everywhere_and_months_are_mo() -> None:
    assert parse_duration("30m") == timedelta(minutes=30)
    assert parse_condition({"older_than": "30m"}) == OlderThan(timedelta(minutes=30))
    assert parse_condition({"older_than": "6mo"}) == OlderThan(timedelta(days=180))
    [snooze] = parse_actions(["snooze=30m"])
    assert snooze.parameters_json() == {"amount": 30, "units": "minutes"}
    assert parse_length("for", "30m") == {"amount": 30, "units": "minutes"}
    assert parse_length("for", "2 months") == {"amount": 60, "units": "days"}
    assert parse_cadence("every 30m") == Every(timedelta(minutes=30))
    assert in_words({"older_than": "1mo", "younger_than": "30M"}) == "older than 1 month, and younger than 30 minutes"


@pytest.mark.parametrize("text", ["", "m", "1", "1 x", "-1m", "1.5h", "1mm"])
def test_what_is_no_length_is_none(text: str) -> None:
    assert parse_duration(text) is None
    assert as_amount(text) is None

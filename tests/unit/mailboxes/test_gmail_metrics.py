"""The client's metrics: what they count, and that they name nobody."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from postroom.mailboxes.errors import (
    CallRefused,
    Gone,
    HistoryExpired,
    LoginNeeded,
    MailboxThrottled,
    MailboxUnavailable,
    MailboxUnreachable,
    NotGmail,
    PermissionMissing,
)
from postroom.mailboxes.gmail import transport
from postroom.mailboxes.ports import PriorityLane

ERRORS = {
    "throttled": MailboxThrottled(),
    "unreachable": MailboxUnreachable(),
    "unavailable": MailboxUnavailable(),
    "login_needed": LoginNeeded(),
    "not_gmail": NotGmail(),
    "refused": CallRefused("no", status=400, reason="x"),
    "not_allowed": PermissionMissing("no", reason="x"),
    "history_expired": HistoryExpired("history_id", "old"),
    "gone": Gone("id", "gone"),
    "ok": None,
}


def test_every_error_has_an_outcome_of_its_own() -> None:
    assert [transport.outcome_of(error) for error in ERRORS.values()] == list(ERRORS)


@pytest.mark.req("SY-14")
def test_attributes_are_methods_outcomes_and_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = InMemoryMetricReader()
    meter = MeterProvider(metric_readers=[reader]).get_meter("test")
    monkeypatch.setattr(transport, "_calls", meter.create_counter("calls"))
    monkeypatch.setattr(transport, "_latency", meter.create_histogram("latency"))
    monkeypatch.setattr(transport, "_waited", meter.create_histogram("waited"))
    transport.record_call("messages.get", PriorityLane.LIVE, ERRORS["gone"], 0.1)
    transport.record_wait(PriorityLane.LIVE, 5, 0.0)
    found: Any = reader.get_metrics_data()
    metrics = found.resource_metrics[0].scope_metrics[0].metrics
    seen = {metric.name: dict(metric.data.data_points[0].attributes) for metric in metrics}
    assert seen == {
        "calls": {"method": "messages.get", "outcome": "gone"},
        "latency": {"method": "messages.get"},
        "waited": {"lane": "live"},
    }

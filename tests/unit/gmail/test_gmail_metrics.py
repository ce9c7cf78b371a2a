"""The client's metrics: what they count, and that they name nobody."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from postroom.gmail import instruments
from postroom.gmail.errors import (
    Gone,
    HistoryExpired,
    LoginNeeded,
    NotGmail,
    PermissionMissing,
    Refused,
    Throttled,
    Unavailable,
    Unreachable,
)
from postroom.gmail.ports import Lane

ERRORS = {
    "throttled": Throttled(),
    "unreachable": Unreachable(),
    "unavailable": Unavailable(),
    "login_needed": LoginNeeded(),
    "not_gmail": NotGmail(),
    "refused": Refused("no", status=400, reason="x"),
    "not_allowed": PermissionMissing("no", reason="x"),
    "history_expired": HistoryExpired("history_id", "old"),
    "gone": Gone("id", "gone"),
    "ok": None,
}


def test_every_error_has_an_outcome_of_its_own() -> None:
    assert [instruments.outcome_of(error) for error in ERRORS.values()] == list(ERRORS)


@pytest.mark.req("SY-14")
def test_attributes_are_methods_outcomes_and_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = InMemoryMetricReader()
    meter = MeterProvider(metric_readers=[reader]).get_meter("test")
    monkeypatch.setattr(instruments, "_calls", meter.create_counter("calls"))
    monkeypatch.setattr(instruments, "_latency", meter.create_histogram("latency"))
    monkeypatch.setattr(instruments, "_waited", meter.create_histogram("waited"))
    instruments.record_call("messages.get", ERRORS["gone"], 0.1)
    instruments.record_wait(Lane.LIVE, 5, 0.0)
    found: Any = reader.get_metrics_data()
    metrics = found.resource_metrics[0].scope_metrics[0].metrics
    seen = {metric.name: dict(metric.data.data_points[0].attributes) for metric in metrics}
    assert seen == {
        "calls": {"method": "messages.get", "outcome": "gone"},
        "latency": {"method": "messages.get"},
        "waited": {"lane": "live"},
    }

"""The connector's metrics: named and attributed as in spec/2, and telling nobody's mail."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from postroom.connectors import metrics as instruments
from postroom.connectors.guidance import CacheState
from postroom.connectors.metrics import Fate, PassName
from postroom.connectors.priority import TierAssignment
from postroom.domain.terms import AssignmentRule, Tier

ACCOUNT = "0199a1c2-7e5b-7abc-8def-0123456789ab"

ALLOWED: dict[str, set[str]] = {
    "provider": {"gmail"},
    "endpoint_identity": {ACCOUNT, "unknown"},
    "policy_tier": set(Tier),
    "assignment_rule": {"known_contact", "reply_to_outbound", "direct_correspondence", "fallback_default"},
    "state": set(CacheState),
    "degraded": {"true", "false"},
    "pass": set(PassName),
    "fate": set(Fate),
    "outcome": {"done", "stopped", "retry", "failed"},
}


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> InMemoryMetricReader:
    reader = InMemoryMetricReader()
    meter = MeterProvider(metric_readers=[reader]).get_meter("test")
    for name in ("_assigned", "_contacts", "_messages", "_passes"):
        monkeypatch.setattr(instruments, name, meter.create_counter(getattr(instruments, name).name))
    monkeypatch.setattr(instruments, "_contacts_age", meter.create_gauge("age"))
    monkeypatch.setattr(instruments, "_lag", meter.create_histogram("lag"))
    return reader


def points(reader: InMemoryMetricReader) -> dict[str, list[dict[str, Any]]]:
    found: Any = reader.get_metrics_data()
    metrics = found.resource_metrics[0].scope_metrics[0].metrics
    return {metric.name: [dict(point.attributes) for point in metric.data.data_points] for metric in metrics}


@pytest.mark.req("PQ-10")
def test_the_tier_counter_has_exactly_the_attributes_of_the_spec(reader: InMemoryMetricReader) -> None:
    for tier in Tier:
        for rule in AssignmentRule:
            instruments.record_assignment(ACCOUNT, TierAssignment(tier, rule))
    found = points(reader)["butlers.connector.gmail.priority_tier_assigned"]
    assert all(set(each) == {"provider", "endpoint_identity", "policy_tier", "assignment_rule"} for each in found)
    assert len(found) == 12


@pytest.mark.req("PQ-10")
def test_no_attribute_of_any_metric_can_hold_a_message_a_sender_or_a_text(reader: InMemoryMetricReader) -> None:
    for account_id in (ACCOUNT, None):
        instruments.record_assignment(account_id, TierAssignment(Tier.DEFAULT, AssignmentRule.FALLBACK_DEFAULT))
    for state in CacheState:
        instruments.record_contact_cache(state, 1.0)
    for name in PassName:
        for fate in Fate:
            instruments.record_message(name, fate)
        for outcome in ALLOWED["outcome"]:
            instruments.record_pass(name, outcome)
    instruments.record_live_lag(0.5)
    found = points(reader)
    assert len(found) == 6
    for attributes in (each for series in found.values() for each in series):
        for key, value in attributes.items():
            assert value in ALLOWED[key]

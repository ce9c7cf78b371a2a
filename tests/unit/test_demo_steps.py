"""What the demonstration says."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

from postroom.demo.decision_steps import Morning, _one
from postroom.domain.terms import TIERS

NOW = datetime(2026, 3, 2, tzinfo=UTC)


def test_clocks_of_two_processes_make_no_negative_wait() -> None:
    message = SimpleNamespace(ingestion_tier="full", policy_tier=TIERS[0], subject="Lunch?")
    served = _one(message, SimpleNamespace(started_at=NOW, queued_at=NOW + timedelta(microseconds=900)))
    assert served.waited == 0
    assert Morning((served,))._longest(TIERS[0]) == "the longest waited 0.00 s"

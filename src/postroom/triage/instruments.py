"""Metrics of triage; none carries an id, a name or a text of mail."""

from __future__ import annotations

from postroom.telemetry.metrics import meter
from postroom.triage.asking import Answer, CallFailed
from postroom.triage.decision import Decision

_decisions = meter.create_counter(
    "postroom.triage.decisions", unit="{decision}", description="what was decided, by whom, and what became of it"
)
_calls = meter.create_counter("postroom.triage.model.calls", unit="{call}", description="questions to the model")
_cost = meter.create_counter("postroom.triage.model.cost", unit="{microdollar}", description="what answers cost")
_latency = meter.create_histogram("postroom.triage.model.latency", unit="s", description="from question to answer")


def count_decision(decision: Decision) -> None:
    outcome = "review" if decision.needs_review else "approval" if decision.reasons else "done"
    _decisions.add(1, {"source": decision.source.value, "outcome": outcome})


def count_call(provider: str, outcome: Answer | CallFailed) -> None:
    kind = "failed" if isinstance(outcome, CallFailed) else "answered"
    _calls.add(1, {"provider": provider, "outcome": kind})
    _latency.record(outcome.latency_ms / 1_000, {"provider": provider})
    if isinstance(outcome, Answer) and outcome.cost is not None:
        _cost.add(outcome.cost, {"provider": provider})

"""Figures of a process, from its metrics."""

from __future__ import annotations

from postroom.dashboard.archive.routes import figures_of, quantile
from postroom.telemetry.metrics import MetricSample


def test_calls_latencies_retries_and_splits_are_summed_over_their_labels() -> None:
    bounds = {"0.1": (5, 1), "0.5": (9, 1), "+Inf": (10, 1)}
    samples = [
        MetricSample("postroom_gmail_calls_total", {"method": "get", "outcome": "ok"}, 9.0),
        MetricSample("postroom_gmail_calls_total", {"method": "list", "outcome": "ok"}, 1.0),
        MetricSample("postroom_gmail_calls_total", {"method": "get", "outcome": "throttled"}, 1.0),
        MetricSample("postroom_sync_retries_total", {}, 3.0),
        MetricSample("postroom_sync_splits_total", {"what": "job"}, 1.0),
        MetricSample("postroom_sync_splits_total", {"what": "slice"}, 1.0),
        MetricSample("something_else", {}, 5.0),
        *(
            MetricSample("postroom_gmail_latency_seconds_bucket", {"method": method, "le": le}, float(counts[place]))
            for le, counts in bounds.items()
            for place, method in enumerate(("get", "list"))
        ),
    ]
    figures = figures_of(samples)
    assert figures.calls == {"ok": 10, "throttled": 1}
    assert (figures.total, figures.retries, figures.splits, figures.bad) == (11, 3, 2, 0)
    assert (figures.median_s, figures.slow_s) == (0.1, None)


def test_without_calls_there_is_no_latency() -> None:
    assert quantile({}, 0.5) is None
    assert quantile({0.1: 0, float("inf"): 0}, 0.5) is None
    assert figures_of([]).started_at is None

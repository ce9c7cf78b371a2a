"""Metrics through OpenTelemetry, read by Prometheus.

Attributes are of low cardinality by rule: names of tiers, queues, types and outcomes; never ids, senders or text.
The registry is the one piece of global state in Postroom.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from opentelemetry import metrics

meter = metrics.get_meter("postroom")

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1_800, 7_200, 86_400)
_configured = False


def configure() -> None:
    """Start collecting; calling it again changes nothing. Without it, instruments cost nothing and record nothing."""
    global _configured
    if _configured:
        return
    _configured = True
    # Only services collect, so only they pay for importing what collects.
    from opentelemetry.exporter.prometheus import PrometheusMetricReader
    from opentelemetry.sdk.metrics import Histogram, MeterProvider
    from opentelemetry.sdk.metrics.view import ExplicitBucketHistogramAggregation, View

    buckets = ExplicitBucketHistogramAggregation(_SECONDS)
    seconds = View(instrument_type=Histogram, instrument_unit="s", aggregation=buckets)  # gauges have no buckets
    metrics.set_meter_provider(MeterProvider(metric_readers=[PrometheusMetricReader()], views=[seconds]))


class MetricSample(NamedTuple):
    name: str
    labels: Mapping[str, str]
    value: float


def samples() -> Iterator[MetricSample]:
    """The current value of every metric."""
    from prometheus_client import REGISTRY

    for family in REGISTRY.collect():
        for sample in family.samples:
            yield MetricSample(sample.name, sample.labels, sample.value)


def exposition() -> bytes:
    """All metrics in Prometheus' text format."""
    from prometheus_client import REGISTRY, generate_latest

    return generate_latest(REGISTRY)

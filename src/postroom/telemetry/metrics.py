"""Metrics through OpenTelemetry, read by Prometheus.

Attributes are of low cardinality by rule: names of tiers, queues, types and outcomes; never ids, senders or text.
The registry is the one piece of global state in Postroom.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from opentelemetry import metrics

Attributes = Mapping[str, str | int]


class SummedCounter:
    """A counter that adds up by itself and is asked for its sums when metrics are read: to tell OpenTelemetry of each
    addition takes ten times as long."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._sums: dict[tuple[tuple[str, str | int], ...], float] = {}
        self._lock = threading.Lock()

    def add(self, amount: float, attributes: Attributes | None = None) -> None:
        key = tuple(sorted(attributes.items())) if attributes else ()
        with self._lock:
            self._sums[key] = self._sums.get(key, 0) + amount

    def observe(self, options: metrics.CallbackOptions) -> list[metrics.Observation]:
        with self._lock:
            sums = list(self._sums.items())
        return [metrics.Observation(total, dict(key)) for key, total in sums]


class _Meter:
    """OpenTelemetry's meter, with counters of our own."""

    def __init__(self, meter: metrics.Meter) -> None:
        self.create_gauge = meter.create_gauge
        self.create_histogram = meter.create_histogram
        self.create_observable_gauge = meter.create_observable_gauge
        self._create_observable_counter = meter.create_observable_counter

    def create_counter(self, name: str, unit: str = "", description: str = "") -> SummedCounter:
        counter = SummedCounter(name)
        self._create_observable_counter(name, [counter.observe], unit, description)
        return counter


meter = _Meter(metrics.get_meter("postroom"))

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1_800, 7_200, 86_400)
_configured = False


def configure() -> None:
    """Start collecting; calling it again changes nothing. Before it, counters only add up, and
    no other instrument costs or records anything."""
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

"""What this process has counted of its calls to Gmail and of its syncs since it started, from its own metrics. Pure.

No series is kept in the database: what went on over time is for whoever reads `/metrics` again and again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from postroom.telemetry.metrics import Sample

_CALLS, _LATENCY = "postroom_gmail_calls_total", "postroom_gmail_latency_seconds"
_RETRIES, _SPLITS, _BAD = "postroom_sync_retries_total", "postroom_sync_splits_total", "postroom_sync_bad_total"
_STARTED = "process_start_time_seconds"


@dataclass(frozen=True, slots=True)
class ProcessFigures:
    started_at: datetime | None
    calls: dict[str, int]
    """By outcome: ok, throttled, unreachable ..."""
    median_s: float | None
    """Half of the calls took at most this; to the bounds of the histogram."""
    slow_s: float | None
    """Nineteen of twenty took at most this."""
    retries: int
    splits: int
    bad: int

    @property
    def total(self) -> int:
        return sum(self.calls.values())


def figures_of(samples: Iterable[Sample]) -> ProcessFigures:
    calls, buckets, sums = Counter[str](), Counter[float](), defaultdict[str, float](float)
    for sample in samples:
        if sample.name == _CALLS:
            calls[sample.labels.get("outcome", "")] += int(sample.value)
        elif sample.name == f"{_LATENCY}_bucket":
            buckets[float(sample.labels["le"])] += int(sample.value)
        elif sample.name in (_RETRIES, _SPLITS, _BAD, _STARTED):
            sums[sample.name] += sample.value
    started = sums[_STARTED]
    return ProcessFigures(
        started_at=datetime.fromtimestamp(started, UTC) if started else None,
        calls=dict(calls.most_common()),
        median_s=quantile(buckets, 0.5),
        slow_s=quantile(buckets, 0.95),
        retries=int(sums[_RETRIES]),
        splits=int(sums[_SPLITS]),
        bad=int(sums[_BAD]),
    )


def quantile(buckets: dict[float, int], share: float) -> float | None:
    """The smallest bound below which such a share of all lies; None where there are none, or none so small."""
    bounds = sorted(buckets)
    if not bounds or not buckets[bounds[-1]]:
        return None
    wanted = share * buckets[bounds[-1]]
    found = next(bound for bound in bounds if buckets[bound] >= wanted)
    return None if found == float("inf") else found

"""The queue's metrics. Names and attributes are a contract (requirements PQ-10); none carries an id or a text."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from opentelemetry.metrics import CallbackOptions, Observation

from postroom.domain.terms import TIERS, Tier
from postroom.queue.job import ClaimedJob, QueueName
from postroom.queue.plan import Pick
from postroom.telemetry.metrics import meter
from postroom.telemetry.series import RECORDER, Series

_dequeued = meter.create_counter(
    "butlers.switchboard.queue.dequeue_by_tier", unit="{job}", description="jobs handed to a worker"
)
_waited = meter.create_histogram(
    "butlers.switchboard.queue.wait", unit="s", description="from claimable to claimed, by tier and queue"
)
_finished = meter.create_counter(
    "butlers.switchboard.queue.settled", unit="{job}", description="attempts that ended, by job type and outcome"
)
_WAITS = {queue: Series(f"queue.wait.{queue}") for queue in QueueName}
_OF_LINE = {
    (queue, tier): {"policy_tier": tier.value, "queue_name": queue.value} for queue in QueueName for tier in TIERS
}
_ENDS = {"failed": Series.JOBS_FAILED, "retried": Series.JOBS_RETRIED}
_depths: dict[tuple[QueueName, Tier], int] = {}


def _observe_depth(options: CallbackOptions) -> Iterable[Observation]:
    return [Observation(_depths.get(line, 0), attributes) for line, attributes in _OF_LINE.items()]


meter.create_observable_gauge(
    "butlers.switchboard.queue.depth",
    [_observe_depth],
    unit="{job}",
    description="jobs that could be claimed now",
)


def record_claims(claimed: Iterable[tuple[Pick, ClaimedJob]]) -> None:
    counts: Counter[tuple[QueueName, Tier, bool]] = Counter()
    waits: dict[QueueName, Counter[float]] = defaultdict(Counter)
    for (_, queue, tier, override), job in claimed:
        counts[queue, tier, override] += 1
        waits[queue][job.waited_s] += 1
        _waited.record(job.waited_s, _OF_LINE[queue, tier])
    for queue, lengths in waits.items():
        RECORDER.times(_WAITS[queue], lengths)
    for (queue, tier, override), count in counts.items():
        _dequeued.add(count, {**_OF_LINE[queue, tier], "starvation_override": "true" if override else "false"})


def record_settled(counts: Mapping[tuple[str, str], int]) -> None:
    for (job_type, outcome), count in counts.items():
        if outcome in _ENDS:
            RECORDER.count(_ENDS[outcome], count)
        _finished.add(count, {"job_type": job_type, "outcome": str(outcome)})


def record_depth(depths: Mapping[tuple[QueueName, Tier], int]) -> None:
    _depths.clear()
    _depths.update(depths)

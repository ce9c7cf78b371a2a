"""The sync's metrics: by outcome only; never an account, an id or a text. See `gmail/instruments` for latency."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from opentelemetry.metrics import CallbackOptions, Observation

from postroom.telemetry.metrics import meter

_processed = meter.create_counter(
    "postroom.sync.processed", unit="{message}", description="messages whose fate is known, by outcome"
)
_retries = meter.create_counter("postroom.sync.retries", unit="{job}", description="jobs that are tried once more")
_splits = meter.create_counter("postroom.sync.splits", unit="{split}", description="jobs and slices cut in two")
_stalls = meter.create_counter("postroom.sync.stalls", unit="{job}", description="jobs cancelled for their silence")
_bad = meter.create_counter("postroom.sync.bad", unit="{message}", description="messages listed as bad")
_watermarks: dict[str, int] = {}
_metadata: dict[str, float] = {}


def _oldest_watermark(options: CallbackOptions) -> Iterable[Observation]:
    return [Observation(min(_watermarks.values()))] if _watermarks else []


def _fullest_metadata(options: CallbackOptions) -> Iterable[Observation]:
    return [Observation(max(_metadata.values()))] if _metadata else []


meter.create_observable_gauge(
    "postroom.sync.watermark", [_oldest_watermark], unit="s", description="of the account that is furthest behind"
)
meter.create_observable_gauge(
    "postroom.sync.metadata_usage",
    [_fullest_metadata],
    unit="1",
    description="share of the budget, the fullest account",
)


def record_processed(outcomes: Mapping[str, int]) -> None:
    for outcome, messages in outcomes.items():
        if messages:
            _processed.add(messages, {"outcome": outcome})


def record_retry() -> None:
    _retries.add(1)


def record_split(what: str) -> None:
    """`what` is `job` or `slice`."""
    _splits.add(1, {"what": what})


def record_stall() -> None:
    _stalls.add(1)


def record_bad() -> None:
    _bad.add(1)


def record_watermark(account_id: str, watermark: int) -> None:
    _watermarks[account_id] = watermark


def record_metadata(account_id: str, usage: float) -> None:
    """The share of its budget that an account's metadata document takes."""
    _metadata[account_id] = usage

"""The archiver's metrics: by action only; never an account, an id or a text."""

from __future__ import annotations

from postroom.archive.certificates import Action
from postroom.telemetry.metrics import meter

_removed = meter.create_counter(
    "postroom.archiver.removed", unit="{message}", description="messages removed at the source, by action"
)
_stops = meter.create_counter("postroom.archiver.stops", unit="{run}", description="runs that a doubt has ended")


def record_removed(action: Action, count: int) -> None:
    _removed.add(count, {"action": str(action)})


def record_stop() -> None:
    _stops.add(1)

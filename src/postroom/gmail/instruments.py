"""The Gmail client's metrics: by method, outcome and lane only; never an account, an id or a text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from postroom.domain.errors import PostroomError
from postroom.gmail.errors import (
    Gone,
    HistoryExpired,
    LoginNeeded,
    NotGmail,
    PermissionMissing,
    Refused,
    Throttled,
    Unavailable,
    Unreachable,
)
from postroom.gmail.ports import Lane
from postroom.telemetry.metrics import meter

_calls = meter.create_counter("postroom.gmail.calls", unit="{call}", description="HTTP calls, by method and outcome")
_parts = meter.create_counter("postroom.gmail.batch_parts", unit="{part}", description="calls inside batches")
_latency = meter.create_histogram("postroom.gmail.latency", unit="s", description="from sending to the whole answer")
_waited = meter.create_histogram("postroom.gmail.wait", unit="s", description="from wanting to sending, by lane")
_units = meter.create_counter("postroom.gmail.units", unit="{unit}", description="quota units spent, by lane")

_OUTCOMES: tuple[tuple[type[PostroomError], str], ...] = (
    (Throttled, "throttled"),
    (Unreachable, "unreachable"),
    (Unavailable, "unavailable"),
    (LoginNeeded, "login_needed"),
    (NotGmail, "not_gmail"),
    (Refused, "refused"),
    (PermissionMissing, "not_allowed"),
    (HistoryExpired, "history_expired"),
    (Gone, "gone"),
)


def outcome_of(error: PostroomError | None) -> str:
    if error is None:
        return "ok"
    return next((name for kind, name in _OUTCOMES if isinstance(error, kind)), "error")


def record_wait(lane: Lane, units: int, seconds: float) -> None:
    attributes = {"lane": lane.name.lower()}
    _waited.record(seconds, attributes)
    _units.add(units, attributes)


def record_call(method: str, error: PostroomError | None, seconds: float) -> None:
    _calls.add(1, {"method": method, "outcome": outcome_of(error)})
    _latency.record(seconds, {"method": method})


def record_parts(method: str, results: Iterable[object]) -> None:
    """The calls of a batch: each result that is not an error went well."""
    outcomes = Counter(outcome_of(each if isinstance(each, PostroomError) else None) for each in results)
    for outcome, count in outcomes.items():
        _parts.add(count, {"method": method, "outcome": outcome})

"""Metrics of actions; none carries an id, a name or a text of mail."""

from __future__ import annotations

from postroom.domain.actions import ActionStatus, ActionType, Origin
from postroom.telemetry.metrics import meter

_ended = meter.create_counter(
    "postroom.actions.ended", unit="{action}", description="actions that came to an end, by type, origin and outcome"
)
_questions = meter.create_gauge(
    "postroom.actions.questions_open", unit="{action}", description="actions that wait for a person's approval"
)


def count_ended(action: ActionType, origin: Origin, outcome: ActionStatus) -> None:
    _ended.add(1, {"type": action.value, "origin": origin.value, "outcome": outcome.value})


def set_questions_open(count: int) -> None:
    _questions.set(count)

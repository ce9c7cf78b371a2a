"""What was decided about a message, by whom and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, select

from postroom.db import Tx
from postroom.db.tables.triage import decisions, rules


@dataclass(frozen=True, slots=True)
class DecisionMade:
    source: str
    """deterministic: a rule; llm: the model; none: nobody wanted anything."""
    action: str
    parameters: Mapping[str, Any]
    reason: str
    confidence: float | None
    rule_id: str | None
    """Of the rule that decided; null also if it was removed since."""
    rule_name: str | None
    needs_review: bool
    reasons: Sequence[Any]
    """Why what it wants needs approval."""
    created_at: datetime


def decision_about(tx: Tx, message_id: str) -> DecisionMade | None:
    return _decision(tx, decisions.c.message_id == message_id)


def decision_with_id(tx: Tx, decision_id: str) -> DecisionMade | None:
    return _decision(tx, decisions.c.id == decision_id)


def _decision(tx: Tx, which: ColumnElement[bool]) -> DecisionMade | None:
    query = select(decisions, rules.c.id.label("known_rule")).join(
        rules, rules.c.id == decisions.c.rule_id, isouter=True
    )
    row = tx.execute(query.where(which)).one_or_none()
    if row is None:
        return None
    return DecisionMade(
        source=row.source,
        action=row.action,
        parameters=row.parameters,
        reason=row.reason,
        confidence=row.confidence,
        rule_id=row.known_rule,
        rule_name=row.rule_name,
        needs_review=row.needs_review,
        reasons=row.reasons,
        created_at=row.created_at,
    )

"""What became of a message after it came in: its tier, what was decided and why, what was done. Functions of a Tx."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import select

from postroom.dashboard.reading.mail import GMAIL
from postroom.db import Tx
from postroom.db.tables.actions import actions
from postroom.db.tables.mail import messages
from postroom.db.tables.triage import decisions
from postroom.domain.money import Micros
from postroom.domain.tiers import Tier
from postroom.triage.records import spent_on

_MOST_ACTIONS = 50


@dataclass(frozen=True, slots=True)
class DecisionMade:
    source: str
    """deterministic: a rule; llm: the model; none: nobody wanted anything."""
    action: str
    parameters: Mapping[str, Any]
    reason: str
    confidence: float | None
    rule_name: str | None
    needs_review: bool
    reasons: Sequence[Any]
    """Why what it wants needs approval."""
    created_at: datetime


@dataclass(frozen=True, slots=True)
class ActionTaken:
    id: str
    type: str
    status: str
    parameters: Mapping[str, Any]
    wanted_by: str
    error: str | None
    created_at: datetime
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class Judgement:
    message_id: str
    tier: Tier
    assignment_rule: str | None
    """The priority rule that gave it its tier."""
    category: str | None
    is_metadata_only: bool
    """Only its headers were taken in; no model ever saw its text."""
    backfill_job_id: str | None
    accepted_at: datetime
    cost_microdollars: int
    """Spent on asking the model about it."""
    decision: DecisionMade | None
    actions: Sequence[ActionTaken]
    """Newest first."""


def judgement_of(tx: Tx, account: str, key: str) -> Judgement | None:
    """None for mail that only the archive knows."""
    here = (messages.c.endpoint_identity == account, messages.c.external_event_id == key)
    row = tx.execute(select(messages).where(messages.c.provider == GMAIL, *here).limit(1)).one_or_none()
    if row is None:
        return None
    return Judgement(
        message_id=row.id,
        tier=Tier(row.policy_tier),
        assignment_rule=row.assignment_rule,
        category=row.category,
        is_metadata_only=row.ingestion_tier == "metadata",
        backfill_job_id=row.backfill_job_id,
        accepted_at=row.accepted_at,
        cost_microdollars=Micros(spent_on(tx, row.id)),
        decision=_decision(tx, row.id),
        actions=_actions(tx, row.id),
    )


def _decision(tx: Tx, message_id: str) -> DecisionMade | None:
    row = tx.execute(select(decisions).where(decisions.c.message_id == message_id)).one_or_none()
    if row is None:
        return None
    return DecisionMade(
        source=row.source,
        action=row.action,
        parameters=row.parameters,
        reason=row.reason,
        confidence=row.confidence,
        rule_name=row.rule_name,
        needs_review=row.needs_review,
        reasons=row.reasons,
        created_at=row.created_at,
    )


def _actions(tx: Tx, message_id: str) -> list[ActionTaken]:
    query = select(actions).where(actions.c.message_id == message_id).order_by(actions.c.id.desc()).limit(_MOST_ACTIONS)
    return [
        ActionTaken(
            id=row.id,
            type=row.type,
            status=row.status,
            parameters=row.parameters,
            wanted_by=row.wanted_by,
            error=row.error,
            created_at=row.created_at,
            finished_at=row.finished_at,
        )
        for row in tx.execute(query)
    ]

"""What became of a message after it came in: its tier, what was decided and why, what was done. Functions of a Tx."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select

from postroom.actions import browsing, undo
from postroom.actions.browsing import ActionFilter
from postroom.dashboard.reading.actions import ActionRow, addresses, row_of
from postroom.dashboard.reading.decisions import DecisionMade, decision_about
from postroom.dashboard.reading.mail import GMAIL
from postroom.db import Tx
from postroom.db.tables.mail import messages
from postroom.domain.money import Micros
from postroom.domain.tiers import Tier
from postroom.triage.records import spent_on

_MOST_ACTIONS = 50


@dataclass(frozen=True, slots=True)
class ActionTaken:
    action: ActionRow
    can_undo: bool


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
        decision=decision_about(tx, row.id),
        actions=_actions(tx, row.id),
    )


def _actions(tx: Tx, message_id: str) -> list[ActionTaken]:
    found = browsing.list_actions(tx, ActionFilter(message_id=message_id, limit=_MOST_ACTIONS))
    emails = addresses(tx) if found else {}
    return [ActionTaken(row_of(each, emails), undo.obstacle(tx, each.action) is None) for each in found]

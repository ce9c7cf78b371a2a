"""A row of the table as a rule, whatever somebody has put into it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Integer, Row, Text, cast

from postroom.db.tables.triage import rules
from postroom.domain.errors import PostroomError
from postroom.triage.rules.model import (
    DEFAULT_PRIORITY,
    EVERYWHERE,
    RuleDraft,
    Scope,
    checked_scope,
    parse_draft,
)


@dataclass(frozen=True, slots=True)
class StoredRule:
    id: str
    name: str
    scope: Scope
    priority: int
    unattended: bool
    enabled: bool
    disabled_reason: str | None
    created_at: datetime
    updated_at: datetime
    draft: RuleDraft | None
    """None: what is stored cannot be read; `problem` says why."""
    problem: str | None = None

    def state(self) -> dict[str, Any]:
        """For the audit log."""
        known = {
            "name": self.name,
            "scope": str(self.scope),
            "priority": self.priority,
            "unattended": self.unattended,
            "enabled": self.enabled,
            "disabled_reason": self.disabled_reason,
        }
        if self.draft is None:
            return {**known, "problem": self.problem}
        actions = [wanted.to_json() for wanted in self.draft.actions]
        return {**known, "condition": dict(self.draft.condition), "actions": actions}


def columns() -> Sequence[ColumnElement[Any]]:
    """JSON comes as text: one row that holds none must not spoil the reading of all. The id comes first."""
    table = rules.c
    return (
        cast(table.id, Text).label("id"),
        table.name,
        table.scope,
        table.scope_ref,
        cast(table.priority, Integer).label("priority"),
        cast(table.condition, Text).label("condition"),
        cast(table.actions, Text).label("actions"),
        table.unattended,
        table.enabled,
        table.disabled_reason,
        table.created_at,
        table.updated_at,
    )


def rule_from_row(row: Row[Any]) -> StoredRule:
    draft, problem = _draft(row)
    return StoredRule(
        id=row.id,
        name=str(row.name),
        scope=draft.scope if draft else EVERYWHERE,
        priority=draft.priority if draft else _priority(row),
        unattended=bool(row.unattended),
        enabled=bool(row.enabled),
        disabled_reason=row.disabled_reason,
        created_at=row.created_at,
        updated_at=row.updated_at,
        draft=draft,
        problem=problem,
    )


def _draft(row: Row[Any]) -> tuple[RuleDraft | None, str | None]:
    try:
        scope = checked_scope(row.scope, row.scope_ref)
        data = {
            "name": row.name,
            "priority": row.priority,
            "condition": json.loads(row.condition),
            "actions": json.loads(row.actions),
            "unattended": bool(row.unattended),
            "enabled": bool(row.enabled),
        }
        draft = parse_draft(data)
    except PostroomError as error:
        return None, f"It cannot be read: {error.message}"
    except (ValueError, TypeError, RecursionError):
        return None, "It cannot be read: what is stored is not JSON"
    return replace(draft, scope=scope), None


def _priority(row: Row[Any]) -> int:
    return row.priority if isinstance(row.priority, int) else DEFAULT_PRIORITY

"""Rules as rows, and their scopes: accounts are ids in the table and addresses for people.

A row is never trusted: one that cannot be read becomes a rule with a problem.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Integer, Row, Text, cast, type_coerce

from postroom.accounts.account import get_account, list_accounts
from postroom.db import Tx
from postroom.db.tables.triage import rules
from postroom.domain.errors import PostroomError
from postroom.triage.rules.rule import (
    DEFAULT_PRIORITY,
    EVERYWHERE,
    RuleDraft,
    RuleScope,
    ScopeKind,
    checked_scope,
    parse_draft,
)

_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class StoredRule:
    id: str
    name: str
    scope: RuleScope
    priority: int
    unattended: bool
    enabled: bool
    disabled_reason: str | None
    created_at: datetime
    updated_at: datetime
    stamp: str
    """`updated_at` as it stands in the table, which a change compares with."""
    draft: RuleDraft | None
    """None: what is stored cannot be read; `problem` says why."""
    problem: str | None = None
    off_for: Mapping[str, str] = field(default_factory=dict)
    """By account id, why Postroom switched the rule off for its mail."""

    def state(self) -> dict[str, Any]:
        """For the audit log."""
        known = {
            "name": self.name,
            "scope": str(self.scope),
            "priority": self.priority,
            "unattended": self.unattended,
            "enabled": self.enabled,
            "disabled_reason": self.disabled_reason,
            **({"off_for": dict(self.off_for)} if self.off_for else {}),
        }
        if self.draft is None:
            return {**known, "problem": self.problem}
        actions = [wanted.to_json() for wanted in self.draft.actions]
        return {**known, "condition": dict(self.draft.condition), "actions": actions}


def columns() -> Sequence[ColumnElement[Any]]:
    """As they stand there, JSON and times unread: one row that holds neither must not spoil the reading of all."""
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
        cast(table.off_for, Text).label("off_for"),
        type_coerce(table.created_at, Text).label("created_at"),
        type_coerce(table.updated_at, Text).label("updated_at"),
        stamp_column().label("stamp"),
    )


def stamp_column() -> ColumnElement[str]:
    return cast(rules.c.updated_at, Text)


def instant(value: datetime | str) -> datetime:
    """A time from the table: SQLite has them as text, and any text may have been written there."""
    try:
        found = value if isinstance(value, datetime) else datetime.fromisoformat(value)
    except (ValueError, TypeError):
        return _LONG_AGO
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


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
        created_at=instant(row.created_at),
        updated_at=instant(row.updated_at),
        stamp=row.stamp,
        draft=draft,
        problem=problem,
        off_for=_off_for(row.off_for),
    )


def _off_for(stored: str | None) -> dict[str, str]:
    try:
        found = json.loads(stored or "{}")
    except ValueError:
        found = None
    return {str(key): str(why) for key, why in found.items()} if isinstance(found, dict) else {}


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


def resolved(tx: Tx, scope: RuleScope) -> RuleScope:
    """With the account's id, for the table."""
    if scope.kind is not ScopeKind.ACCOUNT or "@" not in scope.ref:
        return scope
    return RuleScope(ScopeKind.ACCOUNT, get_account(tx, scope.ref).id)


def account_addresses(tx: Tx) -> dict[str, str]:
    """Of all accounts by their ids, of the removed ones too: a rule may still name one."""
    return {account.id: account.email for account in list_accounts(tx, with_removed=True)}


def named(scope: RuleScope, addresses: Mapping[str, str]) -> RuleScope:
    """With the account's address, for people."""
    if scope.kind is not ScopeKind.ACCOUNT:
        return scope
    return RuleScope(ScopeKind.ACCOUNT, addresses.get(scope.ref, scope.ref))


def draft_named(draft: RuleDraft, addresses: Mapping[str, str]) -> RuleDraft:
    return replace(draft, scope=named(draft.scope, addresses))


def rule_named(rule: StoredRule, addresses: Mapping[str, str]) -> StoredRule:
    if rule.draft is None:
        return rule
    draft = draft_named(rule.draft, addresses)
    return replace(rule, draft=draft, scope=draft.scope)

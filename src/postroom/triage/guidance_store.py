"""Directions and model rules in the control database; every change is by somebody, and audited."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, delete, func, select, update

from postroom import audit
from postroom.accounts.store import get_account
from postroom.audit import Actor
from postroom.db import Tx
from postroom.db.tables.triage import directions, model_rules
from postroom.domain.errors import BadInput, NotFound
from postroom.domain.ids import new_id
from postroom.triage.rules import values as checked
from postroom.triage.rules.model import Scope, ScopeKind, parse_name

LONGEST_TEXT = 2_000
MOST_KEPT = 500


@dataclass(frozen=True, slots=True)
class Direction:
    id: str
    position: int
    text: str
    enabled: bool
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class StoredModelRule:
    id: str
    name: str
    scope: Scope
    text: str
    enabled: bool
    disabled_reason: str | None
    updated_at: datetime


def list_directions(tx: Tx) -> list[Direction]:
    rows = tx.execute(select(directions).order_by(directions.c.position, directions.c.id))
    return [Direction(row.id, row.position, row.text, row.enabled, row.updated_at) for row in rows]


def get_direction(tx: Tx, number: int) -> Direction:
    """By the number that the list shows, which starts at 1."""
    found = list_directions(tx)
    if not 1 <= number <= len(found):
        there = f"there are 1 to {len(found)}" if found else "there are none"
        raise NotFound("direction", f"there is no {number}; {there}")
    return found[number - 1]


def add_direction(tx: Tx, text: str, who: Actor, now: datetime) -> Direction:
    tx.lock_table(directions)
    found = list_directions(tx)
    if len(found) >= MOST_KEPT:
        raise BadInput("directions", f"there are {MOST_KEPT} already, which is the most")
    direction_id, text = new_id(), _text(text)
    position = found[-1].position + 1 if found else 1
    row = {"id": direction_id, "position": position, "text": text, "enabled": True, "updated_at": now}
    tx.execute(directions.insert().values(**row))
    audit.record(tx, who, "direction.add", ("direction", direction_id), now, after={"text": text})
    return get_direction(tx, len(found) + 1)


def change_direction(
    tx: Tx, before: Direction, who: Actor, now: datetime, *, text: str | None = None, enabled: bool | None = None
) -> None:
    after = {
        "text": before.text if text is None else _text(text),
        "enabled": before.enabled if enabled is None else enabled,
    }
    here = (directions.c.id == before.id) & (directions.c.text == before.text)
    if not tx.execute(update(directions).where(here).values(**after, updated_at=now)).rowcount:
        raise _changed("direction")
    was = {"text": before.text, "enabled": before.enabled}
    audit.record(tx, who, "direction.edit", ("direction", before.id), now, before=was, after=after)


def remove_direction(tx: Tx, before: Direction, who: Actor, now: datetime) -> None:
    if not tx.execute(delete(directions).where(directions.c.id == before.id)).rowcount:
        raise _changed("direction")
    audit.record(tx, who, "direction.remove", ("direction", before.id), now, before={"text": before.text})


def list_model_rules(tx: Tx) -> list[StoredModelRule]:
    rows = tx.execute(select(model_rules).order_by(model_rules.c.scope, model_rules.c.scope_ref, model_rules.c.id))
    return [_model_rule(row) for row in rows]


def get_model_rule(tx: Tx, name_or_id: str) -> StoredModelRule:
    wanted = name_or_id.lower()
    found = [rule for rule in list_model_rules(tx) if wanted in (rule.name.lower(), rule.id)]
    if not found:
        raise NotFound("guidance", f"there is none named {name_or_id!r}; `postroom rules guidance list` shows all")
    return found[0]


def add_model_rule(tx: Tx, name: str, scope: Scope, text: str, who: Actor, now: datetime) -> StoredModelRule:
    tx.lock_table(model_rules)
    name = parse_name(name)
    found = list_model_rules(tx)
    if len(found) >= MOST_KEPT:
        raise BadInput("guidance", f"there are {MOST_KEPT} already, which is the most")
    _refuse_name(found, name)
    scope = _resolved(tx, scope)
    row = {"id": new_id(), "name": name, "scope": scope.kind, "scope_ref": scope.ref, "text": _text(text)}
    tx.execute(model_rules.insert().values(**row, enabled=True, created_at=now, updated_at=now))
    added = get_model_rule(tx, row["id"])
    audit.record(tx, who, "guidance.add", ("guidance", added.id), now, after=_state(added))
    return added


def change_model_rule(
    tx: Tx, before: StoredModelRule, changes: Mapping[str, Any], who: Actor, now: datetime
) -> StoredModelRule:
    """`changes` may hold name, scope, text and enabled; refused if somebody else was quicker."""
    tx.lock_table(model_rules)
    values: dict[str, Any] = {}
    if "name" in changes:
        values["name"] = parse_name(changes["name"])
        _refuse_name([rule for rule in list_model_rules(tx) if rule.id != before.id], values["name"])
    if "scope" in changes:
        scope = _resolved(tx, changes["scope"])
        values |= {"scope": scope.kind, "scope_ref": scope.ref}
    if "text" in changes:
        values["text"] = _text(changes["text"])
    if "enabled" in changes:
        values |= {"enabled": changes["enabled"], "disabled_reason": None}
    table = model_rules.c
    here = (table.id == before.id) & (table.text == before.text) & (table.enabled == before.enabled)
    if not tx.execute(update(model_rules).where(here).values(**values, updated_at=now)).rowcount:
        raise _changed(f"guidance {before.name}")
    after = get_model_rule(tx, before.id)
    audit.record(tx, who, "guidance.edit", ("guidance", before.id), now, before=_state(before), after=_state(after))
    return after


def remove_model_rule(tx: Tx, before: StoredModelRule, who: Actor, now: datetime) -> None:
    if not tx.execute(delete(model_rules).where(model_rules.c.id == before.id)).rowcount:
        raise _changed(f"guidance {before.name}")
    audit.record(tx, who, "guidance.remove", ("guidance", before.id), now, before=_state(before))


def model_rules_naming(tx: Tx, account_id: str, label_name: str) -> list[str]:
    """Those that speak of a label in their text. They are words, so that only a person can say whether they still
    hold without it: nothing is disabled."""
    table = model_rules.c
    mine = (table.scope != ScopeKind.ACCOUNT) | (table.scope_ref == account_id)
    rows = tx.execute(select(model_rules).where(table.enabled, mine).order_by(func.lower(table.name)))
    return [row.name for row in rows if label_name.strip() and label_name.strip().casefold() in row.text.casefold()]


def _model_rule(row: Row[Any]) -> StoredModelRule:
    scope = Scope(ScopeKind(row.scope), row.scope_ref)
    return StoredModelRule(row.id, row.name, scope, row.text, row.enabled, row.disabled_reason, row.updated_at)


def _state(rule: StoredModelRule) -> dict[str, Any]:
    return {"name": rule.name, "scope": str(rule.scope), "text": rule.text, "enabled": rule.enabled}


def _resolved(tx: Tx, scope: Scope) -> Scope:
    if scope.kind is not ScopeKind.ACCOUNT or "@" not in scope.ref:
        return scope
    return Scope(ScopeKind.ACCOUNT, get_account(tx, scope.ref).id)


def _refuse_name(others: list[StoredModelRule], name: str) -> None:
    if any(rule.name.lower() == name.lower() for rule in others):
        raise BadInput("name", f"there is guidance named {name!r} already")


def _text(text: str) -> str:
    return checked.text(text, "text", LONGEST_TEXT).strip()


def _changed(what: str) -> BadInput:
    return BadInput(what, "was changed or removed by somebody else meanwhile; look at it again")

"""Rules in the control database: every change is by somebody, audited, and refused if somebody else was quicker.

What a row holds is never trusted: one that cannot be read is a rule with a problem, and the others are as good as ever.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Text, delete, func, select, type_coerce, update

from postroom import audit
from postroom.audit import Actor
from postroom.db import Tx
from postroom.db.tables.triage import rules
from postroom.domain.errors import BadInput, NotFound
from postroom.domain.ids import new_id
from postroom.triage.rules.conditions import labels_in
from postroom.triage.rules.facts import label_key
from postroom.triage.rules.model import MOST_RULES, RuleDraft, ScopeKind, rule_of
from postroom.triage.rules.rows import StoredRule, columns, instant, rule_from_row, stamp_column
from postroom.triage.rules.wishes import labels_named
from postroom.triage.scopes import resolved

_LONGEST_REASON = 500


def lock(tx: Tx) -> None:
    """Nobody else changes rules until this transaction ends."""
    tx.lock_table(rules)


def list_rules(tx: Tx) -> list[StoredRule]:
    """In the order in which they are tried."""
    rows = tx.execute(select(*columns()).order_by(rules.c.priority, rules.c.id))
    return [rule_from_row(row) for row in rows]


def get_rule(tx: Tx, name_or_id: str) -> StoredRule:
    every = tx.execute(select(*columns()).order_by(rules.c.id)).all()
    wanted = name_or_id.lower()  # here, because SQLite knows the capitals of English alone
    by_name = [row for row in every if row.name == name_or_id] or [row for row in every if row.name.lower() == wanted]
    found = by_name or [row for row in every if row.id == wanted]
    if not found:
        raise NotFound("rule", f"there is none named {name_or_id!r}; `postroom rules list` shows those there are")
    return rule_from_row(found[0])


def rule_with_id(tx: Tx, rule_id: str) -> StoredRule:
    row = tx.execute(select(*columns()).where(rules.c.id == rule_id)).one_or_none()
    if row is None:
        raise NotFound("rule", "there is no such rule; somebody may have removed it")
    return rule_from_row(row)


def add_rule(tx: Tx, draft: RuleDraft, who: Actor, now: datetime) -> StoredRule:
    tx.lock_table(rules)
    _refuse_name(tx, draft.name)
    if tx.execute(select(func.count()).select_from(rules)).scalar_one() >= MOST_RULES:
        raise BadInput("rules", f"there are {MOST_RULES:,} already, which is the most")
    rule_id = new_id()
    row = {"id": rule_id, **_values(tx, draft), "created_at": now, "updated_at": _stamp(tx, now)}
    tx.execute(rules.insert().values(**row))
    added = rule_with_id(tx, rule_id)
    audit.record(tx, who, "rule.add", ("rule", rule_id), now, after=added.state())
    return added


def edit_rule(tx: Tx, before: StoredRule, draft: RuleDraft, who: Actor, now: datetime) -> StoredRule:
    """Put the draft in the place of a rule, unless somebody has changed it since `before` was read."""
    tx.lock_table(rules)
    if draft.name != before.name:
        _refuse_name(tx, draft.name, but=before.id)
    values = _values(tx, draft)
    # A rule that Postroom disabled stays so, and keeps the reason, until it is enabled again.
    if not draft.enabled and not before.enabled:
        values["disabled_reason"] = before.disabled_reason
    return _change(tx, before, values, "rule.edit", who, now)


def remove_rule(tx: Tx, before: StoredRule, who: Actor, now: datetime) -> None:
    tx.lock_table(rules)
    here = (rules.c.id == before.id) & (stamp_column() == before.stamp)
    if not tx.execute(delete(rules).where(here)).rowcount:
        raise _changed(before)
    audit.record(tx, who, "rule.remove", ("rule", before.id), now, before=before.state())


def enable_rule(tx: Tx, before: StoredRule, who: Actor, now: datetime) -> StoredRule:
    if before.draft is None:
        raise BadInput(f"rule {before.name}", f"cannot be used, so it stays off: {before.problem}")
    if before.enabled:
        return before
    return _change(tx, before, {"enabled": True, "disabled_reason": None}, "rule.enable", who, now)


def disable_rule(tx: Tx, before: StoredRule, reason: str | None, who: Actor, now: datetime) -> StoredRule:
    """A reason says that nobody chose to: Postroom had to."""
    if not before.enabled and (reason is None or before.disabled_reason == reason):
        return before
    values = {"enabled": False, "disabled_reason": None if reason is None else reason[:_LONGEST_REASON]}
    return _change(tx, before, values, "rule.disable", who, now)


def set_priority(tx: Tx, before: StoredRule, priority: int, who: Actor, now: datetime) -> StoredRule:
    return _change(tx, before, {"priority": priority}, "rule.move", who, now)


def disable_broken(tx: Tx, reasons: Mapping[str, str], seen: Mapping[str, str], now: datetime) -> list[str]:
    """Disable rules that turned out to be unusable, by id, if their stamps still are as seen. Returns their names."""
    tx.lock_table(rules)
    done = []
    for rule in list_rules(tx):
        if rule.id in reasons and rule.enabled and rule.stamp == seen.get(rule.id):
            disable_rule(tx, rule, reasons[rule.id], audit.SYSTEM, now)
            done.append(rule.name)
    return done


def disable_rules_using(tx: Tx, account_id: str, label_id: str, label_name: str, now: datetime) -> list[str]:
    """The label is gone from an account: no rule that looks at it or sets it stays on. Returns their names."""
    reason = f"Label '{label_name}' was deleted from Gmail"
    gone = {label_key(label_id), label_key(label_name)}
    tx.lock_table(rules)
    done = []
    for rule in list_rules(tx):
        if rule.enabled and rule.draft is not None and _concerns(rule.draft, account_id) and gone & _labels(rule.draft):
            disable_rule(tx, rule, reason, audit.SYSTEM, now)
            done.append(rule.name)
    return done


def _concerns(draft: RuleDraft, account_id: str) -> bool:
    return draft.scope.kind is not ScopeKind.ACCOUNT or draft.scope.ref == account_id


def _labels(draft: RuleDraft) -> frozenset[str]:
    return labels_in(rule_of("", draft).condition) | labels_named(draft.actions)


def _values(tx: Tx, draft: RuleDraft) -> dict[str, Any]:
    scope = resolved(tx, draft.scope)
    return {
        "name": draft.name,
        "scope": scope.kind,
        "scope_ref": scope.ref,
        "priority": draft.priority,
        "condition": dict(draft.condition),
        "actions": [wanted.to_json() for wanted in draft.actions],
        "unattended": draft.unattended,
        "enabled": draft.enabled,
        "disabled_reason": None,
    }


def _change(
    tx: Tx, before: StoredRule, values: Mapping[str, Any], action: str, who: Actor, now: datetime
) -> StoredRule:
    tx.lock_table(rules)
    here = (rules.c.id == before.id) & (stamp_column() == before.stamp)
    changed = tx.execute(update(rules).where(here).values(**values, updated_at=_stamp(tx, now)))
    if not changed.rowcount:
        raise _changed(before)
    after = rule_with_id(tx, before.id)
    audit.record(tx, who, action, ("rule", before.id), now, before=before.state(), after=after.state())
    return after


def _changed(rule: StoredRule) -> BadInput:
    return BadInput(f"rule {rule.name}", "was changed or removed by somebody else meanwhile; look at it again")


def _stamp(tx: Tx, now: datetime) -> datetime:
    """Later than every stamp in the table, whatever the clock says: so a change always shows in the version."""
    stamps = tx.execute(select(type_coerce(rules.c.updated_at, Text))).scalars().all()
    latest = max(map(instant, stamps), default=None)
    return now if latest is None or latest < now else latest + timedelta(microseconds=1)


def _refuse_name(tx: Tx, name: str, but: str | None = None) -> None:
    taken = tx.execute(select(columns()[0], rules.c.name))
    if any(row.name.lower() == name.lower() and row.id != but for row in taken):
        raise BadInput("name", f"there is a rule named {name!r} already")


Version = tuple[int, object, str | None]
"""Only good for comparison with another one."""


def version(tx: Tx) -> Version:
    """Changes with every change of the table, whichever process makes it."""
    latest_of_all = func.max(type_coerce(rules.c.updated_at, Text))
    query = select(func.count(), latest_of_all, func.max(columns()[0])).select_from(rules)
    count, latest, newest = tx.execute(query).one()
    return count, latest, newest


def load_changed(tx: Tx, known: Version | None) -> tuple[Version, Sequence[StoredRule]] | None:
    """The enabled rules with the version that they are of; None if that is known already."""
    current = version(tx)
    if current == known:
        return None
    return current, [rule for rule in list_rules(tx) if rule.enabled]

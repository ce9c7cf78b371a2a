"""Changes to the rules in the control database: add, edit, move, remove, and make the table equal a file.

Every change has an author, is audited, and is refused if the row changed since it was read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import Text, cast, delete, func, select, type_coerce, update

from postroom import audit
from postroom.accounts.account import list_accounts
from postroom.accounts.mailbox_state import DeletedLabel, former_names, label_ids_by_name
from postroom.audit import Actor
from postroom.db import Prepared, Tx
from postroom.db.tables.triage import rules
from postroom.domain.errors import BadInput, NotAllowed, NotFound
from postroom.domain.ids import new_id
from postroom.triage.rules.conditions import labels_in
from postroom.triage.rules.rows import StoredRule, columns, instant, resolved, rule_from_row, stamp_column
from postroom.triage.rules.rule import (
    MOST_RULES,
    RuleDraft,
    ScopeKind,
    labels_named,
    parse_priority,
    rule_of,
    with_renamed_labels,
)

_LONGEST_REASON = 500


def lock(tx: Tx) -> None:
    """Lock rules against other writers until this transaction ends."""
    tx.lock_table(rules)


def list_rules(tx: Tx) -> list[StoredRule]:
    """In the order in which they are tried."""
    rows = tx.execute(select(*columns()).order_by(rules.c.priority, rules.c.id))
    return [rule_from_row(row) for row in rows]


def rule_order(tx: Tx) -> list[str]:
    """The ids of all rules, in the order in which they are tried."""
    return list(tx.execute(select(cast(rules.c.id, Text)).order_by(rules.c.priority, rules.c.id)).scalars())


def rules_with_ids(tx: Tx, ids: Sequence[str]) -> list[StoredRule]:
    """In this order; those that do not exist are left out."""
    found = {row.id: row for row in tx.execute(select(*columns()).where(rules.c.id.in_(ids)))}
    return [rule_from_row(found[rule_id]) for rule_id in ids if rule_id in found]


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
        raise NotFound("rule", "there is no such rule; someone may have removed it")
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


PROPOSED = "proposed by "
"""What the reason of a rule begins with that is off because no one has accepted it yet."""
MOST_PROPOSED = 50


def propose_rule(tx: Tx, draft: RuleDraft, why: str, who: Actor, now: datetime) -> StoredRule:
    """Add a rule that is off until a person switches it on."""
    waiting = select(func.count()).select_from(rules).where(rules.c.disabled_reason.startswith(PROPOSED))
    if tx.execute(waiting).scalar_one() >= MOST_PROPOSED:
        raise NotAllowed(f"{MOST_PROPOSED} proposed rules need an answer first.")
    added = add_rule(tx, replace(draft, enabled=False, unattended=False), who, now)
    reason = f"{PROPOSED}{who.name}: {why}"[:_LONGEST_REASON]
    return _change(tx, added, {"disabled_reason": reason}, "rule.propose", who, now)


def edit_rule(tx: Tx, before: StoredRule, draft: RuleDraft, who: Actor, now: datetime) -> StoredRule:
    """Replace a rule with the draft, unless the rule changed since `before` was read."""
    tx.lock_table(rules)
    if draft.name != before.name:
        _refuse_name(tx, draft.name, but=before.id)
    values = _values(tx, draft)
    # A rule that Postroom disabled stays so, and keeps the reason, until it is enabled again.
    if not draft.enabled and not before.enabled:
        values["disabled_reason"] = before.disabled_reason
    if before.draft is not None and _labels(before.draft) == _labels(draft):
        values["off_for"] = dict(before.off_for)  # what it lacks in those mailboxes, it still lacks
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
    if before.enabled and not before.off_for:
        return before
    return _change(tx, before, {"enabled": True, "disabled_reason": None, "off_for": {}}, "rule.enable", who, now)


def disable_rule(tx: Tx, before: StoredRule, reason: str | None, who: Actor, now: datetime) -> StoredRule:
    """`reason` is given where Postroom disables the rule and not a person."""
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


def disable_rules_using(tx: Tx, account_id: str, label: DeletedLabel, now: datetime) -> list[str]:
    """The label is gone from an account: no rule that looks at it or sets it stays on there. Returns their names.

    A rule for several mailboxes stays on for the others.
    """
    accounts = {account.id: account.email for account in list_accounts(tx)}
    reason = f"Label '{label.name}' was deleted from Gmail ({accounts.get(account_id, account_id)})"
    tx.lock_table(rules)
    done = []
    for rule in list_rules(tx):
        if not rule.enabled or rule.draft is None or account_id in rule.off_for:
            continue
        if _concerns(rule.draft, account_id) and label.keys & _labels(rule.draft):
            _switch_off_for(tx, rule, account_id, reason, accounts, now)
            done.append(rule.name)
    return done


def _switch_off_for(
    tx: Tx, rule: StoredRule, account_id: str, reason: str, accounts: Collection[str], now: datetime
) -> None:
    off_for = {**rule.off_for, account_id: reason[:_LONGEST_REASON]}
    if rule.scope.kind is ScopeKind.ACCOUNT or off_for.keys() >= set(accounts):
        disable_rule(tx, rule, reason, audit.SYSTEM, now)
    else:
        _change(tx, rule, {"off_for": off_for}, "rule.disable", audit.SYSTEM, now)


def follow_renamed_labels(tx: Tx, account_id: str, now: datetime) -> list[str]:
    """Write the new names of the account's renamed labels into the rules that name the old ones. Returns their names.

    A rule keeps an old name that another of its mailboxes uses; in this mailbox it then stands for the renamed label.
    """
    names = former_names(tx, account_id)
    if not names:
        return []
    others = {each.id: label_ids_by_name(tx, each.id).keys() for each in list_accounts(tx) if each.id != account_id}
    tx.lock_table(rules)
    done = []
    for rule in list_rules(tx):
        if rule.draft is None or not _concerns(rule.draft, account_id):
            continue
        used = {name for each, known in others.items() if _concerns(rule.draft, each) for name in known}
        wanted = {old: names[old] for old in (_labels(rule.draft) & names.keys()) - used}
        if wanted and _rename_labels(tx, rule, rule.draft, wanted, now):
            done.append(rule.name)
    return done


def _rename_labels(tx: Tx, rule: StoredRule, draft: RuleDraft, names: Mapping[str, str], now: datetime) -> bool:
    try:
        renamed = with_renamed_labels(draft, names)
    except BadInput:  # its actions would contradict each other; the old name still leads to the label
        return False
    values = {"condition": renamed.condition, "actions": [wanted.to_json() for wanted in renamed.actions]}
    _change(tx, rule, values, "rule.follow_labels", audit.SYSTEM, now)
    return True


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
        "off_for": {},
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
    return BadInput(f"rule {rule.name}", "was changed or removed by someone else meanwhile; look at it again")


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


_VERSION = Prepared(
    select(func.count(), func.max(type_coerce(rules.c.updated_at, Text)), func.max(columns()[0])).select_from(rules)
)


def version(tx: Tx) -> Version:
    """Changes with every change of the table, whichever process makes it."""
    [(count, latest, newest)] = tx.run(_VERSION, {})
    return count, latest, newest


def load_changed(tx: Tx, known: Version | None) -> tuple[Version, Sequence[StoredRule]] | None:
    """The enabled rules with the version that they are of; None if that is known already."""
    current = version(tx)
    if current == known:
        return None
    return current, [rule for rule in list_rules(tx) if rule.enabled]


class MoveDirection(StrEnum):
    UP = "up"
    DOWN = "down"


def move_rule(tx: Tx, rule: StoredRule, direction: MoveDirection, who: Actor, now: datetime) -> StoredRule:
    """One place up or down; where it is the first or the last already, it stays there."""
    lock(tx)
    rule = rule_with_id(tx, rule.id)  # others may have removed it while this waited
    order = list_rules(tx)
    here = [each.id for each in order].index(rule.id)
    there = here + (1 if direction is MoveDirection.DOWN else -1)
    if not 0 <= there < len(order):
        return rule
    places = [each.priority for each in order]
    order[here], order[there] = order[there], order[here]
    for each, priority in zip(order, in_order(places, [each.id for each in order]), strict=True):
        if priority != each.priority:
            set_priority(tx, each, parse_priority(priority), who, now)
    return rule_with_id(tx, rule.id)


def in_order(priorities: Sequence[int], ids: Sequence[str]) -> list[int]:
    """The priorities, raised where it takes that to put the ids into this order: of equal ones the older is first."""
    found = list(priorities[:1])
    for priority, before_id, own_id in zip(priorities[1:], ids, ids[1:], strict=False):
        found.append(max(priority, found[-1] if own_id > before_id else found[-1] + 1))
    return found


@dataclass(frozen=True, slots=True)
class RuleFileChange:
    before: StoredRule
    after: RuleDraft

    @property
    def fields(self) -> tuple[str, ...]:
        """What is different."""
        was = self.before.draft
        if was is None:
            return ("everything",)
        names = ("name", "scope", "priority", "condition", "actions", "unattended", "enabled")
        return tuple(name for name in names if getattr(was, name) != getattr(self.after, name))


@dataclass(frozen=True, slots=True)
class RulesDifference:
    added: tuple[RuleDraft, ...]
    changed: tuple[RuleFileChange, ...]
    removed: tuple[StoredRule, ...]
    unchanged: int

    @property
    def is_empty(self) -> bool:
        return not (self.added or self.changed or self.removed)


def difference(stored: Sequence[StoredRule], drafts: Sequence[RuleDraft]) -> RulesDifference:
    """Rules are the same rule by their name, whatever its capitals."""
    by_name = {rule.name.lower(): rule for rule in stored}
    both = [RuleFileChange(by_name[draft.name.lower()], draft) for draft in drafts if draft.name.lower() in by_name]
    changed = tuple(change for change in both if change.fields)
    named = {draft.name.lower() for draft in drafts}
    return RulesDifference(
        added=tuple(draft for draft in drafts if draft.name.lower() not in by_name),
        changed=changed,
        removed=tuple(rule for rule in stored if rule.name.lower() not in named),
        unchanged=len(both) - len(changed),
    )


def _compare(tx: Tx, drafts: Sequence[RuleDraft]) -> RulesDifference:
    return difference(list_rules(tx), [replace(draft, scope=resolved(tx, draft.scope)) for draft in drafts])


def make_equal(tx: Tx, drafts: Sequence[RuleDraft], who: Actor, now: datetime) -> RulesDifference:
    """Make the table equal the file, in one transaction; what is the same already is not touched."""
    lock(tx)
    found = _compare(tx, drafts)
    for rule in found.removed:
        remove_rule(tx, rule, who, now)
    for change in found.changed:
        edit_rule(tx, change.before, change.after, who, now)
    for draft in found.added:
        add_rule(tx, draft, who, now)
    return found

"""The place of a rule among the others. Rules are tried by priority, then by age; moving one changes few numbers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum

from postroom.audit import Actor
from postroom.db import Tx
from postroom.triage.rules import store
from postroom.triage.rules.model import parse_priority
from postroom.triage.rules.rows import StoredRule


class Direction(StrEnum):
    UP = "up"
    DOWN = "down"


def move_rule(tx: Tx, rule: StoredRule, direction: Direction, who: Actor, now: datetime) -> StoredRule:
    """One place up or down; where it is the first or the last already, it stays there."""
    store.lock(tx)
    rule = store.rule_with_id(tx, rule.id)  # others may have removed it while this waited
    order = store.list_rules(tx)
    here = [each.id for each in order].index(rule.id)
    there = here + (1 if direction is Direction.DOWN else -1)
    if not 0 <= there < len(order):
        return rule
    places = [each.priority for each in order]
    order[here], order[there] = order[there], order[here]
    for each, priority in zip(order, in_order(places, [each.id for each in order]), strict=True):
        if priority != each.priority:
            store.set_priority(tx, each, parse_priority(priority), who, now)
    return store.rule_with_id(tx, rule.id)


def in_order(priorities: Sequence[int], ids: Sequence[str]) -> list[int]:
    """The priorities, raised where it takes that to put the ids into this order: of equal ones the older is first."""
    found = list(priorities[:1])
    for priority, before_id, own_id in zip(priorities[1:], ids, ids[1:], strict=False):
        found.append(max(priority, found[-1] if own_id > before_id else found[-1] + 1))
    return found

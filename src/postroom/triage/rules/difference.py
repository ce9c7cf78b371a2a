"""A file of rules beside the table: what would have to change for the table to equal the file, and doing it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from postroom.audit import Actor
from postroom.db import Tx
from postroom.triage.rules import store
from postroom.triage.rules.model import RuleDraft
from postroom.triage.rules.rows import StoredRule
from postroom.triage.scopes import resolved


@dataclass(frozen=True, slots=True)
class Change:
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
class Difference:
    added: tuple[RuleDraft, ...]
    changed: tuple[Change, ...]
    removed: tuple[StoredRule, ...]
    unchanged: int

    @property
    def is_empty(self) -> bool:
        return not (self.added or self.changed or self.removed)


def difference(stored: Sequence[StoredRule], drafts: Sequence[RuleDraft]) -> Difference:
    """Rules are the same rule by their name, whatever its capitals."""
    by_name = {rule.name.lower(): rule for rule in stored}
    both = [Change(by_name[draft.name.lower()], draft) for draft in drafts if draft.name.lower() in by_name]
    changed = tuple(change for change in both if change.fields)
    named = {draft.name.lower() for draft in drafts}
    return Difference(
        added=tuple(draft for draft in drafts if draft.name.lower() not in by_name),
        changed=changed,
        removed=tuple(rule for rule in stored if rule.name.lower() not in named),
        unchanged=len(both) - len(changed),
    )


def _compare(tx: Tx, drafts: Sequence[RuleDraft]) -> Difference:
    return difference(store.list_rules(tx), [replace(draft, scope=resolved(tx, draft.scope)) for draft in drafts])


def make_equal(tx: Tx, drafts: Sequence[RuleDraft], who: Actor, now: datetime) -> Difference:
    """Make the table equal the file, in one transaction; what is the same already is not touched."""
    store.lock(tx)
    found = _compare(tx, drafts)
    for rule in found.removed:
        store.remove_rule(tx, rule, who, now)
    for change in found.changed:
        store.edit_rule(tx, change.before, change.after, who, now)
    for draft in found.added:
        store.add_rule(tx, draft, who, now)
    return found

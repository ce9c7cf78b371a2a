"""Rules as the dashboard shows them: in the order in which they are tried, in words, and how often each was used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import dropwhile
from typing import Any

from sqlalchemy import func, literal, select

from postroom.actions.wording import wish
from postroom.dashboard.paging import Paged, paged
from postroom.dashboard.reading.counting import Bounded
from postroom.db import Tx
from postroom.db.tables.actions import FIRST_OF_A_RULE, actions
from postroom.db.tables.triage import labels, rules
from postroom.domain.errors import NotFound
from postroom.settings import SafetySettings
from postroom.triage.decision import Source
from postroom.triage.rules.files import written_rule
from postroom.triage.rules.model import RuleDraft
from postroom.triage.rules.rows import StoredRule
from postroom.triage.rules.store import list_rules, rule_with_id
from postroom.triage.rules.wording import in_words, scope_in_words
from postroom.triage.safety import reasons_for
from postroom.triage.scopes import account_addresses, rule_named

PAGE = 50
_COUNTED = 100
_MOST_LABELS = 500


@dataclass(frozen=True, slots=True)
class Deed:
    """One action of a rule."""

    text: str
    waits_because: Sequence[str]
    """Why it waits for a person's approval each time; empty where it is done at once."""


@dataclass(frozen=True, slots=True)
class Uses:
    times: Bounded
    last: datetime | None


@dataclass(frozen=True, slots=True)
class RuleRow:
    id: str
    number: int
    """Its place in the order, from 1."""
    name: str
    scope: str
    """As it is written: `global`, `account:E`, `domain:D` or `sender:A`."""
    whose_mail: str
    """The scope in words."""
    priority: int
    asks: str | None
    """The condition in words; null where what is stored cannot be read."""
    condition: Mapping[str, Any] | None
    deeds: Sequence[Deed]
    actions: Sequence[Mapping[str, Any]]
    unattended: bool
    enabled: bool
    disabled_reason: str | None
    """Why Postroom switched it off."""
    problem: str | None
    """Why it cannot be used."""
    uses: Uses
    created_at: datetime
    updated_at: datetime
    stamp: str
    """Sent with a change, it makes sure that nobody else has changed the rule meanwhile."""


@dataclass(frozen=True, slots=True)
class RulePage:
    items: Sequence[RuleRow]
    next: str | None
    """Asks for the page after this one, as `after`; null on the last."""
    total: int


@dataclass(frozen=True, slots=True)
class Known:
    """What the editor suggests."""

    accounts: Sequence[str]
    labels: Sequence[str]


def rules_page(tx: Tx, safety: SafetySettings, after: str | None = None, limit: int = PAGE) -> RulePage:
    """In the order in which they are tried."""
    numbered = list(enumerate(list_rules(tx), 1))
    left = numbered if after is None else _beyond(numbered, after)
    page: Paged[tuple[int, StoredRule]] = paged(left[: limit + 1], limit, lambda pair: pair[1].id)
    addresses = account_addresses(tx)
    uses = _uses(tx, [rule.id for _, rule in page.items])
    items = [_row(number, rule_named(rule, addresses), safety, uses[rule.id]) for number, rule in page.items]
    return RulePage(items, page.next, len(numbered))


def rule_row(tx: Tx, rule_id: str, safety: SafetySettings) -> RuleRow:
    number, rule = _find(tx, rule_id)
    return _row(number, rule, safety, _uses(tx, [rule.id])[rule.id])


def stored_rule(tx: Tx, rule_id: str) -> StoredRule:
    """With accounts by their addresses, as people write them."""
    return rule_named(rule_with_id(tx, rule_id), account_addresses(tx))


def rule_names(tx: Tx) -> dict[str, str]:
    return {row.id: row.name for row in tx.execute(select(rules.c.id, rules.c.name))}


def known_names(tx: Tx) -> Known:
    found = tx.execute(select(labels.c.name).distinct().order_by(labels.c.name).limit(_MOST_LABELS)).scalars()
    return Known(sorted(account_addresses(tx).values()), list(found))


def deeds_of(draft: RuleDraft, safety: SafetySettings) -> list[Deed]:
    """What it would do, and what of it would wait for approval."""
    return [
        Deed(wish(wanted), tuple(reasons_for(wanted, Source.RULE, 1.0, safety, unattended=draft.unattended)))
        for wanted in draft.actions
    ]


def written(rule: StoredRule) -> str | None:
    """As it would stand in a file."""
    return None if rule.draft is None else written_rule(rule.draft)


def _find(tx: Tx, rule_id: str) -> tuple[int, StoredRule]:
    for number, rule in enumerate(list_rules(tx), 1):
        if rule.id == rule_id:
            return number, rule_named(rule, account_addresses(tx))
    raise NotFound("rule", "there is no such rule; somebody may have removed it")


def _beyond(numbered: list[tuple[int, StoredRule]], after: str) -> list[tuple[int, StoredRule]]:
    found = list(dropwhile(lambda pair: pair[1].id != after, numbered))
    if not found:
        raise NotFound("after", "the rule that the page before ended with is gone; begin again at the first page")
    return found[1:]


def _row(number: int, rule: StoredRule, safety: SafetySettings, uses: Uses) -> RuleRow:
    draft = rule.draft
    return RuleRow(
        id=rule.id,
        number=number,
        name=rule.name,
        scope=str(rule.scope),
        whose_mail=scope_in_words(rule.scope),
        priority=rule.priority,
        asks=None if draft is None else in_words(draft.condition),
        condition=None if draft is None else dict(draft.condition),
        deeds=[] if draft is None else deeds_of(draft, safety),
        actions=[] if draft is None else [wanted.to_json() for wanted in draft.actions],
        unattended=rule.unattended,
        enabled=rule.enabled,
        disabled_reason=rule.disabled_reason,
        problem=rule.problem,
        uses=uses,
        created_at=rule.created_at,
        updated_at=rule.updated_at,
        stamp=rule.stamp,
    )


def _uses(tx: Tx, rule_ids: Sequence[str]) -> dict[str, Uses]:
    """How many messages each decided about, counted by the first thing that it wanted done with each."""
    mine = actions.c.rule_id == rules.c.id, FIRST_OF_A_RULE
    some = select(literal(1)).select_from(actions).where(*mine).limit(_COUNTED + 1).correlate(rules).subquery()
    count = select(func.count()).select_from(some).scalar_subquery()
    last = select(func.max(actions.c.created_at)).where(*mine).scalar_subquery()
    rows = tx.execute(select(rules.c.id, count, last).where(rules.c.id.in_(rule_ids)))
    found = {rule_id: Uses(Bounded(min(times, _COUNTED), times > _COUNTED), when) for rule_id, times, when in rows}
    removed_meanwhile = Uses(Bounded(0, is_more=False), None)
    return {rule_id: found.get(rule_id, removed_meanwhile) for rule_id in rule_ids}

"""Rules as the dashboard shows and tries them. A trial runs a rule over the newest
mail of the archive and changes nothing; it is bounded in messages and time, and one runs at a time off the event loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import func, literal, select

from postroom.actions.wording import wish
from postroom.dashboard.context import RequestContext
from postroom.dashboard.mail.search import NamedAddress, sender_of
from postroom.dashboard.paging import BoundedCount, ListQuery, paged, row_before
from postroom.db import Tx
from postroom.db.tables.triage import FIRST_OF_A_RULE, actions, labels, rules
from postroom.domain.errors import BadInput
from postroom.settings import SafetySettings
from postroom.triage.decision import DecidedBy
from postroom.triage.rules.files import written_rule
from postroom.triage.rules.rows import StoredRule, account_addresses, rule_named
from postroom.triage.rules.rule import RuleDraft
from postroom.triage.rules.store import PROPOSED, rule_order, rule_with_id, rules_with_ids
from postroom.triage.rules.trial import TrialHit, TrialSubject, replay_newest, subject_of
from postroom.triage.rules.wording import in_words, scope_in_words
from postroom.triage.safety import reasons_for

_COUNTED = 100
_MOST_LABELS = 500


@dataclass(frozen=True, slots=True)
class RuleEffect:
    """One action of a rule."""

    text: str
    waits_because: Sequence[str]
    """Why it needs approval each time; empty if it is done at once."""


@dataclass(frozen=True, slots=True)
class RuleUses:
    times: BoundedCount
    last: datetime | None


@dataclass(frozen=True, slots=True)
class RuleRow:
    id: str
    number: int
    """Its place in the order, from 1."""
    name: str
    scope: str
    """`global`, `account:E`, `domain:D` or `sender:A`."""
    whose_mail: str
    """The scope in words."""
    priority: int
    condition_text: str | None
    """The condition in words; null if the stored one cannot be read."""
    condition: Mapping[str, Any] | None
    effects: Sequence[RuleEffect]
    actions: Sequence[Mapping[str, Any]]
    unattended: bool
    enabled: bool
    disabled_reason: str | None
    """Why Postroom switched it off, or who proposed it."""
    off_for: Sequence[str]
    """Why Postroom switched it off for some mailboxes, which each reason names."""
    is_proposed: bool
    """It was never on: an assistant proposes it."""
    problem: str | None
    """Why it cannot be used."""
    uses: RuleUses
    created_at: datetime
    updated_at: datetime
    stamp: str
    """Send it with a change, which is refused if the rule was changed since."""


@dataclass(frozen=True, slots=True)
class RulePage:
    items: Sequence[RuleRow]
    next: str | None
    """The `after` of the next page; null on the last."""
    total: int


@dataclass(frozen=True, slots=True)
class NameSuggestions:
    """What the editor suggests."""

    accounts: Sequence[str]
    labels: Sequence[str]


def rules_page(tx: Tx, safety: SafetySettings, wanted: ListQuery) -> RulePage:
    """In the order in which they are tried."""
    order = rule_order(tx)
    last = row_before(tx, rules, wanted.after)
    start = 0 if last is None else order.index(last.id) + 1
    page = paged(order[start : start + wanted.limit + 1], wanted.limit, str)
    addresses = account_addresses(tx)
    uses = _uses(tx, page.items)
    found = enumerate(rules_with_ids(tx, page.items), start + 1)
    items = [_row(number, rule_named(rule, addresses), safety, uses[rule.id]) for number, rule in found]
    return RulePage(items, page.next, len(order))


def rule_row(tx: Tx, rule_id: str, safety: SafetySettings) -> RuleRow:
    rule = stored_rule(tx, rule_id)
    return _row(rule_order(tx).index(rule.id) + 1, rule, safety, _uses(tx, [rule.id])[rule.id])


def stored_rule(tx: Tx, rule_id: str) -> StoredRule:
    """With accounts named by their addresses, as people write them."""
    return rule_named(rule_with_id(tx, rule_id), account_addresses(tx))


def rule_names(tx: Tx) -> dict[str, str]:
    return {row.id: row.name for row in tx.execute(select(rules.c.id, rules.c.name))}


def name_suggestions(tx: Tx) -> NameSuggestions:
    found = tx.execute(select(labels.c.name).distinct().order_by(labels.c.name).limit(_MOST_LABELS)).scalars()
    return NameSuggestions(sorted(account_addresses(tx).values()), list(found))


def effects_of(draft: RuleDraft, safety: SafetySettings) -> list[RuleEffect]:
    """What it would do, and which of its actions would need approval."""
    return [
        RuleEffect(wish(wanted), tuple(reasons_for(wanted, DecidedBy.RULE, 1.0, safety, unattended=draft.unattended)))
        for wanted in draft.actions
    ]


def written(rule: StoredRule) -> str | None:
    """As it is written in a file of rules."""
    return None if rule.draft is None else written_rule(rule.draft)


def _row(number: int, rule: StoredRule, safety: SafetySettings, uses: RuleUses) -> RuleRow:
    draft = rule.draft
    return RuleRow(
        id=rule.id,
        number=number,
        name=rule.name,
        scope=str(rule.scope),
        whose_mail=scope_in_words(rule.scope),
        priority=rule.priority,
        condition_text=None if draft is None else in_words(draft.condition),
        condition=None if draft is None else dict(draft.condition),
        effects=[] if draft is None else effects_of(draft, safety),
        actions=[] if draft is None else [wanted.to_json() for wanted in draft.actions],
        unattended=rule.unattended,
        enabled=rule.enabled,
        disabled_reason=rule.disabled_reason,
        off_for=list(rule.off_for.values()),
        is_proposed=(rule.disabled_reason or "").startswith(PROPOSED),
        problem=rule.problem,
        uses=uses,
        created_at=rule.created_at,
        updated_at=rule.updated_at,
        stamp=rule.stamp,
    )


def _uses(tx: Tx, rule_ids: Sequence[str]) -> dict[str, RuleUses]:
    """How many messages each rule decided, counted by the first action for each message."""
    mine = actions.c.rule_id == rules.c.id, FIRST_OF_A_RULE
    some = select(literal(1)).select_from(actions).where(*mine).limit(_COUNTED + 1).correlate(rules).subquery()
    count = select(func.count()).select_from(some).scalar_subquery()
    last = select(func.max(actions.c.created_at)).where(*mine).scalar_subquery()
    rows = tx.execute(select(rules.c.id, count, last).where(rules.c.id.in_(rule_ids)))
    found = {
        rule_id: RuleUses(BoundedCount(min(times, _COUNTED), times > _COUNTED), when) for rule_id, times, when in rows
    }
    removed_meanwhile = RuleUses(BoundedCount(0, is_more=False), None)
    return {rule_id: found.get(rule_id, removed_meanwhile) for rule_id in rule_ids}


TRIAL_SIZES = (1_000, 10_000, 100_000)
"""How many of the newest messages a trial may check."""
_LONGEST_S = 4.0
_SAMPLES = 20


@dataclass(frozen=True, slots=True)
class TrialSample:
    account: str
    key: str
    date: datetime
    sender: NamedAddress
    subject: str


@dataclass(frozen=True, slots=True)
class TrialResult:
    looked_at: int
    own: int
    """Messages that the owner wrote; rules do not apply to them."""
    unreadable: int
    matched: int
    is_cut_short: bool
    """It took too long and stopped before checking all of them."""
    samples: Sequence[TrialSample]
    """The newest that match."""
    effects: Sequence[RuleEffect]
    """What would be done with each; empty if the rule has no actions yet."""


async def run_trial(here: RequestContext, draft: RuleDraft, newest: int, *, has_actions: bool = True) -> TrialResult:
    subject = await here.read(lambda tx: subject_of(tx, "tried", draft))
    return await _trial_of(here, draft, subject, newest, has_actions=has_actions)


async def _trial_of(
    here: RequestContext, draft: RuleDraft, subject: TrialSubject, newest: int, *, has_actions: bool = True
) -> TrialResult:
    async with here.services.trial_slot:
        trial, is_cut_short = await here.services.shared.archive.read_apart(
            lambda archive: replay_newest(subject, archive, here.now, newest, keep=_SAMPLES, longest_s=_LONGEST_S)
        )
    return TrialResult(
        looked_at=trial.looked_at,
        own=trial.own,
        unreadable=trial.unreadable,
        matched=trial.total,
        is_cut_short=is_cut_short,
        samples=[_sample(hit) for hit in trial.hits],
        effects=effects_of(draft, here.app.settings.safety) if has_actions else [],
    )


def _sample(hit: TrialHit) -> TrialSample:
    mail = hit.message
    return TrialSample(mail.account, mail.key, mail.date, sender_of(mail.sender), mail.subject)


async def try_stored(here: RequestContext, rule_id: str, newest: int) -> TrialResult:
    draft, subject = await here.read(lambda tx: _to_try(tx, rule_id))
    return await _trial_of(here, draft, subject, newest)


def _to_try(tx: Tx, rule_id: str) -> tuple[RuleDraft, TrialSubject]:
    stored = stored_rule(tx, rule_id)
    if stored.draft is None:
        raise BadInput("rule", stored.problem or "cannot be read")
    return stored.draft, subject_of(tx, "tried", stored.draft)

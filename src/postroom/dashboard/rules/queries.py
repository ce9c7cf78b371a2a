"""Rules as the dashboard shows, changes and tries them.

A change is refused if the rule was changed since the page or program read it. A trial runs a rule over the newest
mail of the archive and changes nothing; it is bounded in messages and time, and runs one at a time off the event
loop.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import dropwhile, islice, takewhile
from typing import Any

from sqlalchemy import func, literal, select

from postroom.actions.wording import wish
from postroom.archive.backend import MailReader
from postroom.audit import Actor
from postroom.dashboard.context import RequestContext
from postroom.dashboard.forms import Form
from postroom.dashboard.mail.search import NamedAddress, sender_of
from postroom.dashboard.paging import BoundedCount, Paged, paged
from postroom.dashboard.security.proof import SensitiveChange, require_proof
from postroom.db import Tx
from postroom.db.tables.triage import FIRST_OF_A_RULE, actions, labels, rules
from postroom.domain.errors import NotFound
from postroom.settings import SafetySettings
from postroom.triage import guidance
from postroom.triage.decision import DecidedBy
from postroom.triage.guidance import Direction, StoredModelRule, changed_meanwhile
from postroom.triage.rules import store
from postroom.triage.rules.files import written_rule
from postroom.triage.rules.rows import StoredRule, account_addresses, rule_named
from postroom.triage.rules.rule import RuleDraft
from postroom.triage.rules.store import list_rules, rule_with_id
from postroom.triage.rules.trial import Trial, TrialHit, TrialSubject, mail_to_try, replay, subject_of
from postroom.triage.rules.wording import in_words, scope_in_words
from postroom.triage.safety import acts_alone, reasons_for

PAGE = 50
_COUNTED = 100
_MOST_LABELS = 500


@dataclass(frozen=True, slots=True)
class RuleEffect:
    """One action of a rule."""

    text: str
    waits_because: Sequence[str]
    """Why it waits for a person's approval each time; empty where it is done at once."""


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
    """As it is written: `global`, `account:E`, `domain:D` or `sender:A`."""
    whose_mail: str
    """The scope in words."""
    priority: int
    asks: str | None
    """The condition in words; null where what is stored cannot be read."""
    condition: Mapping[str, Any] | None
    deeds: Sequence[RuleEffect]
    actions: Sequence[Mapping[str, Any]]
    unattended: bool
    enabled: bool
    disabled_reason: str | None
    """Why Postroom switched it off."""
    problem: str | None
    """Why it cannot be used."""
    uses: RuleUses
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
class NameSuggestions:
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


def name_suggestions(tx: Tx) -> NameSuggestions:
    found = tx.execute(select(labels.c.name).distinct().order_by(labels.c.name).limit(_MOST_LABELS)).scalars()
    return NameSuggestions(sorted(account_addresses(tx).values()), list(found))


def effects_of(draft: RuleDraft, safety: SafetySettings) -> list[RuleEffect]:
    """What it would do, and what of it would wait for approval."""
    return [
        RuleEffect(wish(wanted), tuple(reasons_for(wanted, DecidedBy.RULE, 1.0, safety, unattended=draft.unattended)))
        for wanted in draft.actions
    ]


def written(rule: StoredRule) -> str | None:
    """As it would stand in a file."""
    return None if rule.draft is None else written_rule(rule.draft)


def _find(tx: Tx, rule_id: str) -> tuple[int, StoredRule]:
    for number, rule in enumerate(list_rules(tx), 1):
        if rule.id == rule_id:
            return number, rule_named(rule, account_addresses(tx))
    raise NotFound("rule", "there is no such rule; someone may have removed it")


def _beyond(numbered: list[tuple[int, StoredRule]], after: str) -> list[tuple[int, StoredRule]]:
    found = list(dropwhile(lambda pair: pair[1].id != after, numbered))
    if not found:
        raise NotFound("after", "the rule that the page before ended with is gone; begin again at the first page")
    return found[1:]


def _row(number: int, rule: StoredRule, safety: SafetySettings, uses: RuleUses) -> RuleRow:
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
        deeds=[] if draft is None else effects_of(draft, safety),
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


def _uses(tx: Tx, rule_ids: Sequence[str]) -> dict[str, RuleUses]:
    """How many messages each decided about, counted by the first thing that it wanted done with each."""
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
"""So many of the newest messages may be looked at."""
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
    """Passed over, because the owner wrote them."""
    unreadable: int
    matched: int
    is_cut_short: bool
    """It took too long; there is mail that was not looked at."""
    samples: Sequence[TrialSample]
    """The newest that match."""
    deeds: Sequence[RuleEffect]
    """What would be done with each; empty where the rule does not say yet."""


async def run_trial(here: RequestContext, draft: RuleDraft, newest: int, *, says_what: bool = True) -> TrialResult:
    subject = await here.read(lambda tx: subject_of(tx, "tried", draft))
    async with here.desk.trials:
        trial, is_cut_short = await here.desk.house.archive.read_apart(
            lambda archive: _replayed(archive, subject, here.now, newest)
        )
    return TrialResult(
        looked_at=trial.looked_at,
        own=trial.own,
        unreadable=trial.unreadable,
        matched=trial.total,
        is_cut_short=is_cut_short,
        samples=[_sample(hit) for hit in trial.hits],
        deeds=effects_of(draft, here.app.settings.safety) if says_what else [],
    )


def _replayed(archive: MailReader, subject: TrialSubject, now: datetime, newest: int) -> tuple[Trial, bool]:
    trial, end = Trial(), time.monotonic() + _LONGEST_S
    in_time = takewhile(lambda _: time.monotonic() < end, archive.newest_first())  # spam takes its time too
    mail = islice(mail_to_try(in_time), newest)
    replay(subject, archive, mail, now, trial, keep=_SAMPLES)
    return trial, time.monotonic() >= end


def _sample(hit: TrialHit) -> TrialSample:
    mail = hit.message
    return TrialSample(mail.account, mail.key, mail.date, sender_of(mail.sender), mail.subject)


async def require_rule_proof(here: RequestContext, draft: RuleDraft | None, form: Form | None = None) -> None:
    """A rule that sends or destroys without approval is saved and switched on only with the passphrase."""
    if draft is not None and acts_alone(draft.actions, here.app.settings.safety, unattended=draft.unattended):
        await require_proof(here, SensitiveChange.UNATTENDED_RULE, form)


async def require_switch_proof(here: RequestContext, rule_id: str, form: Form | None = None) -> None:
    await require_rule_proof(here, (await here.read(lambda tx: store.rule_with_id(tx, rule_id))).draft, form)


def edit_rule(tx: Tx, rule_id: str, stamp: str | None, draft: RuleDraft, who: Actor, now: datetime) -> StoredRule:
    return store.edit_rule(tx, _as_seen(tx, rule_id, stamp), draft, who, now)


def remove_rule(tx: Tx, rule_id: str, stamp: str | None, who: Actor, now: datetime) -> StoredRule:
    rule = _as_seen(tx, rule_id, stamp)
    store.remove_rule(tx, rule, who, now)
    return rule


def switch_rule(tx: Tx, rule_id: str, who: Actor, now: datetime, *, on: bool) -> StoredRule:
    rule = store.rule_with_id(tx, rule_id)
    return store.enable_rule(tx, rule, who, now) if on else store.disable_rule(tx, rule, None, who, now)


def edit_direction(
    tx: Tx, direction_id: str, seen: datetime | None, changes: Mapping[str, Any], who: Actor, now: datetime
) -> Direction:
    before = guidance.direction_with_id(tx, direction_id)
    if seen not in (None, before.updated_at):
        raise changed_meanwhile("direction")
    return guidance.change_direction(tx, before, changes, who, now)


def remove_direction(tx: Tx, direction_id: str, who: Actor, now: datetime) -> Direction:
    before = guidance.direction_with_id(tx, direction_id)
    guidance.remove_direction(tx, before, who, now)
    return before


def edit_guidance(
    tx: Tx, guidance_id: str, seen: datetime | None, changes: Mapping[str, Any], who: Actor, now: datetime
) -> StoredModelRule:
    before = guidance.model_rule_with_id(tx, guidance_id)
    if seen not in (None, before.updated_at):
        raise changed_meanwhile(f"guidance {before.name}")
    return guidance.change_model_rule(tx, before, changes, who, now)


def remove_guidance(tx: Tx, guidance_id: str, who: Actor, now: datetime) -> StoredModelRule:
    before = guidance.model_rule_with_id(tx, guidance_id)
    guidance.remove_model_rule(tx, before, who, now)
    return before


def _as_seen(tx: Tx, rule_id: str, stamp: str | None) -> StoredRule:
    rule = store.rule_with_id(tx, rule_id)
    if stamp not in (None, rule.stamp):
        raise changed_meanwhile(f"rule {rule.name}")
    return rule

"""Rules that the owner's own decisions suggest: the same action for mail of one sender, mailing list or domain, ordered
by hand or approved, again and again and never otherwise; and a rule about such mail, made from one decision.

`suggest` is pure; `read_suggestions` gives it the newest decisions, and a dismissed suggestion is never made again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import Row, and_, or_, select

from postroom import audit
from postroom.audit import Actor
from postroom.db import Tx
from postroom.db.tables.mail import messages
from postroom.db.tables.triage import action_links, actions, dismissed_suggestions
from postroom.domain.actions import (
    FOR_GOOD,
    ActionStatus,
    ActionType,
    ForwardParameters,
    LabelParameters,
    Origin,
    SnoozeParameters,
    WantedAction,
    parse_action,
)
from postroom.domain.errors import BadInput, NotFound
from postroom.mail.header_features import FREEMAIL, split_domain
from postroom.settings import SafetySettings
from postroom.triage.decision import DecidedBy
from postroom.triage.rules.facts import stored_facts
from postroom.triage.rules.rule import LONGEST_NAME, RuleDraft, parse_fields
from postroom.triage.rules.store import list_rules
from postroom.triage.safety import reasons_for


class KindOf(StrEnum):
    SENDER = "sender"
    LIST = "list_id"
    DOMAIN = "sender_domain"


@dataclass(frozen=True, slots=True)
class MailKind:
    """Mail that a rule can name."""

    of: KindOf
    value: str
    """An address, the id of a mailing list, or a domain."""

    @property
    def condition(self) -> dict[str, Any]:
        return {str(self.of): self.value}


def kinds_of(senders: Sequence[str], list_id: str | None) -> list[MailKind]:
    """What a message is one of, the narrowest kind first. A domain where anyone can have an address is no kind, and
    mail with several senders is no single sender's."""
    found = [MailKind(KindOf.LIST, list_id)] if list_id else []
    if len(senders) != 1:
        return found
    domain = senders[0].rpartition("@")[2]
    found.insert(0, MailKind(KindOf.SENDER, senders[0]))
    if domain and split_domain(domain)[0] not in FREEMAIL:
        found.append(MailKind(KindOf.DOMAIN, domain))
    return found


def can_repeat(wanted: WantedAction) -> bool:
    """Whether the same action makes sense for other mail: not a reply, whose text answers one message, not leaving a
    list, which is done once, and not a snooze until a certain day."""
    if isinstance(wanted.parameters, SnoozeParameters):
        return wanted.parameters.until is None
    return wanted.type not in (ActionType.AUTO_REPLY, ActionType.UNSUBSCRIBE)


def rule_about(kind: MailKind, wanted: WantedAction, safety: SafetySettings, taken: Collection[str] = ()) -> RuleDraft:
    """The rule that does this with all such mail, without asking where rules may do so. `taken` are names in use."""
    needs_asking = bool(reasons_for(wanted, DecidedBy.RULE, 1.0, safety))
    data = {
        "name": _unused(f"{_short(wanted)}: {kind.value}", taken),
        "condition": kind.condition,
        "actions": [wanted.to_json()],
        "unattended": needs_asking,
    }
    return parse_fields(data)


def _unused(name: str, taken: Collection[str]) -> str:
    name = "".join(char if char.isprintable() else " " for char in name)[: LONGEST_NAME - 6]
    numbered = (f"{name} ({number})" for number in range(2, len(taken) + 3))
    return name if name not in taken else next(each for each in numbered if each not in taken)


def _short(wanted: WantedAction) -> str:
    match wanted.parameters:
        case LabelParameters(label=label):
            return f"Label {label}" if wanted.type is ActionType.APPLY_LABEL else f"Remove label {label}"
        case ForwardParameters(to=to):
            return f"Forward to {to[0]}"
        case _:
            return _SHORT.get(wanted.type, str(wanted.type).replace("_", " ").capitalize())


_SHORT = {ActionType.RESTORE: "Keep out of the trash"}


LEAST = 3
"""Messages that the owner treated alike before a rule is suggested."""
MOST_SHOWN = 10
_NEWEST = 5_000
"""Actions among which the owner's decisions are looked for."""
_MOST_DECISIONS = 500
_PLACES = frozenset({ActionType.ARCHIVE, ActionType.TRASH, ActionType.SNOOZE})
"""Where a message goes: of these only one can be right for a kind of mail."""
_AGREED = frozenset({ActionStatus.QUEUED, ActionStatus.EXECUTING, ActionStatus.COMPLETED})


@dataclass(frozen=True, slots=True)
class OwnDecision:
    """What the owner ordered, approved or refused for one message."""

    kind: MailKind
    wanted: WantedAction
    message: str
    subject: str | None
    agrees: bool
    """False: rejected, or undone."""


@dataclass(frozen=True, slots=True)
class SuggestedRule:
    key: str
    """The same suggestion has the same key whenever it is made."""
    draft: RuleDraft
    times: int
    subjects: Sequence[str]
    """Of some of the messages, the newest first."""


def suggest(
    decided: Iterable[OwnDecision],
    safety: SafetySettings,
    existing: Collection[tuple[str, str]] = (),
    dismissed: Collection[str] = (),
    taken: Collection[str] = (),
) -> list[SuggestedRule]:
    """The most frequent first. `existing` are conditions and actions of rules there are, as `signature` writes them;
    `taken` are names in use. Nothing that cannot be undone is suggested."""
    by_kind: dict[MailKind, list[OwnDecision]] = {}
    for each in decided:
        by_kind.setdefault(each.kind, []).append(each)
    found = [
        SuggestedRule(key, rule_about(kind, wanted, safety, taken), len(agreed), _subjects(agreed))
        for kind, about_it in by_kind.items()
        for wanted, agreed in _repeated(about_it)
        if (key := key_of(kind, wanted)) not in dismissed and signature(kind.condition, wanted) not in existing
    ]
    return sorted(found, key=lambda each: (-each.times, each.draft.name))


def _repeated(about_it: Sequence[OwnDecision]) -> Iterable[tuple[WantedAction, dict[str, OwnDecision]]]:
    """Each action that was agreed to often enough, with the messages, and that nothing speaks against."""
    actions: dict[str, list[OwnDecision]] = {}
    for each in about_it:
        actions.setdefault(_written(each.wanted), []).append(each)
    for same in actions.values():
        wanted, agreed = same[0].wanted, {each.message: each for each in same if each.agrees}
        is_clear = all(each.agrees for each in same) and not any(_contradicts(each, wanted) for each in about_it)
        if len(agreed) >= LEAST and is_clear and wanted.type not in FOR_GOOD and can_repeat(wanted):
            yield wanted, agreed


def _contradicts(other: OwnDecision, wanted: WantedAction) -> bool:
    """Other mail of the kind went elsewhere."""
    return other.agrees and {other.wanted.type, wanted.type} <= _PLACES and other.wanted != wanted


def _subjects(agreed: Mapping[str, OwnDecision]) -> list[str]:
    return [each.subject or "(no subject)" for each in agreed.values()][:3]


def _written(wanted: WantedAction) -> str:
    return json.dumps(wanted.to_json(), sort_keys=True)


def signature(condition: Mapping[str, Any], wanted: WantedAction) -> tuple[str, str]:
    return json.dumps(condition, sort_keys=True), _written(wanted)


def key_of(kind: MailKind, wanted: WantedAction) -> str:
    return hashlib.sha256(json.dumps(signature(kind.condition, wanted)).encode()).hexdigest()[:32]


def read_suggestions(tx: Tx, safety: SafetySettings) -> list[SuggestedRule]:
    """At most ten, from the newest decisions of the owner."""
    decided = _decided(tx)
    if not decided:
        return []  # without reading every rule
    rules = list_rules(tx)
    existing = {signature(rule.draft.condition, each) for rule in rules if rule.draft for each in rule.draft.actions}
    dismissed = set(tx.execute(select(dismissed_suggestions.c.key)).scalars())
    return suggest(decided, safety, existing, dismissed, {rule.name for rule in rules})[:MOST_SHOWN]


def find_suggestion(tx: Tx, safety: SafetySettings, key: str) -> SuggestedRule:
    for each in read_suggestions(tx, safety):
        if each.key == key:
            return each
    raise NotFound("suggestion", "is no longer made; it may have been accepted or dismissed")


def dismiss(tx: Tx, suggestion: SuggestedRule, who: Actor, now: datetime) -> None:
    row = {"key": suggestion.key, "dismissed_by": f"{who.role} {who.name}", "dismissed_at": now}
    tx.insert_missing(dismissed_suggestions, row)
    about = {"name": suggestion.draft.name, "condition": dict(suggestion.draft.condition)}
    audit.record(tx, who, "suggestion.dismiss", ("suggestion", suggestion.key), now, before=about)


def _decided(tx: Tx) -> list[OwnDecision]:
    """The newest first."""
    columns = (actions.c.id, actions.c.account_id, actions.c.message_id, actions.c.type, actions.c.parameters)
    state = (actions.c.status, actions.c.origin, actions.c.answered_by, actions.c.created_at)
    newest = select(*columns, *state).order_by(actions.c.id.desc()).limit(_NEWEST).subquery()
    undone = select(action_links.c.effect_action_id).where(action_links.c.effect_action_id == newest.c.id).exists()
    mail = (messages.c.sender_identity, messages.c.headers, messages.c.subject)
    approved = and_(newest.c.origin == Origin.MODEL, newest.c.answered_by.is_not(None))
    query = (
        select(newest, *mail, undone.label("undone"))
        .join(messages, messages.c.id == newest.c.message_id)
        .where(or_(newest.c.origin == Origin.PERSON, approved))
        .order_by(newest.c.id.desc())
        .limit(_MOST_DECISIONS)
    )
    return [found for row in tx.execute(query) if (found := _decision(row)) is not None]


def _decision(row: Row[Any]) -> OwnDecision | None:
    """None where it says nothing about a kind of mail."""
    status = ActionStatus(row.status)
    if status not in _AGREED and status is not ActionStatus.REJECTED:
        return None
    try:
        wanted = parse_action(row.type, row.parameters)
    except BadInput:  # files of a reply are outlined once it is stored
        return None
    facts = stored_facts(
        account_id=row.account_id,
        sender=row.sender_identity,
        subject=row.subject,
        headers=row.headers,
        labels=(),
        has_attachment=False,
        size_bytes=None,
        received_at=row.created_at,
    )
    kinds = {each.of: each for each in kinds_of(facts.senders, facts.list_id)}
    kind = kinds.get(KindOf.LIST) or kinds.get(KindOf.SENDER)
    agrees = status in _AGREED and not row.undone
    return None if kind is None else OwnDecision(kind, wanted, row.message_id, row.subject, agrees)

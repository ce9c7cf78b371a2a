"""What the model is told in the owner's words: directions for all mail, guidance for mail of a scope."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from postroom.db import Tx
from postroom.triage import guidance_store
from postroom.triage.guidance_store import Direction, StoredModelRule
from postroom.triage.rules.wording import scope_in_words
from postroom.triage.scopes import account_addresses, named


@dataclass(frozen=True, slots=True)
class DirectionRow:
    id: str
    number: int
    """Its place in the order in which the model reads them, from 1."""
    text: str
    enabled: bool
    updated_at: datetime
    """Sent with a change as `seen`, it makes sure that nobody else has changed it meanwhile."""


@dataclass(frozen=True, slots=True)
class GuidanceRow:
    id: str
    name: str
    scope: str
    """As it is written: `global`, `account:E`, `domain:D` or `sender:A`."""
    whose_mail: str
    """The scope in words."""
    text: str
    enabled: bool
    updated_at: datetime
    """As with directions."""


def directions(tx: Tx) -> Sequence[DirectionRow]:
    return [_direction(number, each) for number, each in enumerate(guidance_store.list_directions(tx), 1)]


def direction(tx: Tx, direction_id: str) -> DirectionRow:
    wanted = guidance_store.direction_with_id(tx, direction_id)
    return next(row for row in directions(tx) if row.id == wanted.id)


def guidance(tx: Tx) -> Sequence[GuidanceRow]:
    addresses = account_addresses(tx)
    return [_guidance(each, addresses) for each in guidance_store.list_model_rules(tx)]


def one_guidance(tx: Tx, guidance_id: str) -> GuidanceRow:
    return _guidance(guidance_store.model_rule_with_id(tx, guidance_id), account_addresses(tx))


def _direction(number: int, direction: Direction) -> DirectionRow:
    return DirectionRow(direction.id, number, direction.text, direction.enabled, direction.updated_at)


def _guidance(rule: StoredModelRule, addresses: Mapping[str, str]) -> GuidanceRow:
    scope = named(rule.scope, addresses)
    return GuidanceRow(
        id=rule.id,
        name=rule.name,
        scope=str(scope),
        whose_mail=scope_in_words(scope),
        text=rule.text,
        enabled=rule.enabled,
        updated_at=rule.updated_at,
    )

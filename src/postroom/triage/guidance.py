"""What the owner tells the model: directions for all mail, and model rules for mail of a scope. Words, not conditions.

Both are the owner's; nothing that a message says can add to them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, and_, func, or_, select

from postroom.db import Tx
from postroom.db.tables.triage import directions, model_rules
from postroom.domain.metering import MOST_GUIDANCE_BYTES
from postroom.mail.addresses import canonical_address
from postroom.triage.rules.model import Scope, ScopeKind

MOST_DIRECTIONS = 50
MOST_MODEL_RULES = 50
_TITLES, _BULLET = 200, 6
"""Bytes that a prompt puts around all of it, and around each."""


@dataclass(frozen=True, slots=True)
class ModelRule:
    id: str
    name: str
    scope: Scope
    text: str


@dataclass(frozen=True, slots=True)
class Guidance:
    directions: tuple[str, ...] = ()
    rules: tuple[ModelRule, ...] = ()
    left_out: tuple[str, ...] = ()
    """Names of model rules, or `direction N`, for which there was no room."""


def guidance_for(tx: Tx, account_id: str | None, *senders: str) -> Guidance:
    """Everything enabled that concerns this sender's mail to this account; the narrowest rules come first.

    Of several senders, what concerns them all: what the owner says of one must not hold for whoever stands beside him.
    """
    query = select(directions.c.text).where(directions.c.enabled).order_by(directions.c.position, directions.c.id)
    return within_bounds([str(row.text) for row in tx.execute(query)], _rules_for(tx, account_id, senders))


def within_bounds(told: Sequence[str], rules: Sequence[ModelRule]) -> Guidance:
    room = MOST_GUIDANCE_BYTES - _TITLES
    kept: list[str] = []
    kept_rules: list[ModelRule] = []
    left_out: list[str] = []
    for number, text in enumerate(told, 1):
        room -= (size := len(text.encode("utf-8", "replace")) + _BULLET)
        if room < 0 or len(kept) == MOST_DIRECTIONS:
            room += size
            left_out.append(f"direction {number}")
        else:
            kept.append(text)
    for rule in rules:
        room -= (size := len(f"{rule.name}{rule.text}".encode("utf-8", "replace")) + _BULLET)
        if room < 0 or len(kept_rules) == MOST_MODEL_RULES:
            room += size
            left_out.append(rule.name)
        else:
            kept_rules.append(rule)
    return Guidance(tuple(kept), tuple(kept_rules), tuple(left_out))


def _rules_for(tx: Tx, account_id: str | None, senders: Sequence[str]) -> list[ModelRule]:
    """Capitals make no difference, neither in the sender nor in what stands in the table."""
    order = _scopes_of(senders)
    order += [Scope(ScopeKind.ACCOUNT, account_id)] if account_id is not None else []
    order += [Scope()]
    table = model_rules.c
    mine = or_(*(and_(table.scope == scope.kind, func.lower(table.scope_ref) == scope.ref) for scope in order))
    rows = tx.execute(select(model_rules).where(table.enabled, mine).order_by(table.id))
    found = {row.id: _model_rule(row) for row in rows}
    place = {scope: number for number, scope in enumerate(order)}
    return sorted(found.values(), key=lambda rule: (place.get(rule.scope, len(place)), rule.id))


def _scopes_of(senders: Sequence[str]) -> list[Scope]:
    """Those of which every sender is, the narrowest first."""
    each = [
        [Scope(ScopeKind.SENDER, address), *(Scope(ScopeKind.DOMAIN, domain) for domain in _domains(address))]
        for address in map(canonical_address, senders)
    ]
    return [scope for scope in each[0] if all(scope in others for others in each)] if each else []


def _model_rule(row: Row[Any]) -> ModelRule:
    return ModelRule(row.id, row.name, Scope(ScopeKind(row.scope), row.scope_ref.lower()), row.text)


def _domains(address: str) -> Iterator[str]:
    """The sender's domain and those above it."""
    domain = address.rpartition("@")[2] if "@" in address else ""
    while domain:
        yield domain
        domain = domain.partition(".")[2]

"""The owner's instructions to the model: directions for all mail, and model rules for mail within a scope.

Every change has an author, is audited, and is refused if the row changed since it was read. Nothing in a message
can add to them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Row, Table, delete, func, select, update

from postroom import audit
from postroom.audit import Actor
from postroom.db import Prepared, Tx
from postroom.db.tables.triage import directions, model_rules
from postroom.domain.errors import BadInput, NotFound
from postroom.domain.ids import new_id
from postroom.domain.model_costs import MOST_GUIDANCE_BYTES
from postroom.mail.addresses import canonical_address
from postroom.triage.rules import values as checked
from postroom.triage.rules.rows import resolved
from postroom.triage.rules.rule import RuleScope, ScopeKind, parse_name

LONGEST_TEXT = 2_000
"""In bytes: more than one of the longest has room in a prompt, in every script."""
MOST_KEPT = 500


@dataclass(frozen=True, slots=True)
class Direction:
    id: str
    position: int
    text: str
    enabled: bool
    updated_at: datetime

    def state(self) -> dict[str, Any]:
        """For the audit log."""
        return {"text": self.text, "enabled": self.enabled, "position": self.position}


@dataclass(frozen=True, slots=True)
class StoredModelRule:
    id: str
    name: str
    scope: RuleScope
    text: str
    enabled: bool
    disabled_reason: str | None
    updated_at: datetime

    def state(self) -> dict[str, Any]:
        return {"name": self.name, "scope": str(self.scope), "text": self.text, "enabled": self.enabled}


def lock(tx: Tx) -> None:
    """Lock directions and model rules against other writers until this transaction ends."""
    tx.lock_table(directions)
    tx.lock_table(model_rules)


def list_directions(tx: Tx) -> list[Direction]:
    rows = tx.execute(select(directions).order_by(directions.c.position, directions.c.id))
    return [Direction(row.id, row.position, row.text, row.enabled, row.updated_at) for row in rows]


def get_direction(tx: Tx, number: int) -> Direction:
    """By the number that the list shows, which starts at 1."""
    found = list_directions(tx)
    if not 1 <= number <= len(found):
        there = f"there are 1 to {len(found)}" if found else "there are none"
        raise NotFound("direction", f"there is no {number}; {there}")
    return found[number - 1]


def direction_with_id(tx: Tx, direction_id: str) -> Direction:
    for found in list_directions(tx):
        if found.id == direction_id:
            return found
    raise NotFound("direction", "it is gone; someone removed it")


def add_direction(
    tx: Tx, text: str, who: Actor, now: datetime, *, enabled: bool = True, position: int | None = None
) -> Direction:
    """At the end of the list, unless it has a place."""
    tx.lock_table(directions)
    found = list_directions(tx)
    if len(found) >= MOST_KEPT:
        raise BadInput("directions", f"there are {MOST_KEPT} already, which is the most")
    position = position or (found[-1].position + 1 if found else 1)
    added = Direction(new_id(), position, parse_text(text), enabled, now)
    row = {"id": added.id, "position": position, "text": added.text, "enabled": enabled, "updated_at": now}
    tx.execute(directions.insert().values(**row))
    audit.record(tx, who, "direction.add", ("direction", added.id), now, after=added.state())
    return added


def change_direction(tx: Tx, before: Direction, changes: Mapping[str, Any], who: Actor, now: datetime) -> Direction:
    """`changes` may hold text, enabled and position."""
    if "text" in changes:
        changes = {**changes, "text": parse_text(changes["text"])}
    after = replace(before, **changes, updated_at=_later(before.updated_at, now))
    if after.state() == before.state():
        return before
    values = {**after.state(), "updated_at": after.updated_at}
    if not tx.execute(update(directions).where(_as_seen(directions, before)).values(**values)).rowcount:
        raise changed_meanwhile("direction")
    audit.record(tx, who, "direction.edit", ("direction", before.id), now, before=before.state(), after=after.state())
    return after


def remove_direction(tx: Tx, before: Direction, who: Actor, now: datetime) -> None:
    if not tx.execute(delete(directions).where(_as_seen(directions, before))).rowcount:
        raise changed_meanwhile("direction")
    audit.record(tx, who, "direction.remove", ("direction", before.id), now, before=before.state())


def list_model_rules(tx: Tx) -> list[StoredModelRule]:
    rows = tx.execute(select(model_rules).order_by(model_rules.c.scope, model_rules.c.scope_ref, model_rules.c.id))
    return [_model_rule(row) for row in rows]


def get_model_rule(tx: Tx, name_or_id: str) -> StoredModelRule:
    wanted = name_or_id.lower()
    found = [rule for rule in list_model_rules(tx) if wanted in (rule.name.lower(), rule.id)]
    if not found:
        raise NotFound("guidance", f"there is none named {name_or_id!r}; `postroom rules guidance list` shows all")
    return found[0]


def model_rule_with_id(tx: Tx, rule_id: str) -> StoredModelRule:
    for found in list_model_rules(tx):
        if found.id == rule_id:
            return found
    raise NotFound("guidance", "it is gone; someone removed it")


def add_model_rule(
    tx: Tx, name: str, scope: RuleScope, text: str, who: Actor, now: datetime, *, enabled: bool = True
) -> StoredModelRule:
    tx.lock_table(model_rules)
    name = parse_name(name)
    found = list_model_rules(tx)
    if len(found) >= MOST_KEPT:
        raise BadInput("guidance", f"there are {MOST_KEPT} already, which is the most")
    _refuse_name(found, name)
    scope = resolved(tx, scope)
    row = {"id": new_id(), "name": name, "scope": scope.kind, "scope_ref": scope.ref, "text": parse_text(text)}
    tx.execute(model_rules.insert().values(**row, enabled=enabled, created_at=now, updated_at=now))
    added = get_model_rule(tx, row["id"])
    audit.record(tx, who, "guidance.add", ("guidance", added.id), now, after=added.state())
    return added


def change_model_rule(
    tx: Tx, before: StoredModelRule, changes: Mapping[str, Any], who: Actor, now: datetime
) -> StoredModelRule:
    """`changes` may hold name, scope, text and enabled; refused if the row changed since it was read."""
    tx.lock_table(model_rules)
    values: dict[str, Any] = {}
    if "name" in changes:
        values["name"] = parse_name(changes["name"])
        _refuse_name([rule for rule in list_model_rules(tx) if rule.id != before.id], values["name"])
    if "scope" in changes:
        scope = resolved(tx, changes["scope"])
        values |= {"scope": scope.kind, "scope_ref": scope.ref}
    if "text" in changes:
        values["text"] = parse_text(changes["text"])
    if "enabled" in changes:
        values |= {"enabled": changes["enabled"], "disabled_reason": None}
    values["updated_at"] = _later(before.updated_at, now)
    if not tx.execute(update(model_rules).where(_as_seen(model_rules, before)).values(**values)).rowcount:
        raise changed_meanwhile(f"guidance {before.name}")
    after = get_model_rule(tx, before.id)
    audit.record(tx, who, "guidance.edit", ("guidance", before.id), now, before=before.state(), after=after.state())
    return after


def remove_model_rule(tx: Tx, before: StoredModelRule, who: Actor, now: datetime) -> None:
    if not tx.execute(delete(model_rules).where(_as_seen(model_rules, before))).rowcount:
        raise changed_meanwhile(f"guidance {before.name}")
    audit.record(tx, who, "guidance.remove", ("guidance", before.id), now, before=before.state())


def model_rules_naming(tx: Tx, account_id: str, label_name: str) -> list[str]:
    """Those that speak of a label in their text. They are words, so that only a person can say whether they still
    hold without it: nothing is disabled."""
    table = model_rules.c
    mine = (table.scope != ScopeKind.ACCOUNT) | (table.scope_ref == account_id)
    rows = tx.execute(select(model_rules).where(table.enabled, mine).order_by(func.lower(table.name)))
    return [row.name for row in rows if label_name.strip() and label_name.strip().casefold() in row.text.casefold()]


def _model_rule(row: Row[Any]) -> StoredModelRule:
    scope = RuleScope(ScopeKind(row.scope), row.scope_ref)
    return StoredModelRule(row.id, row.name, scope, row.text, row.enabled, row.disabled_reason, row.updated_at)


def _refuse_name(others: list[StoredModelRule], name: str) -> None:
    if any(rule.name.lower() == name.lower() for rule in others):
        raise BadInput("name", f"there is guidance named {name!r} already")


def parse_text(data: object, where: str = "text") -> str:
    text = checked.text(data, where, LONGEST_TEXT).strip()
    if (size := len(text.encode())) > LONGEST_TEXT:
        raise BadInput(where, f"has {size:,} bytes; {LONGEST_TEXT:,} are the most, which a prompt has room for")
    return text


def _as_seen(table: Table, before: Direction | StoredModelRule) -> ColumnElement[bool]:
    return (table.c.id == before.id) & (table.c.updated_at == before.updated_at)


def _later(before: datetime, now: datetime) -> datetime:
    """Every change has a time of its own, whatever the clock says, so that an old copy shows."""
    return max(now, before + timedelta(microseconds=1))


def changed_meanwhile(what: str) -> BadInput:
    return BadInput(what, "was changed or removed by someone else meanwhile; look at it again")


MOST_DIRECTIONS = 50
MOST_MODEL_RULES = 50
_TITLES, _BULLET = 200, 6
"""Bytes that a prompt puts around all of it, and around each."""


@dataclass(frozen=True, slots=True)
class ModelRule:
    id: str
    name: str
    scope: RuleScope
    text: str


@dataclass(frozen=True, slots=True)
class Guidance:
    directions: tuple[str, ...] = ()
    rules: tuple[ModelRule, ...] = ()
    left_out: tuple[str, ...] = ()
    """Names of model rules, or `direction N`, for which there was no room."""


_DIRECTIONS_IN_FORCE = Prepared(
    select(directions.c.text).where(directions.c.enabled).order_by(directions.c.position, directions.c.id)
)
_RULES_IN_FORCE = Prepared(select(model_rules).where(model_rules.c.enabled).order_by(model_rules.c.id))


def guidance_for(tx: Tx, account_id: str | None, *senders: str) -> Guidance:
    """Everything enabled that concerns this sender's mail to this account; the narrowest rules come first.

    Of several senders, what concerns them all: what the owner says about one must not apply to a co-sender.
    """
    return within_bounds(directions_in_force(tx), _rules_for(tx, account_id, senders))


def directions_in_force(tx: Tx) -> list[str]:
    """In their order."""
    return tx.shared("directions", lambda: [str(row.text) for row in tx.run(_DIRECTIONS_IN_FORCE, {})])


def rules_in_force(tx: Tx) -> list[ModelRule]:
    """In the order in which they were made."""
    return tx.shared("model rules", lambda: [_model_rule_in_force(row) for row in tx.run(_RULES_IN_FORCE, {})])


def within_bounds(directions: Sequence[str], rules: Sequence[ModelRule]) -> Guidance:
    room = MOST_GUIDANCE_BYTES - _TITLES
    kept: list[str] = []
    kept_rules: list[ModelRule] = []
    left_out: list[str] = []
    for number, text in enumerate(directions, 1):
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
    order += [RuleScope(ScopeKind.ACCOUNT, account_id)] if account_id is not None else []
    order += [RuleScope()]
    place = {scope: number for number, scope in enumerate(order)}
    found = [rule for rule in rules_in_force(tx) if rule.scope in place]
    return sorted(found, key=lambda rule: (place[rule.scope], rule.id))


def _scopes_of(senders: Sequence[str]) -> list[RuleScope]:
    """Those of which every sender is, the narrowest first."""
    each = [
        [RuleScope(ScopeKind.SENDER, address), *(RuleScope(ScopeKind.DOMAIN, domain) for domain in _domains(address))]
        for address in map(canonical_address, senders)
    ]
    return [scope for scope in each[0] if all(scope in others for others in each)] if each else []


def _model_rule_in_force(row: Row[Any]) -> ModelRule:
    return ModelRule(row.id, row.name, RuleScope(ScopeKind(row.scope), row.scope_ref.lower()), row.text)


def _domains(address: str) -> Iterator[str]:
    """The sender's domain and those above it."""
    domain = address.rpartition("@")[2] if "@" in address else ""
    while domain:
        yield domain
        domain = domain.partition(".")[2]

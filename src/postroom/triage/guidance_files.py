"""Directions and model rules as they stand in a file beside the rules: read, written, and the tables made equal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from postroom.audit import Actor
from postroom.db import Tx
from postroom.domain.errors import BadInput
from postroom.triage import guidance_store as store
from postroom.triage.rules.model import EVERYWHERE, Scope, named, parse_name, parse_scope
from postroom.triage.rules.values import truth
from postroom.triage.scopes import resolved

_KEYS = ("name", "scope", "text", "enabled")


@dataclass(frozen=True, slots=True)
class DirectionDraft:
    text: str
    enabled: bool = True


@dataclass(frozen=True, slots=True)
class GuidanceDraft:
    name: str
    text: str
    scope: Scope = EVERYWHERE
    enabled: bool = True


@dataclass(frozen=True, slots=True)
class Tally:
    """What making the table equal the file takes, in words for people."""

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    unchanged: int = 0

    @property
    def is_empty(self) -> bool:
        return not (self.added or self.changed or self.removed)


def parse_directions(data: object) -> list[DirectionDraft]:
    """A list of texts; one that is switched off is an object, `{text, enabled}`."""
    drafts = [_direction(each, f"directions[{number}]") for number, each in enumerate(_listed(data, "directions"))]
    _refuse_twice([draft.text for draft in drafts], lambda number: f"directions[{number}]")
    return drafts


def parse_guidance(data: object) -> list[GuidanceDraft]:
    drafts = [_guidance(each, f"guidance[{number}]") for number, each in enumerate(_listed(data, "guidance"))]
    _refuse_twice([draft.name.lower() for draft in drafts], lambda number: f"guidance[{number}].name")
    return drafts


def direction_as_written(draft: DirectionDraft) -> Any:
    return draft.text if draft.enabled else {"text": draft.text, "enabled": False}


def guidance_as_written(draft: GuidanceDraft) -> dict[str, Any]:
    """As a person would write it: what is as always is left out."""
    scope = {} if draft.scope == EVERYWHERE else {"scope": str(draft.scope)}
    return {"name": draft.name, **scope, "text": draft.text, **({} if draft.enabled else {"enabled": False})}


def make_directions_equal(tx: Tx, drafts: Sequence[DirectionDraft], who: Actor, now: datetime) -> Tally:
    """A direction is known by its text; their order is that of the file."""
    store.lock(tx)
    stored = store.list_directions(tx)
    known = {each.text: each for each in reversed(stored)}
    wanted = {draft.text for draft in drafts}
    removed = [each for each in stored if each.text not in wanted or known[each.text] is not each]
    for each in removed:
        store.remove_direction(tx, each, who, now)
    added, changed, last = [], [], 0
    for draft in drafts:
        before = known.get(draft.text)
        last = before.position if before is not None and before.position > last else last + 1
        if before is None:
            store.add_direction(tx, draft.text, who, now, enabled=draft.enabled, position=last)
            added.append(draft.text)
        elif store.change_direction(tx, before, {"enabled": draft.enabled, "position": last}, who, now) != before:
            changed.append(draft.text)
    unchanged = len(drafts) - len(added) - len(changed)
    return Tally(tuple(added), tuple(changed), tuple(each.text for each in removed), unchanged)


def make_guidance_equal(tx: Tx, drafts: Sequence[GuidanceDraft], who: Actor, now: datetime) -> Tally:
    """Guidance is known by its name, whatever its capitals."""
    store.lock(tx)
    known = {rule.name.lower(): rule for rule in store.list_model_rules(tx)}
    gone = [rule for name, rule in known.items() if name not in {draft.name.lower() for draft in drafts}]
    for rule in gone:
        store.remove_model_rule(tx, rule, who, now)
    added, changed = [], []
    for draft in drafts:
        before = known.get(draft.name.lower())
        if before is None:
            store.add_model_rule(tx, draft.name, draft.scope, draft.text, who, now, enabled=draft.enabled)
            added.append(draft.name)
        elif changes := _changes(before, draft, resolved(tx, draft.scope)):
            store.change_model_rule(tx, before, changes, who, now)
            changed.append(f"{draft.name}: {', '.join(changes)}")
    unchanged = len(drafts) - len(added) - len(changed)
    return Tally(tuple(added), tuple(changed), tuple(rule.name for rule in gone), unchanged)


def _changes(before: store.StoredModelRule, draft: GuidanceDraft, scope: Scope) -> dict[str, Any]:
    wanted = {"name": draft.name, "scope": scope, "text": draft.text, "enabled": draft.enabled}
    return {field: value for field, value in wanted.items() if getattr(before, field) != value}


def _listed(data: object, where: str) -> list[object]:
    if not isinstance(data, list):
        raise BadInput(where, "is a list")
    if len(data) > store.MOST_KEPT:
        raise BadInput(where, f"are {len(data):,}; {store.MOST_KEPT:,} is the most")
    return data


def _direction(data: object, where: str) -> DirectionDraft:
    if not isinstance(data, Mapping):
        return DirectionDraft(store.parse_text(data, where))
    _only(data, where, ("text", "enabled"))
    return DirectionDraft(
        store.parse_text(data.get("text"), f"{where}.text"), truth(data.get("enabled", True), f"{where}.enabled")
    )


def _guidance(data: object, where: str) -> GuidanceDraft:
    if not isinstance(data, Mapping):
        raise BadInput(where, "is an object with name and text")
    where = named(data.get("name"), where)
    _only(data, where, _KEYS)
    return GuidanceDraft(
        name=parse_name(data.get("name"), f"{where}.name"),
        text=store.parse_text(data.get("text"), f"{where}.text"),
        scope=parse_scope(data.get("scope", "global"), f"{where}.scope"),
        enabled=truth(data.get("enabled", True), f"{where}.enabled"),
    )


def _only(data: Mapping[Any, Any], where: str, keys: Iterable[str]) -> None:
    for key in data:
        if key not in keys:
            raise BadInput(f"{where}.{str(key)[:60]}", f"does not belong here; there are {', '.join(keys)}")


def _refuse_twice(names: Sequence[str], place: Callable[[int], str]) -> None:
    seen: dict[str, int] = {}
    for number, name in enumerate(names):
        if (first := seen.setdefault(name, number)) != number:
            raise BadInput(place(number), f"is the same as {place(first)}")

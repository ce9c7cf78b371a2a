"""Rules, directions and model rules in one file for version control: TOML, YAML or JSON, read strictly.

directions = ["Never archive anything from my family."]

[[rules]]
name = "Receipts"
condition = { sender_domain = "shop.example", subject_contains = ["receipt", "invoice"] }
actions = ["apply_label=Receipts", "archive"]

[[guidance]]
name = "Shops"
scope = "domain:shop.example"
text = "Offers may go."
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

import tomli_w
import yaml

from postroom.audit import Actor
from postroom.db import Tx
from postroom.domain.errors import BadInput
from postroom.reading.structured import load_json, load_toml, load_yaml
from postroom.triage import guidance as store
from postroom.triage.rules.rows import resolved
from postroom.triage.rules.rule import (
    DEFAULT_PRIORITY,
    EVERYWHERE,
    MOST_RULES,
    RuleDraft,
    RuleScope,
    named,
    parse_draft,
    parse_name,
    parse_scope,
    short_form,
)
from postroom.triage.rules.values import truth

_KEYS = ("name", "scope", "text", "enabled")


@dataclass(frozen=True, slots=True)
class DirectionDraft:
    text: str
    enabled: bool = True


@dataclass(frozen=True, slots=True)
class GuidanceDraft:
    name: str
    text: str
    scope: RuleScope = EVERYWHERE
    enabled: bool = True


@dataclass(frozen=True, slots=True)
class GuidanceChanges:
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


def make_directions_equal(tx: Tx, drafts: Sequence[DirectionDraft], who: Actor, now: datetime) -> GuidanceChanges:
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
    return GuidanceChanges(tuple(added), tuple(changed), tuple(each.text for each in removed), unchanged)


def make_guidance_equal(tx: Tx, drafts: Sequence[GuidanceDraft], who: Actor, now: datetime) -> GuidanceChanges:
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
    return GuidanceChanges(tuple(added), tuple(changed), tuple(rule.name for rule in gone), unchanged)


def _changes(before: store.StoredModelRule, draft: GuidanceDraft, scope: RuleScope) -> dict[str, Any]:
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


T = TypeVar("T")

LARGEST_FILE = 4 << 20
_WIDTH = 100
_HEADING = "# Rules of Postroom. The first that matches a message decides; lower priorities are tried first.\n\n"
_SECTIONS = ("directions", "rules", "guidance")


@dataclass(frozen=True, slots=True)
class RulesDocument:
    """What a file holds. A part that it does not speak of is None, and stays as it is when the file is imported."""

    rules: Sequence[RuleDraft] | None = None
    directions: Sequence[DirectionDraft] | None = None
    guidance: Sequence[GuidanceDraft] | None = None


class RulesFileFormat(StrEnum):
    TOML = "toml"
    YAML = "yaml"
    JSON = "json"


def format_of(path: Path) -> RulesFileFormat:
    match path.suffix.lower():
        case ".toml":
            return RulesFileFormat.TOML
        case ".yaml" | ".yml":
            return RulesFileFormat.YAML
        case ".json":
            return RulesFileFormat.JSON
        case suffix:
            raise BadInput("file", f"{path.name} ends with {suffix or 'nothing'}; it has to end with .toml or .yaml")


def read_file(path: Path) -> list[RuleDraft]:
    """All rules of a file, or BadInput with the place of the first fault."""
    return list(read_document(path).rules or ())


def read_document(path: Path) -> RulesDocument:
    format = format_of(path)
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise BadInput("file", f"{path} cannot be read: {error.strerror}") from None
    if len(content) > LARGEST_FILE:
        raise BadInput("file", f"{path} is larger than {LARGEST_FILE >> 20} MB")
    return parse_text(content, format, str(path))


def parse_text(content: bytes | str, format: RulesFileFormat, name: str = "the text") -> RulesDocument:
    try:
        text = content.decode("utf-8-sig") if isinstance(content, bytes) else content
        data = _LOADERS[format](text)
    except UnicodeDecodeError:
        raise BadInput("file", f"{name} is not UTF-8") from None
    except ValueError as error:
        raise BadInput("file", f"{name} is not {format.upper()}: {_said(error)}") from None
    return parse_document(data)


def parse_json(text: str, name: str) -> object:
    """A part of a rule, written as JSON; a repeated key is refused."""
    try:
        return _LOADERS[RulesFileFormat.JSON](text)
    except ValueError as error:
        raise BadInput(name, f"is not JSON: {_said(error)}") from None


def parse_document(data: object) -> RulesDocument:
    if not isinstance(data, Mapping) or not data or not set(data) <= set(_SECTIONS):
        raise BadInput("file", f"holds lists named {', '.join(_SECTIONS)}, one of them at least, and nothing else")
    return RulesDocument(
        rules=_rules(data["rules"]) if "rules" in data else None,
        directions=parse_directions(data["directions"]) if "directions" in data else None,
        guidance=parse_guidance(data["guidance"]) if "guidance" in data else None,
    )


def _rules(data: object) -> list[RuleDraft]:
    if not isinstance(data, list):
        raise BadInput("rules", "is a list of rules")
    if len(data) > MOST_RULES:
        raise BadInput("rules", f"are {len(data):,}; {MOST_RULES:,} is the most")
    drafts = [parse_draft(each, f"rules[{number}]") for number, each in enumerate(data)]
    seen: dict[str, int] = {}
    for number, draft in enumerate(drafts):
        if (first := seen.setdefault(draft.name.lower(), number)) != number:
            raise BadInput(f"rules[{number}] ({draft.name}).name", f"is that of rules[{first}] too")
    return drafts


def written(document: RulesDocument, format: RulesFileFormat) -> str:
    """The text of a file with this; reading it gives it back."""
    data = _as_data(document)
    match format:
        case RulesFileFormat.TOML:
            return _HEADING + _toml(data)
        case RulesFileFormat.YAML:
            return _HEADING + str(yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=_WIDTH))
        case RulesFileFormat.JSON:
            return json.dumps(data, ensure_ascii=False, indent=2) + "\n"


def written_rule(draft: RuleDraft) -> str:
    """One rule as it would stand in a file."""
    return _toml_table("rules", as_written(draft))


def _as_data(document: RulesDocument) -> dict[str, list[Any]]:
    parts: dict[str, list[Any] | None] = {
        "directions": _each(direction_as_written, document.directions),
        "rules": _each(as_written, document.rules),
        "guidance": _each(guidance_as_written, document.guidance),
    }
    return {name: part for name, part in parts.items() if part is not None}


def _each(write: Callable[[T], Any], drafts: Iterable[T] | None) -> list[Any] | None:
    return None if drafts is None else [write(draft) for draft in drafts]


def as_written(draft: RuleDraft) -> dict[str, Any]:
    """As a person would write it: what is as always is left out."""
    found: dict[str, Any] = {"name": draft.name}
    if draft.scope != RuleScope():
        found["scope"] = str(draft.scope)
    if draft.priority != DEFAULT_PRIORITY:
        found["priority"] = draft.priority
    found["condition"] = dict(draft.condition)
    found["actions"] = [short_form(wanted) for wanted in draft.actions]
    if draft.unattended:
        found["unattended"] = True
    if not draft.enabled:
        found["enabled"] = False
    return found


def _toml(data: Mapping[str, list[Any]]) -> str:
    """Plain lists have to stand before the first table."""
    plain = [f"{name} = {_inline(part)}\n" for name, part in data.items() if name == "directions" or not part]
    tables = [_toml_table(name, each) for name, part in data.items() if name != "directions" for each in part]
    return "\n".join([*(["".join(plain)] if plain else []), *tables])


def _toml_table(name: str, values: Mapping[str, Any]) -> str:
    return f"[[{name}]]\n" + "".join(f"{key} = {_inline(value)}\n" for key, value in values.items())


def _inline(value: object, indent: int = 0) -> str:
    """A value on one line; a list that would be too long for it, an entry a line."""
    match value:
        case Mapping():
            return "{ " + ", ".join(f"{key} = {_inline(each, indent)}" for key, each in value.items()) + " }"
        case list():
            return _inline_list(value, indent)
        case _:
            return tomli_w.dumps({"x": value}).removeprefix("x = ").rstrip("\n")


def _inline_list(values: Sequence[object], indent: int) -> str:
    line = "[" + ", ".join(_inline(value, indent) for value in values) + "]"
    if len(line) <= _WIDTH - 4 * indent and "\n" not in line:
        return line
    inner = "    " * (indent + 1)
    return "[\n" + "".join(f"{inner}{_inline(value, indent + 1)},\n" for value in values) + "    " * indent + "]"


_LOADERS: Mapping[RulesFileFormat, Callable[[str], object]] = {
    RulesFileFormat.TOML: load_toml,
    RulesFileFormat.YAML: load_yaml,
    RulesFileFormat.JSON: load_json,
}


def _said(error: Exception) -> str:
    return " ".join(str(error).split())[:300]

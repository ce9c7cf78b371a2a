"""Rules, and what the model is told, in a file that can be kept under version control: TOML, YAML or JSON, read
strictly and written for people.

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
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

import tomli_w
import yaml

from postroom.domain.errors import BadInput
from postroom.reading.structured import load_json, load_toml, load_yaml
from postroom.triage.guidance_files import (
    DirectionDraft,
    GuidanceDraft,
    direction_as_written,
    guidance_as_written,
    parse_directions,
    parse_guidance,
)
from postroom.triage.rules.model import DEFAULT_PRIORITY, MOST_RULES, RuleDraft, Scope, parse_draft
from postroom.triage.rules.wishes import short_form

T = TypeVar("T")

LARGEST_FILE = 4 << 20
_WIDTH = 100
_HEADING = "# Rules of Postroom. The first that matches a message decides; lower priorities are tried first.\n\n"
_SECTIONS = ("directions", "rules", "guidance")


@dataclass(frozen=True, slots=True)
class Document:
    """What a file holds. A part that it does not speak of is None, and stays as it is when the file is imported."""

    rules: Sequence[RuleDraft] | None = None
    directions: Sequence[DirectionDraft] | None = None
    guidance: Sequence[GuidanceDraft] | None = None


class FileFormat(StrEnum):
    TOML = "toml"
    YAML = "yaml"
    JSON = "json"


def format_of(path: Path) -> FileFormat:
    match path.suffix.lower():
        case ".toml":
            return FileFormat.TOML
        case ".yaml" | ".yml":
            return FileFormat.YAML
        case ".json":
            return FileFormat.JSON
        case suffix:
            raise BadInput("file", f"{path.name} ends with {suffix or 'nothing'}; it has to end with .toml or .yaml")


def read_file(path: Path) -> list[RuleDraft]:
    """All rules of a file, or BadInput with the place of the first fault."""
    return list(read_document(path).rules or ())


def read_document(path: Path) -> Document:
    format = format_of(path)
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise BadInput("file", f"{path} cannot be read: {error.strerror}") from None
    if len(content) > LARGEST_FILE:
        raise BadInput("file", f"{path} is larger than {LARGEST_FILE >> 20} MB")
    return parse_text(content, format, str(path))


def parse_text(content: bytes | str, format: FileFormat, name: str = "the text") -> Document:
    try:
        text = content.decode("utf-8-sig") if isinstance(content, bytes) else content
        data = _LOADERS[format](text)
    except UnicodeDecodeError:
        raise BadInput("file", f"{name} is not UTF-8") from None
    except ValueError as error:
        raise BadInput("file", f"{name} is not {format.upper()}: {_said(error)}") from None
    return parse_document(data)


def parse_json(text: str, name: str) -> object:
    """A part of a rule that somebody wrote as JSON; no key may stand in it twice."""
    try:
        return _LOADERS[FileFormat.JSON](text)
    except ValueError as error:
        raise BadInput(name, f"is not JSON: {_said(error)}") from None


def parse_document(data: object) -> Document:
    if not isinstance(data, Mapping) or not data or not set(data) <= set(_SECTIONS):
        raise BadInput("file", f"holds lists named {', '.join(_SECTIONS)}, one of them at least, and nothing else")
    return Document(
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


def written(document: Document, format: FileFormat) -> str:
    """The text of a file with this; reading it gives it back."""
    data = _as_data(document)
    match format:
        case FileFormat.TOML:
            return _HEADING + _toml(data)
        case FileFormat.YAML:
            return _HEADING + str(yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=_WIDTH))
        case FileFormat.JSON:
            return json.dumps(data, ensure_ascii=False, indent=2) + "\n"


def written_rule(draft: RuleDraft) -> str:
    """One rule as it would stand in a file."""
    return _toml_table("rules", as_written(draft))


def _as_data(document: Document) -> dict[str, list[Any]]:
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
    if draft.scope != Scope():
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


_LOADERS: Mapping[FileFormat, Callable[[str], object]] = {
    FileFormat.TOML: load_toml,
    FileFormat.YAML: load_yaml,
    FileFormat.JSON: load_json,
}


def _said(error: Exception) -> str:
    return " ".join(str(error).split())[:300]

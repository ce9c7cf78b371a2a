"""Definitions as text to edit: the tier policy as TOML, and in which line of a TOML text a mistake is. Pure."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import tomli_w

from postroom.domain.errors import BadInput
from postroom.mail.tier_policy import parse_rules

FIELD = "text"
_HEADER = re.compile(r"\s*(\[\[?)\s*([^\[\]]+?)\s*\]\]?\s*(#.*)?")
_KEY = re.compile(r"\s*([\w.\"'-]+)\s*=")
_RULE = re.compile(r"rules\[(\d+)\](?: \(.*\))?(?:\.(.*))?")
_MESSAGE_LINE = re.compile(r" ?\(at line (\d+), column (\d+)\)")
_BRACKETS = re.compile(r"\[(\d+)\]")

Place = tuple[str, ...]


def policy_text(rules: Sequence[dict[str, Any]]) -> str:
    """The rules as `[[rule]]` tables, in order; one that is on does not say so."""
    shown = [{name: value for name, value in rule.items() if (name, value) != ("enabled", True)} for rule in rules]
    ordered = [{"note": rule["note"], **rule} for rule in shown]
    return tomli_w.dumps({"rule": ordered}) if ordered else ""


def policy_rules(text: str) -> list[dict[str, Any]]:
    """The rules that a text defines; a mistake is named by its line, rule and field."""
    content = _parsed(text)
    rules = content.pop("rule", [])
    if content:
        name = next(iter(content))
        raise _mistake(text, (name,), f"{name} is not known here; write [[rule]] above each rule")
    if not isinstance(rules, list):
        raise _mistake(text, ("rule",), "write [[rule]], with two brackets, above each rule")
    try:
        parse_rules(rules)
    except BadInput as error:
        raise policy_mistake(text, error) from None
    return [dict(rule) for rule in rules]


def policy_mistake(text: str, error: BadInput) -> BadInput:
    found = _RULE.fullmatch(error.field)
    if found is None:
        return BadInput(FIELD, f"{error.field}: {error.problem}")
    number, below = found[1], found[2] or ""
    named = f"rule {int(number) + 1}{f', {below}' if below else ''}: {error.problem}"
    return _mistake(text, ("rule", number, *below.split(".")), named)


def definition_mistake(text: str, error: BadInput) -> BadInput:
    """What is wrong with the owner's categories, by its line."""
    if error.field == "categories" and (line := _MESSAGE_LINE.search(error.problem)):
        return BadInput(FIELD, f"line {line[1]}: {_MESSAGE_LINE.sub('', error.problem)}")
    place = tuple(part for part in _BRACKETS.sub(r".\1", error.field).split(".") if part)
    return _mistake(text, place, f"{error.field}: {error.problem}")


def line_of(text: str, place: Place) -> int | None:
    """The line that comes nearest to a place such as ("rule", "0", "tier"); None where nothing does."""
    best, line = 0, None
    for number, found in _places(text):
        common = next((n for n, (a, b) in enumerate(zip(found, place, strict=False)) if a != b), None)
        length = min(len(found), len(place)) if common is None else common
        if length > best:
            best, line = length, number
    return line


def _places(text: str) -> Iterator[tuple[int, Place]]:
    """What each line of a TOML text is about, by its table and key; tables of a list are numbered."""
    seen: Counter[Place] = Counter()
    table: Place = ()
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.fullmatch(line):
            table = _table(header, seen)
            yield number, table
        elif key := _KEY.match(line):
            yield number, (*table, *_names(key[1]))


def _table(header: re.Match[str], seen: Counter[Place]) -> Place:
    place: Place = ()
    names = _names(header[2])
    for depth, name in enumerate(names):
        place = (*place, name)
        if header[1] == "[[" and depth == len(names) - 1:
            seen[place] += 1
        if seen[place]:
            place = (*place, str(seen[place] - 1))
    return place


def _names(dotted: str) -> Place:
    return tuple(part.strip().strip("\"'") for part in dotted.split("."))


def _parsed(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        said = str(error)
        line = _MESSAGE_LINE.search(said)
        where = f"line {line[1]}: " if line else ""
        raise BadInput(FIELD, f"{where}is not valid TOML: {_MESSAGE_LINE.sub('', said)}") from None
    except RecursionError:
        raise BadInput(FIELD, "is nested too deeply") from None


def _mistake(text: str, place: Place, problem: str) -> BadInput:
    line = line_of(text, place)
    return BadInput(FIELD, problem if line is None else f"line {line}, {problem}")

"""Editors for the tier policy and for the owner's categories: a text (TOML) that is checked, with the line of a
mistake, then shown as a difference to what holds now, and only then saved.
"""

from __future__ import annotations

import asyncio
import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import tomli_w
from pydantic import BaseModel
from starlette.responses import Response

from postroom.contract import settings as contract
from postroom.dashboard.context import Here, RequestContext, api_router, pages_router, permits
from postroom.dashboard.display.differences import TextDifference, difference
from postroom.dashboard.display.formatting import plural
from postroom.dashboard.forms import Form
from postroom.db import Tx
from postroom.domain.errors import BadInput
from postroom.domain.roles import Permission
from postroom.mail.tier_policy import parse_rules
from postroom.settings.files import read_bytes, version_of
from postroom.switchboard import definitions as tier_policy
from postroom.switchboard.definitions import OWN_FILE, CategoryBook

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


pages = pages_router()
policy_api = api_router("policy")
definitions_api = api_router("category-definitions")

POLICY_PAGE = "/filters/policy"
CATEGORIES_PAGE = "/filters/categories"


class PolicyState(BaseModel):
    version: str
    rules: list[dict[str, Any]]


class DefinitionsState(BaseModel):
    version: str
    definitions: str
    """The text of categories.toml; empty where there is none."""


@dataclass(frozen=True)
class _Editor:
    """What one page edits, and what is entered there."""

    path: str
    template: str
    version: str
    current: str
    text: str
    form: Form = field(default_factory=Form)
    change: TextDifference | None = None
    """What saving would change; None before it was checked."""


@pages.get(POLICY_PAGE)
async def policy_page(here: Here) -> Response:
    return await _show(here, await _policy_editor(here))


@pages.post(POLICY_PAGE)
async def submit_policy(here: Here) -> Response:
    form = await here.form()
    text = _entered(form)
    try:
        rules = await asyncio.to_thread(policy_rules, text)
        if form["intent"] != "save":
            return await _show(here, await _policy_editor(here, text, saved=policy_text(rules)))
        saved = await here.call(contract.REPLACE_POLICY, {"version": form["version"], "rules": rules})
    except BadInput as error:
        named = error if error.field in (FIELD, "version") else policy_mistake(text, error)
        return await _show(here, await _policy_editor(here, text), named)
    message = f"Saved: {plural(saved.rules, 'rule')} in force. Connectors get them with their next heartbeat."
    return await here.go("/filters#policy", message)


@pages.get(CATEGORIES_PAGE)
async def categories_page(here: Here) -> Response:
    return await _show(here, await _categories_editor(here))


@pages.post(CATEGORIES_PAGE)
async def submit_categories(here: Here) -> Response:
    form = await here.form()
    text = _entered(form)
    try:
        await asyncio.to_thread(lambda: CategoryBook(text).defined)
        if form["intent"] != "save":
            return await _show(here, await _categories_editor(here, text, saved=text))
        await here.call(contract.DEFINE_CATEGORIES, {"version": form["version"], "definitions": text})
    except BadInput as error:
        named = error if error.field == "version" else definition_mistake(text, error)
        return await _show(here, await _categories_editor(here, text), named)
    return await here.go(CATEGORIES_PAGE, "Saved. Restart Postroom to use your categories.")


def _entered(form: Form) -> str:
    """Browsers end lines in two characters."""
    text = form[FIELD].replace("\r\n", "\n").replace("\r", "\n")
    return f"{text}\n" if text else ""


async def _policy_editor(here: RequestContext, text: str | None = None, saved: str | None = None) -> _Editor:
    """`saved` is the text as it would be after saving."""
    found = await show_policy(here)
    current = policy_text(found.rules)
    return await _editor(POLICY_PAGE, "filters/edit_policy.html", (found.version, current), text, saved)


async def _categories_editor(here: RequestContext, text: str | None = None, saved: str | None = None) -> _Editor:
    found = await show_definitions(here)
    now = (found.version, found.definitions)
    return await _editor(CATEGORIES_PAGE, "filters/edit_categories.html", now, text, saved)


async def _editor(path: str, template: str, now: tuple[str, str], text: str | None, saved: str | None) -> _Editor:
    version, current = now
    change = None if saved is None else await asyncio.to_thread(difference, current, saved)
    return _Editor(path, template, version, current, current if text is None else text, change=change)


async def _show(here: RequestContext, editor: _Editor, refused: BadInput | None = None) -> Response:
    form = Form({FIELD: (editor.text,)})
    if refused is not None:
        form = form.refused(BadInput("definitions" if refused.field == "version" else refused.field, refused.problem))
    is_pending = editor.path == CATEGORIES_PAGE and here.app.categories.definitions != editor.current
    shown = {"editor": editor, "form": form, "is_pending": is_pending}
    return await here.page(editor.template, "filters", 200 if refused is None else 422, **shown)


@policy_api.get("")
@permits(Permission.READ)
async def show_policy(here: Here) -> PolicyState:
    """The tier policy: all rules in order, also those that are off."""

    def read(tx: Tx) -> PolicyState:
        return PolicyState(version=tier_policy.all_rules_version(tx), rules=tier_policy.all_policy_rules(tx))

    return await here.read(read)


@policy_api.post("")
@permits(Permission.SETTINGS)
async def save_policy(here: Here, wanted: contract.ReplacePolicyArguments) -> contract.PolicyReply:
    """Replace all rules of the tier policy."""
    return await here.call(contract.REPLACE_POLICY, wanted)


@definitions_api.get("")
@permits(Permission.READ)
async def show_definitions(here: Here) -> DefinitionsState:
    """Your own definitions of categories."""
    content = read_bytes(here.app.settings.home / OWN_FILE)
    return DefinitionsState(version=version_of(content), definitions=content.decode("utf-8", "replace"))


@definitions_api.post("")
@permits(Permission.SETTINGS)
async def save_definitions(here: Here, wanted: contract.DefineCategoriesArguments) -> contract.DefinedCategoriesReply:
    """Replace your own definitions of categories. They hold from the next start of Postroom."""
    return await here.call(contract.DEFINE_CATEGORIES, wanted)

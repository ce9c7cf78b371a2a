"""Editors for the tier policy and for the owner's categories: a text that is checked, then shown as a difference to
what holds now, and only then saved."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel
from starlette.responses import Response

from postroom.contract.settings import (
    DEFINE_CATEGORIES,
    REPLACE_POLICY,
    DefineCategoriesArguments,
    DefinedCategoriesReply,
    PolicyReply,
    ReplacePolicyArguments,
)
from postroom.dashboard.context import Here, RequestContext, api_router, pages_router, permits
from postroom.dashboard.display.differences import TextDifference, difference
from postroom.dashboard.display.formatting import plural
from postroom.dashboard.filters.definition_text import (
    FIELD,
    definition_mistake,
    policy_mistake,
    policy_rules,
    policy_text,
)
from postroom.dashboard.forms import Form
from postroom.db import Tx
from postroom.domain.errors import BadInput
from postroom.domain.roles import Permission
from postroom.settings.files import read_bytes, version_of
from postroom.switchboard import tier_policy
from postroom.switchboard.category_book import OWN_FILE, CategoryBook

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
        saved = await here.call(REPLACE_POLICY, {"version": form["version"], "rules": rules})
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
        await here.call(DEFINE_CATEGORIES, {"version": form["version"], "definitions": text})
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
async def save_policy(here: Here, wanted: ReplacePolicyArguments) -> PolicyReply:
    """Replace all rules of the tier policy."""
    return await here.call(REPLACE_POLICY, wanted)


@definitions_api.get("")
@permits(Permission.READ)
async def show_definitions(here: Here) -> DefinitionsState:
    """Your own definitions of categories."""
    content = read_bytes(here.app.settings.home / OWN_FILE)
    return DefinitionsState(version=version_of(content), definitions=content.decode("utf-8", "replace"))


@definitions_api.post("")
@permits(Permission.SETTINGS)
async def save_definitions(here: Here, wanted: DefineCategoriesArguments) -> DefinedCategoriesReply:
    """Replace your own definitions of categories. They hold from the next start of Postroom."""
    return await here.call(DEFINE_CATEGORIES, wanted)

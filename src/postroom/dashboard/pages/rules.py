"""Rules: their order, an editor that shows what is wrong and what a rule would have done, on and off, removal."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from fastapi import Query
from starlette.responses import Response

from postroom.dashboard.changing import rule_form
from postroom.dashboard.changing.rules import (
    edit_rule,
    remove_rule,
    require_rule_proof,
    require_switch_proof,
    switch_rule,
)
from postroom.dashboard.forms import Form
from postroom.dashboard.pages import pages_router
from postroom.dashboard.pages.mail import address_of
from postroom.dashboard.paging import AfterId
from postroom.dashboard.reading.rules import RuleRow, known_names, rule_row, rules_page, stored_rule, written
from postroom.dashboard.reading.trials import CHOICES, TriedOut, try_out
from postroom.dashboard.visit import Here, Visit
from postroom.domain.actions import ActionType
from postroom.domain.errors import BadInput
from postroom.triage.rules import store
from postroom.triage.rules.model import RuleDraft, ScopeKind
from postroom.triage.rules.ordering import Direction, move_rule
from postroom.triage.rules.wishes import MOST_ACTIONS

router = pages_router()

SECTION = "rules"
ONE = "/rules/{rule_id:uuid}"
Newest = Annotated[int, Query(ge=1, le=max(CHOICES))]


@router.get("/rules")
async def rules(here: Here, after: AfterId = None) -> Response:
    start = None if after is None else str(after)
    page = await here.read(lambda tx: rules_page(tx, here.app.settings.safety, start))
    return await here.page("rules/list.html", SECTION, rules=page, is_first=start is None)


@router.get("/rules/new")
async def new(here: Here) -> Response:
    return await _editor(here, rule_form.blank())


@router.post("/rules/new")
async def add(here: Here) -> Response:
    form = await here.form()
    if form["intent"] in ("try", "more"):
        return await _tried(here, form)
    draft, form = rule_form.read(form)
    if draft is None:
        return await _editor(here, form, status=422)
    await require_rule_proof(here, draft, form)
    try:
        rule = await here.write(lambda tx: store.add_rule(tx, draft, here.actor, here.now))
    except BadInput as error:
        return await _editor(here, form.refused(_beside(error)), status=422)
    return await here.go(f"/rules/{rule.id}", "The rule is saved. It is in force for mail that comes in from now on.")


@router.get(ONE)
async def rule(here: Here, rule_id: UUID) -> Response:
    return await _rule(here, rule_id)


@router.get(f"{ONE}/try")
async def tried(here: Here, rule_id: UUID, newest: Newest = CHOICES[0]) -> Response:
    stored = await here.read(lambda tx: stored_rule(tx, str(rule_id)))
    if stored.draft is None:
        raise BadInput("rule", stored.problem or "cannot be read")
    return await _rule(here, rule_id, await try_out(here, stored.draft, newest), newest)


@router.get(f"{ONE}/edit")
async def edit(here: Here, rule_id: UUID) -> Response:
    stored = await here.read(lambda tx: stored_rule(tx, str(rule_id)))
    form = rule_form.blank() if stored.draft is None else rule_form.filled(stored.draft, stored.stamp)
    if stored.draft is None:
        form = Form({**form.values, "name": (stored.name,), "stamp": (stored.stamp,)})
    return await _editor(here, form, rule_id)


@router.post(f"{ONE}/edit")
async def change(here: Here, rule_id: UUID) -> Response:
    form = await here.form()
    if form["intent"] in ("try", "more"):
        return await _tried(here, form, rule_id)
    draft, form = rule_form.read(form)
    if draft is None:
        return await _editor(here, form, rule_id, status=422)
    await require_rule_proof(here, draft, form)
    stamp = form.optional("stamp")
    try:
        await here.write(lambda tx: edit_rule(tx, str(rule_id), stamp, draft, here.actor, here.now))
    except BadInput as error:
        return await _editor(here, form.refused(_beside(error)), rule_id, status=422)
    return await here.go(f"/rules/{rule_id}", "The rule is saved.")


@router.get(f"{ONE}/remove")
async def ask_remove(here: Here, rule_id: UUID) -> Response:
    row = await _row(here, rule_id)
    return await here.page("rules/remove.html", SECTION, rule=row)


@router.post(f"{ONE}/remove")
async def remove(here: Here, rule_id: UUID) -> Response:
    stamp = (await here.form()).optional("stamp")
    gone = await here.write(lambda tx: remove_rule(tx, str(rule_id), stamp, here.actor, here.now))
    return await here.go("/rules", f"The rule {gone.name} is removed. What it did stays done, and can be undone.")


@router.post(f"{ONE}/enable")
async def enable(here: Here, rule_id: UUID) -> Response:
    return await _switch(here, rule_id, on=True)


@router.post(f"{ONE}/disable")
async def disable(here: Here, rule_id: UUID) -> Response:
    return await _switch(here, rule_id, on=False)


@router.post(f"{ONE}/move")
async def move(here: Here, rule_id: UUID) -> Response:
    direction = Direction((await here.form()).one_of("direction", list(Direction)))
    await here.write(lambda tx: move_rule(tx, store.rule_with_id(tx, str(rule_id)), direction, here.actor, here.now))
    return await here.go(f"/rules#r-{rule_id}")


async def _switch(here: Visit, rule_id: UUID, *, on: bool) -> Response:
    form = await here.form()
    if on:
        await require_switch_proof(here, str(rule_id), form)
    rule = await here.write(lambda tx: switch_rule(tx, str(rule_id), here.actor, here.now, on=on))
    back = "/rules" if form["back"] == "list" else f"/rules/{rule_id}"
    return await here.go(back, f"The rule {rule.name} is {'on' if on else 'off'}.")


async def _row(here: Visit, rule_id: UUID) -> RuleRow:
    return await here.read(lambda tx: rule_row(tx, str(rule_id), here.app.settings.safety))


async def _rule(here: Visit, rule_id: UUID, trial: TriedOut | None = None, newest: int = CHOICES[0]) -> Response:
    row = await _row(here, rule_id)
    text = written(await here.read(lambda tx: stored_rule(tx, str(rule_id))))
    shown: dict[str, Any] = {"rule": row, "written": text, "trial": trial, "newest": newest, "choices": CHOICES}
    return await here.page("rules/rule.html", SECTION, **shown, address_of=address_of)


async def _tried(here: Visit, form: Form, rule_id: UUID | None = None) -> Response:
    """The editor as it was, with what its rule would have done; or with room for more actions."""
    if form["intent"] == "more":
        return await _editor(here, form, rule_id)
    draft, form = rule_form.read(form, to_try=True)
    newest = _newest(form)
    if draft is None:
        return await _editor(here, form, rule_id, status=422)
    try:
        trial = await _try(here, draft, newest, form)
    except BadInput as error:
        return await _editor(here, form.refused(_beside(error)), rule_id, status=422)
    return await _editor(here, form, rule_id, trial=trial)


async def _try(here: Visit, draft: RuleDraft, newest: int, form: Form) -> TriedOut:
    return await try_out(here, draft, newest, says_what=rule_form.says_what(form))


def _newest(form: Form) -> int:
    return int(form["newest"]) if form["newest"] in map(str, CHOICES) else CHOICES[0]


def _beside(error: BadInput) -> BadInput:
    """What the store refuses, beside the field that it is about."""
    match error.field:
        case "account":
            return BadInput("which", error.problem)
        case "name":
            return error
        case _:
            return BadInput("name", error.problem)


async def _editor(
    here: Visit, form: Form, rule_id: UUID | None = None, status: int = 200, trial: TriedOut | None = None
) -> Response:
    shown: dict[str, Any] = {
        "rule_id": rule_id,
        "address": "/rules/new" if rule_id is None else f"/rules/{rule_id}/edit",
        "rows": rule_form.rows_of(form),
        "most_rows": MOST_ACTIONS,
        "kinds": list(ActionType),
        "scopes": list(ScopeKind),
        "known": await here.read(known_names),
        "choices": CHOICES,
        "newest": _newest(form),
        "trial": trial,
    }
    return await here.page("rules/editor.html", SECTION, status, form=form, address_of=address_of, **shown)

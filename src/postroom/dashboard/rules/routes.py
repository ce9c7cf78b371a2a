"""Pages and API of rules: their order, the editor with its trial, on and off, removal."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from fastapi import Query
from pydantic import BaseModel, Field, StrictBool, StrictInt
from starlette.responses import Response

from postroom.dashboard.context import Here, RequestContext
from postroom.dashboard.forms import Form
from postroom.dashboard.mail.routes import message_path
from postroom.dashboard.paging import AfterId, Limit
from postroom.dashboard.routing import api_router, pages_router, permits
from postroom.dashboard.rules import rule_form
from postroom.dashboard.rules.queries import (
    PAGE,
    TRIAL_SIZES,
    RulePage,
    RuleRow,
    TrialResult,
    edit_rule,
    name_suggestions,
    remove_rule,
    require_rule_proof,
    require_switch_proof,
    rule_row,
    rules_page,
    run_trial,
    stored_rule,
    switch_rule,
    written,
)
from postroom.domain.actions import ActionType
from postroom.domain.errors import BadInput
from postroom.domain.roles import Permission
from postroom.triage.rules import store
from postroom.triage.rules.rule import DEFAULT_PRIORITY, MOST_ACTIONS, RuleDraft, ScopeKind, parse_fields
from postroom.triage.rules.store import MoveDirection, move_rule
from postroom.triage.rules.trial import UNSAID

pages = pages_router()

SECTION = "rules"
RULE_PAGE = "/rules/{rule_id:uuid}"
Newest = Annotated[int, Query(ge=1, le=max(TRIAL_SIZES))]


@pages.get("/rules")
async def rules_list_page(here: Here, after: AfterId = None) -> Response:
    start = None if after is None else str(after)
    page = await here.read(lambda tx: rules_page(tx, here.app.settings.safety, start))
    return await here.page("rules/list.html", SECTION, rules=page, is_first=start is None)


@pages.get("/rules/new")
async def new_rule_page(here: Here) -> Response:
    return await _editor(here, rule_form.blank())


@pages.post("/rules/new")
async def submit_new_rule(here: Here) -> Response:
    form = await here.form()
    if form["intent"] in ("try", "more"):
        return await _trial_page(here, form)
    draft, form = rule_form.read(form)
    if draft is None:
        return await _editor(here, form, status=422)
    await require_rule_proof(here, draft, form)
    try:
        rule = await here.write(lambda tx: store.add_rule(tx, draft, here.actor, here.now))
    except BadInput as error:
        return await _editor(here, form.refused(_beside(error)), status=422)
    return await here.go(f"/rules/{rule.id}", "The rule is saved. It is in force for mail that comes in from now on.")


@pages.get(RULE_PAGE)
async def rule_page(here: Here, rule_id: UUID) -> Response:
    return await _rule_page(here, rule_id)


@pages.get(f"{RULE_PAGE}/try")
async def trial_page(here: Here, rule_id: UUID, newest: Newest = TRIAL_SIZES[0]) -> Response:
    stored = await here.read(lambda tx: stored_rule(tx, str(rule_id)))
    if stored.draft is None:
        raise BadInput("rule", stored.problem or "cannot be read")
    return await _rule_page(here, rule_id, await run_trial(here, stored.draft, newest), newest)


@pages.get(f"{RULE_PAGE}/edit")
async def edit_rule_page(here: Here, rule_id: UUID) -> Response:
    stored = await here.read(lambda tx: stored_rule(tx, str(rule_id)))
    form = rule_form.blank() if stored.draft is None else rule_form.filled(stored.draft, stored.stamp)
    if stored.draft is None:
        form = Form({**form.values, "name": (stored.name,), "stamp": (stored.stamp,)})
    return await _editor(here, form, rule_id)


@pages.post(f"{RULE_PAGE}/edit")
async def submit_rule(here: Here, rule_id: UUID) -> Response:
    form = await here.form()
    if form["intent"] in ("try", "more"):
        return await _trial_page(here, form, rule_id)
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


@pages.get(f"{RULE_PAGE}/remove")
async def remove_rule_page(here: Here, rule_id: UUID) -> Response:
    row = await _shown_row(here, rule_id)
    return await here.page("rules/remove.html", SECTION, rule=row)


@pages.post(f"{RULE_PAGE}/remove")
async def submit_remove(here: Here, rule_id: UUID) -> Response:
    stamp = (await here.form()).optional("stamp")
    gone = await here.write(lambda tx: remove_rule(tx, str(rule_id), stamp, here.actor, here.now))
    return await here.go("/rules", f"The rule {gone.name} is removed. What it did stays done, and can be undone.")


@pages.post(f"{RULE_PAGE}/enable")
async def submit_enable(here: Here, rule_id: UUID) -> Response:
    return await _switch(here, rule_id, on=True)


@pages.post(f"{RULE_PAGE}/disable")
async def submit_disable(here: Here, rule_id: UUID) -> Response:
    return await _switch(here, rule_id, on=False)


@pages.post(f"{RULE_PAGE}/move")
async def submit_move(here: Here, rule_id: UUID) -> Response:
    direction = MoveDirection((await here.form()).one_of("direction", list(MoveDirection)))
    await here.write(lambda tx: move_rule(tx, store.rule_with_id(tx, str(rule_id)), direction, here.actor, here.now))
    return await here.go(f"/rules#r-{rule_id}")


async def _switch(here: RequestContext, rule_id: UUID, *, on: bool) -> Response:
    form = await here.form()
    if on:
        await require_switch_proof(here, str(rule_id), form)
    rule = await here.write(lambda tx: switch_rule(tx, str(rule_id), here.actor, here.now, on=on))
    back = "/rules" if form["back"] == "list" else f"/rules/{rule_id}"
    return await here.go(back, f"The rule {rule.name} is {'on' if on else 'off'}.")


async def _shown_row(here: RequestContext, rule_id: UUID) -> RuleRow:
    return await here.read(lambda tx: rule_row(tx, str(rule_id), here.app.settings.safety))


async def _rule_page(
    here: RequestContext, rule_id: UUID, trial: TrialResult | None = None, newest: int = TRIAL_SIZES[0]
) -> Response:
    row = await _shown_row(here, rule_id)
    text = written(await here.read(lambda tx: stored_rule(tx, str(rule_id))))
    shown: dict[str, Any] = {"rule": row, "written": text, "trial": trial, "newest": newest, "choices": TRIAL_SIZES}
    return await here.page("rules/rule.html", SECTION, **shown, address_of=message_path)


async def _trial_page(here: RequestContext, form: Form, rule_id: UUID | None = None) -> Response:
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


async def _try(here: RequestContext, draft: RuleDraft, newest: int, form: Form) -> TrialResult:
    return await run_trial(here, draft, newest, says_what=rule_form.says_what(form))


def _newest(form: Form) -> int:
    return int(form["newest"]) if form["newest"] in map(str, TRIAL_SIZES) else TRIAL_SIZES[0]


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
    here: RequestContext, form: Form, rule_id: UUID | None = None, status: int = 200, trial: TrialResult | None = None
) -> Response:
    shown: dict[str, Any] = {
        "rule_id": rule_id,
        "address": "/rules/new" if rule_id is None else f"/rules/{rule_id}/edit",
        "rows": rule_form.rows_of(form),
        "most_rows": MOST_ACTIONS,
        "kinds": list(ActionType),
        "scopes": list(ScopeKind),
        "known": await here.read(name_suggestions),
        "choices": TRIAL_SIZES,
        "newest": _newest(form),
        "trial": trial,
    }
    return await here.page("rules/editor.html", SECTION, status, form=form, address_of=message_path, **shown)


api = api_router("rules")

RULE = "/{rule_id}"
Stamp = Annotated[str | None, Query(max_length=100, description="`stamp` of the rule as it was seen")]
_CONDITION = "as in a file of rules: what is asked of a message, for example {sender_domain: shop.example}"
_ACTIONS = "what is done, in order: `archive`, `apply_label=Receipts`, or an object with `type`"


class RuleToTry(BaseModel, extra="forbid"):
    """A rule that is tried: it needs neither a name nor actions."""

    name: str = "this rule"
    scope: str = Field("global", description="global, account:E, domain:D or sender:A")
    condition: dict[str, Any] = Field(description=_CONDITION)
    actions: list[str | dict[str, Any]] | None = Field(None, description=_ACTIONS)
    unattended: StrictBool = Field(False, description="dangerous actions need no approval")
    newest: int = Field(
        TRIAL_SIZES[0], ge=1, le=max(TRIAL_SIZES), description="how many of the newest messages to look at"
    )

    def draft(self) -> RuleDraft:
        data = self.model_dump(exclude={"newest"})
        return parse_fields({**data, "actions": list(UNSAID) if self.actions is None else self.actions})


class RuleWanted(BaseModel, extra="forbid"):
    """A rule as people write it."""

    name: str
    scope: str = Field("global", description="global, account:E, domain:D or sender:A")
    priority: StrictInt = Field(DEFAULT_PRIORITY, description="lower numbers come first")
    condition: dict[str, Any] = Field(description=_CONDITION)
    actions: list[str | dict[str, Any]] = Field(description=_ACTIONS)
    unattended: StrictBool = Field(False, description="dangerous actions need no approval")
    enabled: StrictBool = True

    def draft(self) -> RuleDraft:
        return parse_fields(self.model_dump(exclude={"stamp"}))


class RuleChange(RuleWanted):
    stamp: str | None = Field(None, description="of the rule as it was seen; refused if it was changed since")


class RuleMove(BaseModel, extra="forbid"):
    direction: MoveDirection


class TrialWanted(BaseModel, extra="forbid"):
    newest: int = Field(
        TRIAL_SIZES[0], ge=1, le=max(TRIAL_SIZES), description="how many of the newest messages to look at"
    )


class RemovedRule(BaseModel):
    id: str
    name: str


@api.get("")
@permits(Permission.READ)
async def rules(here: Here, after: AfterId = None, limit: Limit = PAGE) -> RulePage:
    """Rules in the order in which they are tried."""
    start = None if after is None else str(after)
    return await here.read(lambda tx: rules_page(tx, here.app.settings.safety, start, limit))


@api.post("", status_code=201)
@permits(Permission.RULES)
async def add(here: Here, wanted: RuleWanted) -> RuleRow:
    """Add a rule. It is in force for mail that comes in from now on."""
    draft = wanted.draft()
    await require_rule_proof(here, draft)
    rule = await here.write(lambda tx: store.add_rule(tx, draft, here.actor, here.now))
    return await _row(here, rule.id)


@api.post("/try")
@permits(Permission.RULES)
async def try_new(here: Here, asked: RuleToTry) -> TrialResult:
    """Try a rule on the newest mail of the archive before it is saved. Takes a few seconds at most; nothing is done."""
    return await run_trial(here, asked.draft(), asked.newest, says_what=asked.actions is not None)


@api.get(RULE)
@permits(Permission.READ)
async def rule(here: Here, rule_id: UUID) -> RuleRow:
    """One rule."""
    return await _row(here, str(rule_id))


@api.put(RULE)
@permits(Permission.RULES)
async def change(here: Here, rule_id: UUID, wanted: RuleChange) -> RuleRow:
    """Put this in the place of a rule."""
    draft = wanted.draft()
    await require_rule_proof(here, draft)
    await here.write(lambda tx: edit_rule(tx, str(rule_id), wanted.stamp, draft, here.actor, here.now))
    return await _row(here, str(rule_id))


@api.delete(RULE)
@permits(Permission.RULES)
async def remove(here: Here, rule_id: UUID, stamp: Stamp = None) -> RemovedRule:
    """Remove a rule. What it did stays done, and can be undone."""
    gone = await here.write(lambda tx: remove_rule(tx, str(rule_id), stamp, here.actor, here.now))
    return RemovedRule(id=gone.id, name=gone.name)


@api.post(f"{RULE}/enable")
@permits(Permission.RULES)
async def enable(here: Here, rule_id: UUID) -> RuleRow:
    """Switch a rule on."""
    await require_switch_proof(here, str(rule_id))
    await here.write(lambda tx: switch_rule(tx, str(rule_id), here.actor, here.now, on=True))
    return await _row(here, str(rule_id))


@api.post(f"{RULE}/disable")
@permits(Permission.RULES)
async def disable(here: Here, rule_id: UUID) -> RuleRow:
    """Switch a rule off, and keep it."""
    await here.write(lambda tx: switch_rule(tx, str(rule_id), here.actor, here.now, on=False))
    return await _row(here, str(rule_id))


@api.post(f"{RULE}/move")
@permits(Permission.RULES)
async def move(here: Here, rule_id: UUID, wanted: RuleMove) -> RuleRow:
    """Move a rule one place up or down in the order."""
    await here.write(
        lambda tx: move_rule(tx, store.rule_with_id(tx, str(rule_id)), wanted.direction, here.actor, here.now)
    )
    return await _row(here, str(rule_id))


@api.post(f"{RULE}/try")
@permits(Permission.RULES)
async def try_saved(here: Here, rule_id: UUID, wanted: TrialWanted) -> TrialResult:
    """Try a saved rule on the newest mail of the archive. Takes a few seconds at most; nothing is done."""
    stored = await here.read(lambda tx: stored_rule(tx, str(rule_id)))
    if stored.draft is None:
        raise BadInput("rule", stored.problem or "cannot be read")
    return await run_trial(here, stored.draft, wanted.newest)


async def _row(here: RequestContext, rule_id: str) -> RuleRow:
    return await here.read(lambda tx: rule_row(tx, rule_id, here.app.settings.safety))

"""Pages and API of rules: their order, the editor with its trial, on and off, removal."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Query
from pydantic import BaseModel, Field, StrictBool
from starlette.responses import Response

from postroom.contract import rules as contract
from postroom.contract.tool import Id
from postroom.dashboard.context import Here, RequestContext, api_router, pages_router, permits
from postroom.dashboard.forms import Form
from postroom.dashboard.mail.message import read_facts
from postroom.dashboard.mail.routes import message_path
from postroom.dashboard.paging import ListQuery
from postroom.dashboard.rules import queries, rule_form
from postroom.dashboard.rules.learning import show_suggestions
from postroom.dashboard.security.login import call_with_proof
from postroom.domain.actions import ActionType
from postroom.domain.errors import BadInput
from postroom.domain.roles import Permission
from postroom.triage import review
from postroom.triage.rules.applying import DEFAULT_CAP, LARGEST_CAP, get_application, list_applications
from postroom.triage.rules.files import as_written
from postroom.triage.rules.rule import MOST_ACTIONS, RuleDraft, ScopeKind, parse_fields
from postroom.triage.rules.store import MoveDirection
from postroom.triage.rules.trial import UNSAID

pages = pages_router()
api = api_router("rules")

SECTION = "rules"
RULE_PAGE = "/rules/{rule_id:uuid}"
RULE = "/{rule_id}"
LikeMail = Annotated[str | None, Query(max_length=320)]
RulesWanted = Annotated[ListQuery, Query()]
Newest = Annotated[int, Query(ge=1, le=max(queries.TRIAL_SIZES))]
Stamp = Annotated[str | None, Query(max_length=100, description="`stamp` of the rule as you read it")]


class RuleToTry(BaseModel, extra="forbid"):
    """A rule to try: it needs neither a name nor actions."""

    name: str = "this rule"
    scope: str = Field("global", description=contract.SCOPE)
    condition: dict[str, Any] = Field(description=contract.CONDITION)
    actions: list[str | dict[str, Any]] | None = Field(None, description=contract.ACTIONS)
    unattended: StrictBool = Field(False, description="dangerous actions need no approval")
    newest: int = Field(
        queries.TRIAL_SIZES[0],
        ge=1,
        le=max(queries.TRIAL_SIZES),
        description="how many of the newest messages to check",
    )

    def draft(self) -> RuleDraft:
        data = self.model_dump(exclude={"newest"})
        return parse_fields({**data, "actions": list(UNSAID) if self.actions is None else self.actions})


class TrialWanted(BaseModel, extra="forbid"):
    newest: int = Field(
        queries.TRIAL_SIZES[0],
        ge=1,
        le=max(queries.TRIAL_SIZES),
        description="how many of the newest messages to check",
    )


class RemovedRule(BaseModel):
    id: str
    name: str


@pages.get("/rules")
async def rules_list_page(here: Here, wanted: RulesWanted) -> Response:
    suggested = await show_suggestions(here) if wanted.is_first_page else []
    rules = await show_rules(here, wanted)
    return await here.page("rules/list.html", SECTION, rules=rules, wanted=wanted, suggested=suggested)


@api.get("")
@permits(Permission.READ)
async def show_rules(here: Here, wanted: RulesWanted) -> queries.RulePage:
    """Rules in the order in which they are tried."""
    return await here.read(lambda tx: queries.rules_page(tx, here.app.settings.safety, wanted))


@pages.get("/rules/new")
async def new_rule_page(here: Here, like: Id | None = None, account: LikeMail = None, key: LikeMail = None) -> Response:
    """`like` is a message that needs review, `account` and `key` are one of the archive; the editor then has what a
    rule about its kind would ask for."""
    facts = None if like is None else await here.read(lambda tx: review.facts_of(tx, like))
    if account is not None and key is not None:
        facts = await read_facts(here.services.shared, account, key)
    return await _editor(here, rule_form.blank() if facts is None else rule_form.like(facts))


@pages.post("/rules/new")
async def submit_new_rule(here: Here) -> Response:
    return await _submitted(here, await here.form())


@api.post("", status_code=201)
@permits(Permission.RULES)
async def add(here: Here, wanted: contract.RuleArguments) -> queries.RuleRow:
    """Add a rule. It applies to mail that arrives from now on."""
    return await show_rule(here, (await here.call(contract.ADD, wanted)).rule)


@api.post("/try")
@permits(Permission.RULES)
async def try_new(here: Here, asked: RuleToTry) -> queries.TrialResult:
    """Try a rule on the newest archived mail before it is saved. Takes a few seconds at most; changes nothing."""
    return await queries.run_trial(here, asked.draft(), asked.newest, has_actions=asked.actions is not None)


@pages.get(RULE_PAGE)
async def rule_page(here: Here, rule_id: Id) -> Response:
    return await _rule_page(here, rule_id)


@api.get(RULE)
@permits(Permission.READ)
async def show_rule(here: Here, rule_id: Id) -> queries.RuleRow:
    """One rule."""
    return await here.read(lambda tx: queries.rule_row(tx, rule_id, here.app.settings.safety))


@pages.get(f"{RULE_PAGE}/try")
async def trial_page(here: Here, rule_id: Id, newest: Newest = queries.TRIAL_SIZES[0]) -> Response:
    return await _rule_page(here, rule_id, await queries.try_stored(here, rule_id, newest), newest)


@api.post(f"{RULE}/try")
@permits(Permission.RULES)
async def try_saved(here: Here, rule_id: Id, wanted: TrialWanted) -> queries.TrialResult:
    """Try a saved rule on the newest archived mail. Takes a few seconds at most; changes nothing."""
    return await queries.try_stored(here, rule_id, wanted.newest)


@pages.get(f"{RULE_PAGE}/edit")
async def edit_rule_page(here: Here, rule_id: Id) -> Response:
    stored = await here.read(lambda tx: queries.stored_rule(tx, rule_id))
    form = rule_form.blank() if stored.draft is None else rule_form.filled(stored.draft, stored.stamp)
    if stored.draft is None:
        form = Form({**form.values, "name": (stored.name,), "stamp": (stored.stamp,)})
    return await _editor(here, form, rule_id)


@pages.post(f"{RULE_PAGE}/edit")
async def submit_rule(here: Here, rule_id: Id) -> Response:
    return await _submitted(here, await here.form(), rule_id)


@api.put(RULE)
@permits(Permission.RULES)
async def change(here: Here, rule_id: Id, wanted: contract.RuleChange) -> queries.RuleRow:
    """Replace a rule."""
    await here.call(contract.EDIT, {**wanted.model_dump(), "rule": rule_id})
    return await show_rule(here, rule_id)


@pages.get(f"{RULE_PAGE}/remove")
async def remove_rule_page(here: Here, rule_id: Id) -> Response:
    return await here.page("rules/remove.html", SECTION, rule=await show_rule(here, rule_id))


@pages.post(f"{RULE_PAGE}/remove")
async def submit_remove(here: Here, rule_id: Id) -> Response:
    removed = await here.call(contract.REMOVE, {"rule": rule_id, "stamp": (await here.form()).optional("stamp")})
    return await here.go("/rules", f"The rule {removed.name} is removed. Its past actions stay and can be undone.")


@api.delete(RULE)
@permits(Permission.RULES)
async def remove(here: Here, rule_id: Id, stamp: Stamp = None) -> RemovedRule:
    """Remove a rule. Its past actions stay and can be undone."""
    removed = await here.call(contract.REMOVE, {"rule": rule_id, "stamp": stamp})
    return RemovedRule(id=removed.rule, name=removed.name)


@pages.post(f"{RULE_PAGE}/move")
async def submit_move(here: Here, rule_id: Id) -> Response:
    direction = (await here.form()).one_of("direction", list(MoveDirection))
    await here.call(contract.MOVE, {"rule": rule_id, "direction": direction})
    return await here.go(f"/rules#r-{rule_id}")


@api.post(f"{RULE}/move")
@permits(Permission.RULES)
async def move(here: Here, rule_id: Id, wanted: contract.RuleMove) -> queries.RuleRow:
    """Move a rule one place up or down in the order."""
    await here.call(contract.MOVE, {"rule": rule_id, "direction": wanted.direction})
    return await show_rule(here, rule_id)


class PastMailWanted(BaseModel, extra="forbid"):
    query: str = Field("", max_length=1_000, description="only mail that this search finds; empty: all")
    cap: int = Field(DEFAULT_CAP, ge=1, le=LARGEST_CAP, description="the most messages that it acts on")


class CapWanted(BaseModel, extra="forbid"):
    cap: int | None = Field(None, ge=1, le=LARGEST_CAP, description="another cap; unset: as before")


@pages.post(f"{RULE_PAGE}/apply")
async def submit_apply(here: Here, rule_id: Id) -> Response:
    form = await here.form()
    wanted = {"rule": rule_id, "query": form["query"], "cap": form.number("cap")}
    try:
        begun = await call_with_proof(here, contract.APPLY, wanted, form)
    except BadInput as error:
        return await here.go(f"/rules/{rule_id}", f"Not applied: {error.problem}", "bad")
    return await here.go(f"/rules/applications/{begun.id}", "A worker applies the rule; this page shows the progress.")


@api.post(f"{RULE}/apply", status_code=201)
@permits(Permission.RULES)
async def apply(here: Here, rule_id: Id, wanted: PastMailWanted) -> contract.ApplicationReply:
    """Apply a rule to past mail that is still in its mailbox, newest first."""
    return await here.call(contract.APPLY, {"rule": rule_id, **wanted.model_dump()})


@pages.get("/rules/applications/{application_id:uuid}")
async def application_page(here: Here, application_id: Id) -> Response:
    return await here.page("rules/application.html", SECTION, past=await show_application(here, application_id))


@api.get("/applications/{application_id}")
@permits(Permission.READ)
async def show_application(here: Here, application_id: Id) -> contract.ApplicationReply:
    """A rule that was applied to past mail, and how far that is."""
    found = await here.read(lambda tx: get_application(tx, application_id))
    return contract.ApplicationReply.model_validate(found)


@pages.post("/rules/applications/{application_id:uuid}/{step}")
async def submit_application(here: Here, application_id: Id, step: Literal["stop", "resume", "undo"]) -> Response:
    back = f"/rules/applications/{application_id}"
    chosen = {"application": application_id}
    match step:
        case "stop":
            await here.call(contract.STOP_APPLICATION, chosen)
            return await here.go(back, "Stopped. What it did stays, and can be undone.")
        case "resume":
            form = await here.form()
            await call_with_proof(here, contract.RESUME_APPLICATION, {**chosen, "cap": form.number("cap")}, form)
            return await here.go(back, "It goes on.")
        case "undo":
            await here.call(contract.UNDO_APPLICATION, chosen)
            return await here.go(back, "Undoing has started; the actions show the progress.")


@api.post("/applications/{application_id}/stop")
@permits(Permission.RULES)
async def stop_application(here: Here, application_id: Id) -> contract.ApplicationReply:
    """Stop it. What it did stays."""
    return await here.call(contract.STOP_APPLICATION, {"application": application_id})


@api.post("/applications/{application_id}/resume")
@permits(Permission.RULES)
async def resume_application(here: Here, application_id: Id, wanted: CapWanted) -> contract.ApplicationReply:
    """Go on where it ended."""
    return await here.call(contract.RESUME_APPLICATION, {"application": application_id, "cap": wanted.cap})


@api.post("/applications/{application_id}/undo")
@permits(Permission.RULES)
async def undo_application(here: Here, application_id: Id) -> contract.UndoApplicationReply:
    """Let a worker undo all of it."""
    return await here.call(contract.UNDO_APPLICATION, {"application": application_id})


@pages.post(f"{RULE_PAGE}/{{switch}}")
async def submit_switch(here: Here, rule_id: Id, switch: Literal["enable", "disable"]) -> Response:
    form, on = await here.form(), switch == "enable"
    rule = await call_with_proof(here, contract.SWITCH, {"rule": rule_id, "enabled": on}, form)
    back = "/rules" if form["back"] == "list" else f"/rules/{rule_id}"
    return await here.go(back, f"The rule {rule.name} is {'on' if on else 'off'}.")


@api.post(f"{RULE}/enable")
@permits(Permission.RULES)
async def enable(here: Here, rule_id: Id) -> queries.RuleRow:
    """Switch a rule on."""
    await here.call(contract.SWITCH, {"rule": rule_id, "enabled": True})
    return await show_rule(here, rule_id)


@api.post(f"{RULE}/disable")
@permits(Permission.RULES)
async def disable(here: Here, rule_id: Id) -> queries.RuleRow:
    """Switch a rule off, and keep it."""
    await here.call(contract.SWITCH, {"rule": rule_id, "enabled": False})
    return await show_rule(here, rule_id)


async def _submitted(here: RequestContext, form: Form, rule_id: str | None = None) -> Response:
    """The editor was sent: to save a rule, to try it, or to get more rows for actions."""
    if form["intent"] in ("try", "more"):
        return await _trial_page(here, form, rule_id)
    draft, form = rule_form.read(form)
    if draft is None:
        return await _editor(here, form, rule_id, status=422)
    try:
        if rule_id is None:
            made = await call_with_proof(here, contract.ADD, as_written(draft), form)
            return await here.go(
                f"/rules/{made.rule}", "The rule is saved. It applies to mail that arrives from now on."
            )
        changed = {**as_written(draft), "rule": rule_id, "stamp": form.optional("stamp")}
        await call_with_proof(here, contract.EDIT, changed, form)
    except BadInput as error:
        return await _editor(here, form.refused(_beside(error)), rule_id, status=422)
    return await here.go(f"/rules/{rule_id}", "The rule is saved.")


async def _rule_page(
    here: RequestContext, rule_id: str, trial: queries.TrialResult | None = None, newest: int = queries.TRIAL_SIZES[0]
) -> Response:
    row, stored, past = await here.read(
        lambda tx: (
            queries.rule_row(tx, rule_id, here.app.settings.safety),
            queries.stored_rule(tx, rule_id),
            list_applications(tx, rule_id, 10),
        )
    )
    shown: dict[str, Any] = {
        "rule": row,
        "written": queries.written(stored),
        "trial": trial,
        "newest": newest,
        "choices": queries.TRIAL_SIZES,
        "past": past,
        "cap": DEFAULT_CAP,
        "most": LARGEST_CAP,
    }
    return await here.page("rules/rule.html", SECTION, **shown, address_of=message_path)


async def _trial_page(here: RequestContext, form: Form, rule_id: str | None = None) -> Response:
    """The editor as it was, with the result of the trial, or with more rows for actions."""
    if form["intent"] == "more":
        return await _editor(here, form, rule_id)
    draft, form = rule_form.read(form, to_try=True)
    newest = _newest(form)
    if draft is None:
        return await _editor(here, form, rule_id, status=422)
    try:
        trial = await queries.run_trial(here, draft, newest, has_actions=rule_form.has_actions(form))
    except BadInput as error:
        return await _editor(here, form.refused(_beside(error)), rule_id, status=422)
    return await _editor(here, form, rule_id, trial=trial)


def _newest(form: Form) -> int:
    return int(form["newest"]) if form["newest"] in map(str, queries.TRIAL_SIZES) else queries.TRIAL_SIZES[0]


def _beside(error: BadInput) -> BadInput:
    """A refusal of the store, with the name of its field on the form."""
    match error.field:
        case "account":
            return BadInput("which", error.problem)
        case "name":
            return error
        case _:
            return BadInput("name", error.problem)


async def _editor(
    here: RequestContext,
    form: Form,
    rule_id: str | None = None,
    status: int = 200,
    trial: queries.TrialResult | None = None,
) -> Response:
    shown: dict[str, Any] = {
        "rule_id": rule_id,
        "address": "/rules/new" if rule_id is None else f"/rules/{rule_id}/edit",
        "rows": rule_form.rows_of(form),
        "most_rows": MOST_ACTIONS,
        "kinds": [kind for kind in ActionType if kind is not ActionType.UNSUBSCRIBE],
        "scopes": list(ScopeKind),
        "known": await here.read(queries.name_suggestions),
        "choices": queries.TRIAL_SIZES,
        "newest": _newest(form),
        "trial": trial,
    }
    return await here.page("rules/editor.html", SECTION, status, form=form, address_of=message_path, **shown)

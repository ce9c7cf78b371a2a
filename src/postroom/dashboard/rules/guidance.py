"""The owner's instructions to the model: directions for all mail, guidance for the mail of a scope."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import AwareDatetime, BaseModel, Field, StrictBool
from starlette.responses import Response

from postroom.dashboard.context import Here, RequestContext
from postroom.dashboard.forms import Form
from postroom.dashboard.routing import Id, api_router, pages_router, permits
from postroom.dashboard.rules.queries import name_suggestions
from postroom.db import Tx
from postroom.domain.clock import require_utc
from postroom.domain.errors import BadInput
from postroom.domain.roles import Permission
from postroom.triage import guidance as guidance_store
from postroom.triage.guidance import Direction, StoredModelRule, changed_meanwhile
from postroom.triage.rules.rows import account_addresses, named
from postroom.triage.rules.rule import RuleScope, ScopeKind, checked_scope, parse_scope
from postroom.triage.rules.wording import scope_in_words


@dataclass(frozen=True, slots=True)
class DirectionRow:
    id: str
    number: int
    """Its place in the model's reading order, from 1."""
    text: str
    enabled: bool
    updated_at: datetime
    """Send it as `seen` with a change, which is refused if it was changed since."""


@dataclass(frozen=True, slots=True)
class GuidanceRow:
    id: str
    name: str
    scope: str
    """`global`, `account:E`, `domain:D` or `sender:A`."""
    whose_mail: str
    """The scope in words."""
    text: str
    enabled: bool
    updated_at: datetime
    """As for directions."""


def directions(tx: Tx) -> Sequence[DirectionRow]:
    return [_direction(number, each) for number, each in enumerate(guidance_store.list_directions(tx), 1)]


def direction(tx: Tx, direction_id: str) -> DirectionRow:
    wanted = guidance_store.direction_with_id(tx, direction_id)
    return next(row for row in directions(tx) if row.id == wanted.id)


def guidance(tx: Tx) -> Sequence[GuidanceRow]:
    addresses = account_addresses(tx)
    return [_guidance(each, addresses) for each in guidance_store.list_model_rules(tx)]


def one_guidance(tx: Tx, guidance_id: str) -> GuidanceRow:
    return _guidance(guidance_store.model_rule_with_id(tx, guidance_id), account_addresses(tx))


async def add_one_direction(here: RequestContext, text: str) -> DirectionRow:
    added = await here.write(lambda tx: guidance_store.add_direction(tx, text, here.actor, here.now))
    return await here.read(lambda tx: direction(tx, added.id))


async def edit_direction(
    here: RequestContext, direction_id: str, changes: Mapping[str, Any], seen: datetime | None = None
) -> DirectionRow:
    def change(tx: Tx) -> DirectionRow:
        before = guidance_store.direction_with_id(tx, direction_id)
        if seen not in (None, before.updated_at):
            raise changed_meanwhile("direction")
        guidance_store.change_direction(tx, before, changes, here.actor, here.now)
        return direction(tx, direction_id)

    return await here.write(change)


async def remove_direction(here: RequestContext, direction_id: str) -> Direction:
    def change(tx: Tx) -> Direction:
        before = guidance_store.direction_with_id(tx, direction_id)
        guidance_store.remove_direction(tx, before, here.actor, here.now)
        return before

    return await here.write(change)


async def add_one_guidance(here: RequestContext, name: str, scope: RuleScope, text: str) -> GuidanceRow:
    added = await here.write(lambda tx: guidance_store.add_model_rule(tx, name, scope, text, here.actor, here.now))
    return await here.read(lambda tx: one_guidance(tx, added.id))


async def edit_guidance(
    here: RequestContext, guidance_id: str, changes: Mapping[str, Any], seen: datetime | None = None
) -> GuidanceRow:
    def change(tx: Tx) -> GuidanceRow:
        before = guidance_store.model_rule_with_id(tx, guidance_id)
        if seen not in (None, before.updated_at):
            raise changed_meanwhile(f"guidance {before.name}")
        guidance_store.change_model_rule(tx, before, changes, here.actor, here.now)
        return one_guidance(tx, guidance_id)

    return await here.write(change)


async def remove_guidance(here: RequestContext, guidance_id: str) -> StoredModelRule:
    def change(tx: Tx) -> StoredModelRule:
        before = guidance_store.model_rule_with_id(tx, guidance_id)
        guidance_store.remove_model_rule(tx, before, here.actor, here.now)
        return before

    return await here.write(change)


def _direction(number: int, direction: Direction) -> DirectionRow:
    return DirectionRow(direction.id, number, direction.text, direction.enabled, direction.updated_at)


def _guidance(rule: StoredModelRule, addresses: Mapping[str, str]) -> GuidanceRow:
    scope = named(rule.scope, addresses)
    return GuidanceRow(
        id=rule.id,
        name=rule.name,
        scope=str(scope),
        whose_mail=scope_in_words(scope),
        text=rule.text,
        enabled=rule.enabled,
        updated_at=rule.updated_at,
    )


pages = pages_router()

SECTION = "rules"
INSTRUCTIONS = "/rules/instructions"
DIRECTION = "/rules/directions/{direction_id:uuid}"
GUIDANCE = "/rules/guidance/{guidance_id:uuid}"


@pages.get(INSTRUCTIONS)
async def instructions_page(here: Here) -> Response:
    return await _instructions_page(here)


@pages.post("/rules/directions")
async def submit_new_direction(here: Here) -> Response:
    form = await here.form()
    try:
        await add_one_direction(here, form["direction"])
    except BadInput as error:
        return await _instructions_page(here, 422, form.refused(BadInput("direction", error.problem)))
    return await here.go(INSTRUCTIONS, "The model follows this from now on.")


@pages.get(DIRECTION)
async def direction_page(here: Here, direction_id: Id) -> Response:
    row = await show_direction(here, direction_id)
    return await _direction_page(here, direction_id, Form.filled(text=row.text, seen=row.updated_at.isoformat()))


@pages.post(DIRECTION)
async def submit_direction(here: Here, direction_id: Id) -> Response:
    form = await here.form()
    try:
        await edit_direction(here, direction_id, {"text": form["text"]}, _seen(form))
    except BadInput as error:
        return await _direction_page(here, direction_id, form.refused(_beside(error)), 422)
    return await here.go(INSTRUCTIONS, "The direction is saved.")


@pages.post(f"{DIRECTION}/switch")
async def submit_direction_switch(here: Here, direction_id: Id) -> Response:
    on = (await here.form()).checked("on")
    await edit_direction(here, direction_id, {"enabled": on})
    return await here.go(INSTRUCTIONS, f"The direction is {'on' if on else 'off'}.")


@pages.post(f"{DIRECTION}/remove")
async def submit_direction_removal(here: Here, direction_id: Id) -> Response:
    await remove_direction(here, direction_id)
    return await here.go(INSTRUCTIONS, "The direction is removed.")


@pages.post("/rules/guidance")
async def submit_new_guidance(here: Here) -> Response:
    form = await here.form()
    try:
        await add_one_guidance(here, form["name"], _scope(form), form["text"])
    except BadInput as error:
        return await _instructions_page(here, 422, form.refused(_beside(error)))
    return await here.go(INSTRUCTIONS, "The model follows this from now on.")


@pages.get(GUIDANCE)
async def guidance_page(here: Here, guidance_id: Id) -> Response:
    row = await show_guidance(here, guidance_id)
    kind, _, ref = row.scope.partition(":")
    seen = row.updated_at.isoformat()
    form = Form.filled(name=row.name, whose_mail=kind, which=ref, text=row.text, seen=seen)
    return await _guidance_page(here, guidance_id, form)


@pages.post(GUIDANCE)
async def submit_guidance(here: Here, guidance_id: Id) -> Response:
    form = await here.form()
    try:
        changes = {"name": form["name"], "scope": _scope(form), "text": form["text"]}
        await edit_guidance(here, guidance_id, changes, _seen(form))
    except BadInput as error:
        return await _guidance_page(here, guidance_id, form.refused(_beside(error)), 422)
    return await here.go(INSTRUCTIONS, "The guidance is saved.")


@pages.post(f"{GUIDANCE}/switch")
async def submit_guidance_switch(here: Here, guidance_id: Id) -> Response:
    on = (await here.form()).checked("on")
    await edit_guidance(here, guidance_id, {"enabled": on})
    return await here.go(INSTRUCTIONS, f"The guidance is {'on' if on else 'off'}.")


@pages.post(f"{GUIDANCE}/remove")
async def submit_guidance_removal(here: Here, guidance_id: Id) -> Response:
    removed = await remove_guidance(here, guidance_id)
    return await here.go(INSTRUCTIONS, f"The guidance {removed.name} is removed.")


def _scope(form: Form) -> RuleScope:
    return checked_scope(form["whose_mail"] or ScopeKind.GLOBAL, form["which"], "which")


def _seen(form: Form) -> datetime:
    try:
        return require_utc(datetime.fromisoformat(form["seen"]), "text")
    except ValueError:
        raise BadInput("text", "was not sent by this page; open it again") from None


def _beside(error: BadInput) -> BadInput:
    """A refusal of the store, with the name of its field on the form."""
    field = {"account": "which"}.get(error.field, error.field)
    return BadInput(field if field in ("name", "which", "text") else "text", error.problem)


async def _instructions_page(here: RequestContext, status: int = 200, form: Form | None = None) -> Response:
    shown: dict[str, Any] = {
        "directions": await here.read(directions),
        "guidance": await here.read(guidance),
        "known": await here.read(name_suggestions),
        "scopes": list(ScopeKind),
        "longest": guidance_store.LONGEST_TEXT,
    }
    return await here.page("rules/instructions.html", SECTION, status, form=form or Form(), **shown)


async def _direction_page(here: RequestContext, direction_id: str, form: Form, status: int = 200) -> Response:
    longest = guidance_store.LONGEST_TEXT
    return await here.page(
        "rules/direction.html", SECTION, status, form=form, direction_id=direction_id, longest=longest
    )


async def _guidance_page(here: RequestContext, guidance_id: str, form: Form, status: int = 200) -> Response:
    shown: dict[str, Any] = {"known": await here.read(name_suggestions), "scopes": list(ScopeKind)}
    shown |= {"guidance_id": guidance_id, "longest": guidance_store.LONGEST_TEXT}
    return await here.page("rules/guidance.html", SECTION, status, form=form, **shown)


directions_api = api_router("directions")


class NewDirection(BaseModel, extra="forbid"):
    text: str = Field(description="what the model should follow, in a sentence or two")


class ChangedDirection(BaseModel, extra="forbid"):
    text: str | None = Field(None, description="null: unchanged")
    enabled: StrictBool | None = Field(None, description="null: unchanged")
    seen: AwareDatetime | None = Field(None, description="`updated_at` as you read it; refused if it changed since")


class RemovedDirection(BaseModel):
    id: str
    text: str


@directions_api.get("")
@permits(Permission.READ)
async def list_directions(here: Here) -> Sequence[DirectionRow]:
    """In the order in which the model reads them; 500 at most."""
    return await here.read(directions)


@directions_api.post("", status_code=201)
@permits(Permission.RULES)
async def add_direction(here: Here, wanted: NewDirection) -> DirectionRow:
    """Add a direction at the end."""
    return await add_one_direction(here, wanted.text)


@directions_api.get("/{direction_id}")
@permits(Permission.READ)
async def show_direction(here: Here, direction_id: Id) -> DirectionRow:
    """One direction."""
    return await here.read(lambda tx: direction(tx, direction_id))


@directions_api.put("/{direction_id}")
@permits(Permission.RULES)
async def change_direction(here: Here, direction_id: Id, wanted: ChangedDirection) -> DirectionRow:
    """Change its text, or switch it on or off."""
    changes = wanted.model_dump(exclude={"seen"}, exclude_none=True)
    return await edit_direction(here, direction_id, changes, wanted.seen)


@directions_api.delete("/{direction_id}")
@permits(Permission.RULES)
async def delete_direction(here: Here, direction_id: Id) -> RemovedDirection:
    """Remove a direction."""
    removed = await remove_direction(here, direction_id)
    return RemovedDirection(id=removed.id, text=removed.text)


guidance_api = api_router("guidance")

_SCOPE = "global, account:E, domain:D or sender:A"


class NewGuidance(BaseModel, extra="forbid"):
    name: str
    scope: str = Field("global", description=_SCOPE)
    text: str = Field(description="what the model should follow")


class ChangedGuidance(BaseModel, extra="forbid"):
    """Null values stay unchanged."""

    name: str | None = None
    scope: str | None = Field(None, description=_SCOPE)
    text: str | None = None
    enabled: StrictBool | None = None
    seen: AwareDatetime | None = Field(None, description="`updated_at` as you read it; refused if it changed since")


class RemovedGuidance(BaseModel):
    id: str
    name: str


@guidance_api.get("")
@permits(Permission.READ)
async def list_guidance(here: Here) -> Sequence[GuidanceRow]:
    """All guidance; 500 at most."""
    return await here.read(guidance)


@guidance_api.post("", status_code=201)
@permits(Permission.RULES)
async def add_guidance(here: Here, wanted: NewGuidance) -> GuidanceRow:
    """Add guidance for mail of a scope."""
    return await add_one_guidance(here, wanted.name, parse_scope(wanted.scope), wanted.text)


@guidance_api.get("/{guidance_id}")
@permits(Permission.READ)
async def show_guidance(here: Here, guidance_id: Id) -> GuidanceRow:
    """One piece of guidance."""
    return await here.read(lambda tx: one_guidance(tx, guidance_id))


@guidance_api.put("/{guidance_id}")
@permits(Permission.RULES)
async def change_guidance(here: Here, guidance_id: Id, wanted: ChangedGuidance) -> GuidanceRow:
    """Change its name, scope or text, or switch it on or off."""
    changes = wanted.model_dump(exclude={"seen"}, exclude_none=True)
    if wanted.scope is not None:
        changes["scope"] = parse_scope(wanted.scope)
    return await edit_guidance(here, guidance_id, changes, wanted.seen)


@guidance_api.delete("/{guidance_id}")
@permits(Permission.RULES)
async def delete_guidance(here: Here, guidance_id: Id) -> RemovedGuidance:
    """Remove guidance."""
    removed = await remove_guidance(here, guidance_id)
    return RemovedGuidance(id=removed.id, name=removed.name)

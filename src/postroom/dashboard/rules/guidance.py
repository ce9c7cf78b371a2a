"""What the model is told in the owner's words: directions for all mail, guidance for the mail of a scope. Queries,
pages and API.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from pydantic import AwareDatetime, BaseModel, Field, StrictBool
from starlette.responses import Response

from postroom.dashboard.context import Here, RequestContext
from postroom.dashboard.forms import Form
from postroom.dashboard.routing import api_router, pages_router, permits
from postroom.dashboard.rules.queries import (
    edit_direction,
    edit_guidance,
    name_suggestions,
    remove_direction,
    remove_guidance,
)
from postroom.db import Tx
from postroom.domain.clock import require_utc
from postroom.domain.errors import BadInput
from postroom.domain.roles import Permission
from postroom.triage import guidance as guidance_store
from postroom.triage.guidance import Direction, StoredModelRule
from postroom.triage.rules.rows import account_addresses, named
from postroom.triage.rules.rule import RuleScope, ScopeKind, checked_scope, parse_scope
from postroom.triage.rules.wording import scope_in_words


@dataclass(frozen=True, slots=True)
class DirectionRow:
    id: str
    number: int
    """Its place in the order in which the model reads them, from 1."""
    text: str
    enabled: bool
    updated_at: datetime
    """Sent with a change as `seen`, it makes sure that nobody else has changed it meanwhile."""


@dataclass(frozen=True, slots=True)
class GuidanceRow:
    id: str
    name: str
    scope: str
    """As it is written: `global`, `account:E`, `domain:D` or `sender:A`."""
    whose_mail: str
    """The scope in words."""
    text: str
    enabled: bool
    updated_at: datetime
    """As with directions."""


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
GUIDANCE_LIST = "/rules/told"
DIRECTION = "/rules/directions/{direction_id:uuid}"
GUIDANCE = "/rules/guidance/{guidance_id:uuid}"


@pages.get(GUIDANCE_LIST)
async def guidance_list_page(here: Here) -> Response:
    return await _guidance_list_page(here)


@pages.post("/rules/directions")
async def submit_new_direction(here: Here) -> Response:
    form = await here.form()
    try:
        await here.write(lambda tx: guidance_store.add_direction(tx, form["direction"], here.actor, here.now))
    except BadInput as error:
        return await _guidance_list_page(here, 422, form.refused(BadInput("direction", error.problem)))
    return await here.go(GUIDANCE_LIST, "The model is told this from now on.")


@pages.get(DIRECTION)
async def direction_page(here: Here, direction_id: UUID) -> Response:
    row = await here.read(lambda tx: direction(tx, str(direction_id)))
    return await _direction_page(here, direction_id, Form.filled(text=row.text, seen=row.updated_at.isoformat()))


@pages.post(DIRECTION)
async def submit_direction(here: Here, direction_id: UUID) -> Response:
    form = await here.form()
    try:
        seen, changes = _seen(form), {"text": form["text"]}
        await here.write(lambda tx: edit_direction(tx, str(direction_id), seen, changes, here.actor, here.now))
    except BadInput as error:
        return await _direction_page(here, direction_id, form.refused(_beside(error)), 422)
    return await here.go(GUIDANCE_LIST, "The direction is saved.")


@pages.post(f"{DIRECTION}/switch")
async def submit_direction_switch(here: Here, direction_id: UUID) -> Response:
    on = (await here.form()).checked("on")
    await here.write(lambda tx: edit_direction(tx, str(direction_id), None, {"enabled": on}, here.actor, here.now))
    return await here.go(GUIDANCE_LIST, f"The direction is {'on' if on else 'off'}.")


@pages.post(f"{DIRECTION}/remove")
async def submit_direction_removal(here: Here, direction_id: UUID) -> Response:
    await here.write(lambda tx: remove_direction(tx, str(direction_id), here.actor, here.now))
    return await here.go(GUIDANCE_LIST, "The direction is removed.")


@pages.post("/rules/guidance")
async def submit_new_guidance(here: Here) -> Response:
    form = await here.form()
    try:
        scope = _scope(form)
        await here.write(
            lambda tx: guidance_store.add_model_rule(tx, form["name"], scope, form["text"], here.actor, here.now)
        )
    except BadInput as error:
        return await _guidance_list_page(here, 422, form.refused(_beside(error)))
    return await here.go(GUIDANCE_LIST, "The model is told this from now on.")


@pages.get(GUIDANCE)
async def guidance_page(here: Here, guidance_id: UUID) -> Response:
    row = await here.read(lambda tx: one_guidance(tx, str(guidance_id)))
    kind, _, ref = row.scope.partition(":")
    seen = row.updated_at.isoformat()
    form = Form.filled(name=row.name, whose_mail=kind, which=ref, text=row.text, seen=seen)
    return await _guidance_page(here, guidance_id, form)


@pages.post(GUIDANCE)
async def submit_guidance(here: Here, guidance_id: UUID) -> Response:
    form = await here.form()
    try:
        seen, changes = _seen(form), {"name": form["name"], "scope": _scope(form), "text": form["text"]}
        await here.write(lambda tx: edit_guidance(tx, str(guidance_id), seen, changes, here.actor, here.now))
    except BadInput as error:
        return await _guidance_page(here, guidance_id, form.refused(_beside(error)), 422)
    return await here.go(GUIDANCE_LIST, "The guidance is saved.")


@pages.post(f"{GUIDANCE}/switch")
async def submit_guidance_switch(here: Here, guidance_id: UUID) -> Response:
    on = (await here.form()).checked("on")
    await here.write(lambda tx: edit_guidance(tx, str(guidance_id), None, {"enabled": on}, here.actor, here.now))
    return await here.go(GUIDANCE_LIST, f"The guidance is {'on' if on else 'off'}.")


@pages.post(f"{GUIDANCE}/remove")
async def submit_guidance_removal(here: Here, guidance_id: UUID) -> Response:
    gone = await here.write(lambda tx: remove_guidance(tx, str(guidance_id), here.actor, here.now))
    return await here.go(GUIDANCE_LIST, f"The guidance {gone.name} is removed.")


def _scope(form: Form) -> RuleScope:
    return checked_scope(form["whose_mail"] or ScopeKind.GLOBAL, form["which"], "which")


def _seen(form: Form) -> datetime:
    try:
        return require_utc(datetime.fromisoformat(form["seen"]), "text")
    except ValueError:
        raise BadInput("text", "came from a page that is not ours; open it again") from None


def _beside(error: BadInput) -> BadInput:
    """What the store refuses, beside the field that it is about."""
    field = {"account": "which"}.get(error.field, error.field)
    return BadInput(field if field in ("name", "which", "text") else "text", error.problem)


async def _guidance_list_page(here: RequestContext, status: int = 200, form: Form | None = None) -> Response:
    shown: dict[str, Any] = {
        "directions": await here.read(directions),
        "guidance": await here.read(guidance),
        "known": await here.read(name_suggestions),
        "scopes": list(ScopeKind),
        "longest": guidance_store.LONGEST_TEXT,
    }
    return await here.page("rules/told.html", SECTION, status, form=form or Form(), **shown)


async def _direction_page(here: RequestContext, direction_id: UUID, form: Form, status: int = 200) -> Response:
    longest = guidance_store.LONGEST_TEXT
    return await here.page(
        "rules/direction.html", SECTION, status, form=form, direction_id=direction_id, longest=longest
    )


async def _guidance_page(here: RequestContext, guidance_id: UUID, form: Form, status: int = 200) -> Response:
    shown: dict[str, Any] = {"known": await here.read(name_suggestions), "scopes": list(ScopeKind)}
    shown |= {"guidance_id": guidance_id, "longest": guidance_store.LONGEST_TEXT}
    return await here.page("rules/guidance.html", SECTION, status, form=form, **shown)


directions_api = api_router("directions")


class NewDirection(BaseModel, extra="forbid"):
    text: str = Field(description="what the model should heed, in a sentence or two")


class ChangedDirection(BaseModel, extra="forbid"):
    text: str | None = Field(None, description="null: as it is")
    enabled: StrictBool | None = Field(None, description="null: as it is")
    seen: AwareDatetime | None = Field(None, description="`updated_at` as it was seen; refused if it changed since")


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
    added = await here.write(lambda tx: guidance_store.add_direction(tx, wanted.text, here.actor, here.now))
    return await here.read(lambda tx: direction(tx, added.id))


@directions_api.get("/{direction_id}")
@permits(Permission.READ)
async def show_direction(here: Here, direction_id: UUID) -> DirectionRow:
    """One direction."""
    return await here.read(lambda tx: direction(tx, str(direction_id)))


@directions_api.put("/{direction_id}")
@permits(Permission.RULES)
async def change_direction(here: Here, direction_id: UUID, wanted: ChangedDirection) -> DirectionRow:
    """Change its text, or switch it on or off."""
    changes = wanted.model_dump(exclude={"seen"}, exclude_none=True)
    await here.write(lambda tx: edit_direction(tx, str(direction_id), wanted.seen, changes, here.actor, here.now))
    return await here.read(lambda tx: direction(tx, str(direction_id)))


@directions_api.delete("/{direction_id}")
@permits(Permission.RULES)
async def delete_direction(here: Here, direction_id: UUID) -> RemovedDirection:
    """Remove a direction."""
    gone = await here.write(lambda tx: remove_direction(tx, str(direction_id), here.actor, here.now))
    return RemovedDirection(id=gone.id, text=gone.text)


guidance_api = api_router("guidance")

_SCOPE = "global, account:E, domain:D or sender:A"


class NewGuidance(BaseModel, extra="forbid"):
    name: str
    scope: str = Field("global", description=_SCOPE)
    text: str = Field(description="what the model should heed")


class ChangedGuidance(BaseModel, extra="forbid"):
    """What is null stays as it is."""

    name: str | None = None
    scope: str | None = Field(None, description=_SCOPE)
    text: str | None = None
    enabled: StrictBool | None = None
    seen: AwareDatetime | None = Field(None, description="`updated_at` as it was seen; refused if it changed since")


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
    scope = parse_scope(wanted.scope)
    added = await here.write(
        lambda tx: guidance_store.add_model_rule(tx, wanted.name, scope, wanted.text, here.actor, here.now)
    )
    return await here.read(lambda tx: one_guidance(tx, added.id))


@guidance_api.get("/{guidance_id}")
@permits(Permission.READ)
async def show_guidance(here: Here, guidance_id: UUID) -> GuidanceRow:
    """One of them."""
    return await here.read(lambda tx: one_guidance(tx, str(guidance_id)))


@guidance_api.put("/{guidance_id}")
@permits(Permission.RULES)
async def change_guidance(here: Here, guidance_id: UUID, wanted: ChangedGuidance) -> GuidanceRow:
    """Change its name, scope or text, or switch it on or off."""
    changes = wanted.model_dump(exclude={"seen"}, exclude_none=True)
    if wanted.scope is not None:
        changes["scope"] = parse_scope(wanted.scope)
    await here.write(lambda tx: edit_guidance(tx, str(guidance_id), wanted.seen, changes, here.actor, here.now))
    return await here.read(lambda tx: one_guidance(tx, str(guidance_id)))


@guidance_api.delete("/{guidance_id}")
@permits(Permission.RULES)
async def delete_guidance(here: Here, guidance_id: UUID) -> RemovedGuidance:
    """Remove guidance."""
    gone = await here.write(lambda tx: remove_guidance(tx, str(guidance_id), here.actor, here.now))
    return RemovedGuidance(id=gone.id, name=gone.name)

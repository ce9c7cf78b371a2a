"""The owner's instructions to the model: directions for all mail, guidance for the mail of a scope.

Both have the same pages; `KINDS` has what differs between them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import BaseModel
from starlette.responses import Response

from postroom.contract import rules as contract
from postroom.contract.tool import Id, ToolSignature
from postroom.dashboard.context import Here, RequestContext, api_router, pages_router, permits
from postroom.dashboard.forms import Form
from postroom.dashboard.rules.queries import name_suggestions
from postroom.db import Tx
from postroom.domain.clock import require_utc
from postroom.domain.errors import BadInput
from postroom.domain.roles import Permission
from postroom.triage import guidance as guidance_store
from postroom.triage.guidance import Direction, StoredModelRule
from postroom.triage.rules.rows import account_addresses, named
from postroom.triage.rules.rule import ScopeKind, checked_scope
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


@dataclass(frozen=True, slots=True)
class InstructionKind:
    word: str
    """Also the argument of its tools that says which one is meant."""
    add: ToolSignature[Any, Any]
    edit: ToolSignature[Any, Any]
    remove: ToolSignature[Any, Any]
    fields: tuple[str, ...]
    """Those of its form beside which an error may be shown; the last is for all other errors."""
    new_text: str = "text"
    """The field with the text in the form that adds one."""

    @property
    def template(self) -> str:
        return f"rules/{self.word}.html"


KINDS = {
    "directions": InstructionKind(
        "direction",
        contract.ADD_DIRECTION,
        contract.EDIT_DIRECTION,
        contract.REMOVE_DIRECTION,
        ("text",),
        new_text="direction",
    ),
    "guidance": InstructionKind(
        "guidance",
        contract.ADD_GUIDANCE,
        contract.EDIT_GUIDANCE,
        contract.REMOVE_GUIDANCE,
        ("name", "which", "text"),
    ),
}

pages = pages_router()

SECTION = "rules"
INSTRUCTIONS = "/rules/instructions"
DIRECTION = "/rules/directions/{instruction_id:uuid}"
GUIDANCE = "/rules/guidance/{instruction_id:uuid}"


@pages.get(INSTRUCTIONS)
async def instructions_page(here: Here) -> Response:
    return await _instructions_page(here)


@pages.post("/rules/directions")
@pages.post("/rules/guidance")
async def submit_new_instruction(here: Here) -> Response:
    form, kind = await here.form(), _kind(here)
    try:
        await here.call(kind.add, _arguments(kind, form, form[kind.new_text]))
    except BadInput as error:
        fields = (*kind.fields[:-1], kind.new_text)
        return await _instructions_page(here, 422, form.refused(_beside(error, fields)))
    return await here.go(INSTRUCTIONS, "The model follows this from now on.")


@pages.get(DIRECTION)
async def direction_page(here: Here, instruction_id: Id) -> Response:
    row = await show_direction(here, instruction_id)
    return await _edit_page(here, instruction_id, Form.filled(text=row.text, seen=row.updated_at.isoformat()))


@pages.get(GUIDANCE)
async def guidance_page(here: Here, instruction_id: Id) -> Response:
    row = await show_guidance(here, instruction_id)
    kind, _, ref = row.scope.partition(":")
    seen = row.updated_at.isoformat()
    form = Form.filled(name=row.name, whose_mail=kind, which=ref, text=row.text, seen=seen)
    return await _edit_page(here, instruction_id, form)


@pages.post(DIRECTION)
@pages.post(GUIDANCE)
async def submit_instruction(here: Here, instruction_id: Id) -> Response:
    form, kind = await here.form(), _kind(here)
    try:
        changes = _arguments(kind, form, form["text"])
        await here.call(kind.edit, {kind.word: instruction_id, **changes, "seen": _seen(form)})
    except BadInput as error:
        return await _edit_page(here, instruction_id, form.refused(_beside(error, kind.fields)), 422)
    return await here.go(INSTRUCTIONS, f"The {kind.word} is saved.")


@pages.post(f"{DIRECTION}/switch")
@pages.post(f"{GUIDANCE}/switch")
async def submit_instruction_switch(here: Here, instruction_id: Id) -> Response:
    on, kind = (await here.form()).checked("on"), _kind(here)
    await here.call(kind.edit, {kind.word: instruction_id, "enabled": on})
    return await here.go(INSTRUCTIONS, f"The {kind.word} is {'on' if on else 'off'}.")


@pages.post(f"{DIRECTION}/remove")
@pages.post(f"{GUIDANCE}/remove")
async def submit_instruction_removal(here: Here, instruction_id: Id) -> Response:
    kind = _kind(here)
    removed = await here.call(kind.remove, {kind.word: instruction_id})
    name = f" {removed.name}" if isinstance(removed, contract.GuidanceReply) else ""
    return await here.go(INSTRUCTIONS, f"The {kind.word}{name} is removed.")


def _kind(here: RequestContext) -> InstructionKind:
    return KINDS[here.request.url.path.split("/")[2]]


def _arguments(kind: InstructionKind, form: Form, text: str) -> dict[str, Any]:
    if "which" not in kind.fields:
        return {"text": text}
    scope = checked_scope(form["whose_mail"] or ScopeKind.GLOBAL, form["which"], "which")
    return {"name": form["name"], "scope": str(scope), "text": text}


def _seen(form: Form) -> datetime:
    try:
        return require_utc(datetime.fromisoformat(form["seen"]), "text")
    except ValueError:
        raise BadInput("text", "was not sent by this page; open it again") from None


def _beside(error: BadInput, fields: tuple[str, ...]) -> BadInput:
    """A refusal of the store, with the name of its field on the form."""
    field = {"account": "which"}.get(error.field, error.field)
    return BadInput(field if field in fields else fields[-1], error.problem)


async def _instructions_page(here: RequestContext, status: int = 200, form: Form | None = None) -> Response:
    shown: dict[str, Any] = {
        "directions": await here.read(directions),
        "guidance": await here.read(guidance),
        "known": await here.read(name_suggestions),
        "scopes": list(ScopeKind),
        "longest": guidance_store.LONGEST_TEXT,
    }
    return await here.page("rules/instructions.html", SECTION, status, form=form or Form(), **shown)


async def _edit_page(here: RequestContext, instruction_id: str, form: Form, status: int = 200) -> Response:
    kind = _kind(here)
    shown: dict[str, Any] = {f"{kind.word}_id": instruction_id, "longest": guidance_store.LONGEST_TEXT}
    shown |= {"known": await here.read(name_suggestions), "scopes": list(ScopeKind)}
    return await here.page(kind.template, SECTION, status, form=form, **shown)


directions_api = api_router("directions")


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
async def add_direction(here: Here, wanted: contract.DirectionArguments) -> DirectionRow:
    """Add a direction at the end."""
    return await show_direction(here, (await here.call(contract.ADD_DIRECTION, wanted)).direction)


@directions_api.get("/{direction_id}")
@permits(Permission.READ)
async def show_direction(here: Here, direction_id: Id) -> DirectionRow:
    """One direction."""
    return await here.read(lambda tx: direction(tx, direction_id))


@directions_api.put("/{direction_id}")
@permits(Permission.RULES)
async def change_direction(here: Here, direction_id: Id, wanted: contract.DirectionChange) -> DirectionRow:
    """Change its text, or switch it on or off."""
    await here.call(contract.EDIT_DIRECTION, {**wanted.model_dump(), "direction": direction_id})
    return await show_direction(here, direction_id)


@directions_api.delete("/{direction_id}")
@permits(Permission.RULES)
async def delete_direction(here: Here, direction_id: Id) -> RemovedDirection:
    """Remove a direction."""
    removed = await here.call(contract.REMOVE_DIRECTION, {"direction": direction_id})
    return RemovedDirection(id=removed.direction, text=removed.text)


guidance_api = api_router("guidance")


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
async def add_guidance(here: Here, wanted: contract.GuidanceArguments) -> GuidanceRow:
    """Add guidance for mail of a scope."""
    return await show_guidance(here, (await here.call(contract.ADD_GUIDANCE, wanted)).guidance)


@guidance_api.get("/{guidance_id}")
@permits(Permission.READ)
async def show_guidance(here: Here, guidance_id: Id) -> GuidanceRow:
    """One piece of guidance."""
    return await here.read(lambda tx: one_guidance(tx, guidance_id))


@guidance_api.put("/{guidance_id}")
@permits(Permission.RULES)
async def change_guidance(here: Here, guidance_id: Id, wanted: contract.GuidanceChange) -> GuidanceRow:
    """Change its name, scope or text, or switch it on or off."""
    await here.call(contract.EDIT_GUIDANCE, {**wanted.model_dump(), "guidance": guidance_id})
    return await show_guidance(here, guidance_id)


@guidance_api.delete("/{guidance_id}")
@permits(Permission.RULES)
async def delete_guidance(here: Here, guidance_id: Id) -> RemovedGuidance:
    """Remove guidance."""
    removed = await here.call(contract.REMOVE_GUIDANCE, {"guidance": guidance_id})
    return RemovedGuidance(id=removed.guidance, name=removed.name)

"""What the model is told, in the owner's words: directions and guidance, listed, added, changed, removed."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from starlette.responses import Response

from postroom.dashboard.changing.rules import edit_direction, edit_guidance, remove_direction, remove_guidance
from postroom.dashboard.forms import Form
from postroom.dashboard.pages import pages_router
from postroom.dashboard.reading.rules import known_names
from postroom.dashboard.reading.told import direction, directions, guidance, one_guidance
from postroom.dashboard.visit import Here, Visit
from postroom.domain.clock import require_utc
from postroom.domain.errors import BadInput
from postroom.triage import guidance_store
from postroom.triage.rules.model import Scope, ScopeKind, checked_scope

router = pages_router()

SECTION = "rules"
TOLD = "/rules/told"
DIRECTION = "/rules/directions/{direction_id:uuid}"
GUIDANCE = "/rules/guidance/{guidance_id:uuid}"


@router.get(TOLD)
async def told(here: Here) -> Response:
    return await _told(here)


@router.post("/rules/directions")
async def add_direction(here: Here) -> Response:
    form = await here.form()
    try:
        await here.write(lambda tx: guidance_store.add_direction(tx, form["direction"], here.actor, here.now))
    except BadInput as error:
        return await _told(here, 422, form.refused(BadInput("direction", error.problem)))
    return await here.go(TOLD, "The model is told this from now on.")


@router.get(DIRECTION)
async def one_direction(here: Here, direction_id: UUID) -> Response:
    row = await here.read(lambda tx: direction(tx, str(direction_id)))
    return await _edit_direction(here, direction_id, Form.filled(text=row.text, seen=row.updated_at.isoformat()))


@router.post(DIRECTION)
async def change_direction(here: Here, direction_id: UUID) -> Response:
    form = await here.form()
    try:
        seen, changes = _seen(form), {"text": form["text"]}
        await here.write(lambda tx: edit_direction(tx, str(direction_id), seen, changes, here.actor, here.now))
    except BadInput as error:
        return await _edit_direction(here, direction_id, form.refused(_beside(error)), 422)
    return await here.go(TOLD, "The direction is saved.")


@router.post(f"{DIRECTION}/switch")
async def switch_direction(here: Here, direction_id: UUID) -> Response:
    on = (await here.form()).checked("on")
    await here.write(lambda tx: edit_direction(tx, str(direction_id), None, {"enabled": on}, here.actor, here.now))
    return await here.go(TOLD, f"The direction is {'on' if on else 'off'}.")


@router.post(f"{DIRECTION}/remove")
async def drop_direction(here: Here, direction_id: UUID) -> Response:
    await here.write(lambda tx: remove_direction(tx, str(direction_id), here.actor, here.now))
    return await here.go(TOLD, "The direction is removed.")


@router.post("/rules/guidance")
async def add_guidance(here: Here) -> Response:
    form = await here.form()
    try:
        scope = _scope(form)
        await here.write(
            lambda tx: guidance_store.add_model_rule(tx, form["name"], scope, form["text"], here.actor, here.now)
        )
    except BadInput as error:
        return await _told(here, 422, form.refused(_beside(error)))
    return await here.go(TOLD, "The model is told this from now on.")


@router.get(GUIDANCE)
async def show_guidance(here: Here, guidance_id: UUID) -> Response:
    row = await here.read(lambda tx: one_guidance(tx, str(guidance_id)))
    kind, _, ref = row.scope.partition(":")
    seen = row.updated_at.isoformat()
    form = Form.filled(name=row.name, whose_mail=kind, which=ref, text=row.text, seen=seen)
    return await _edit_guidance(here, guidance_id, form)


@router.post(GUIDANCE)
async def change_guidance(here: Here, guidance_id: UUID) -> Response:
    form = await here.form()
    try:
        seen, changes = _seen(form), {"name": form["name"], "scope": _scope(form), "text": form["text"]}
        await here.write(lambda tx: edit_guidance(tx, str(guidance_id), seen, changes, here.actor, here.now))
    except BadInput as error:
        return await _edit_guidance(here, guidance_id, form.refused(_beside(error)), 422)
    return await here.go(TOLD, "The guidance is saved.")


@router.post(f"{GUIDANCE}/switch")
async def switch_guidance(here: Here, guidance_id: UUID) -> Response:
    on = (await here.form()).checked("on")
    await here.write(lambda tx: edit_guidance(tx, str(guidance_id), None, {"enabled": on}, here.actor, here.now))
    return await here.go(TOLD, f"The guidance is {'on' if on else 'off'}.")


@router.post(f"{GUIDANCE}/remove")
async def drop_guidance(here: Here, guidance_id: UUID) -> Response:
    gone = await here.write(lambda tx: remove_guidance(tx, str(guidance_id), here.actor, here.now))
    return await here.go(TOLD, f"The guidance {gone.name} is removed.")


def _scope(form: Form) -> Scope:
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


async def _told(here: Visit, status: int = 200, form: Form | None = None) -> Response:
    shown: dict[str, Any] = {
        "directions": await here.read(directions),
        "guidance": await here.read(guidance),
        "known": await here.read(known_names),
        "scopes": list(ScopeKind),
        "longest": guidance_store.LONGEST_TEXT,
    }
    return await here.page("rules/told.html", SECTION, status, form=form or Form(), **shown)


async def _edit_direction(here: Visit, direction_id: UUID, form: Form, status: int = 200) -> Response:
    longest = guidance_store.LONGEST_TEXT
    return await here.page(
        "rules/direction.html", SECTION, status, form=form, direction_id=direction_id, longest=longest
    )


async def _edit_guidance(here: Visit, guidance_id: UUID, form: Form, status: int = 200) -> Response:
    shown: dict[str, Any] = {"known": await here.read(known_names), "scopes": list(ScopeKind)}
    shown |= {"guidance_id": guidance_id, "longest": guidance_store.LONGEST_TEXT}
    return await here.page("rules/guidance.html", SECTION, status, form=form, **shown)

"""`/api/guidance`: what the model is told for mail of a scope."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from pydantic import AwareDatetime, BaseModel, Field, StrictBool

from postroom.dashboard.api import api_router
from postroom.dashboard.changing.rules import edit_guidance, remove_guidance
from postroom.dashboard.reading.told import GuidanceRow, guidance, one_guidance
from postroom.dashboard.security.permits import permits
from postroom.dashboard.visit import Here
from postroom.domain.roles import Permission
from postroom.triage import guidance_store
from postroom.triage.rules.model import parse_scope

router = api_router("guidance")

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


@router.get("")
@permits(Permission.READ)
async def listed(here: Here) -> Sequence[GuidanceRow]:
    """All guidance; 500 at most."""
    return await here.read(guidance)


@router.post("", status_code=201)
@permits(Permission.RULES)
async def add(here: Here, wanted: NewGuidance) -> GuidanceRow:
    """Add guidance for mail of a scope."""
    scope = parse_scope(wanted.scope)
    added = await here.write(
        lambda tx: guidance_store.add_model_rule(tx, wanted.name, scope, wanted.text, here.actor, here.now)
    )
    return await here.read(lambda tx: one_guidance(tx, added.id))


@router.get("/{guidance_id}")
@permits(Permission.READ)
async def one(here: Here, guidance_id: UUID) -> GuidanceRow:
    """One of them."""
    return await here.read(lambda tx: one_guidance(tx, str(guidance_id)))


@router.put("/{guidance_id}")
@permits(Permission.RULES)
async def change(here: Here, guidance_id: UUID, wanted: ChangedGuidance) -> GuidanceRow:
    """Change its name, scope or text, or switch it on or off."""
    changes = wanted.model_dump(exclude={"seen"}, exclude_none=True)
    if wanted.scope is not None:
        changes["scope"] = parse_scope(wanted.scope)
    await here.write(lambda tx: edit_guidance(tx, str(guidance_id), wanted.seen, changes, here.actor, here.now))
    return await here.read(lambda tx: one_guidance(tx, str(guidance_id)))


@router.delete("/{guidance_id}")
@permits(Permission.RULES)
async def remove(here: Here, guidance_id: UUID) -> RemovedGuidance:
    """Remove guidance."""
    gone = await here.write(lambda tx: remove_guidance(tx, str(guidance_id), here.actor, here.now))
    return RemovedGuidance(id=gone.id, name=gone.name)

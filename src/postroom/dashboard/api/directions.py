"""`/api/directions`: what the model is told for all mail."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from pydantic import AwareDatetime, BaseModel, Field, StrictBool

from postroom.dashboard.api import api_router
from postroom.dashboard.changing.rules import edit_direction, remove_direction
from postroom.dashboard.reading.told import DirectionRow, direction, directions
from postroom.dashboard.security.permits import permits
from postroom.dashboard.visit import Here
from postroom.domain.roles import Permission
from postroom.triage import guidance_store

router = api_router("directions")


class NewDirection(BaseModel, extra="forbid"):
    text: str = Field(description="what the model should heed, in a sentence or two")


class ChangedDirection(BaseModel, extra="forbid"):
    text: str | None = Field(None, description="null: as it is")
    enabled: StrictBool | None = Field(None, description="null: as it is")
    seen: AwareDatetime | None = Field(None, description="`updated_at` as it was seen; refused if it changed since")


class RemovedDirection(BaseModel):
    id: str
    text: str


@router.get("")
@permits(Permission.READ)
async def listed(here: Here) -> Sequence[DirectionRow]:
    """In the order in which the model reads them; 500 at most."""
    return await here.read(directions)


@router.post("", status_code=201)
@permits(Permission.RULES)
async def add(here: Here, wanted: NewDirection) -> DirectionRow:
    """Add a direction at the end."""
    added = await here.write(lambda tx: guidance_store.add_direction(tx, wanted.text, here.actor, here.now))
    return await here.read(lambda tx: direction(tx, added.id))


@router.get("/{direction_id}")
@permits(Permission.READ)
async def one(here: Here, direction_id: UUID) -> DirectionRow:
    """One direction."""
    return await here.read(lambda tx: direction(tx, str(direction_id)))


@router.put("/{direction_id}")
@permits(Permission.RULES)
async def change(here: Here, direction_id: UUID, wanted: ChangedDirection) -> DirectionRow:
    """Change its text, or switch it on or off."""
    changes = wanted.model_dump(exclude={"seen"}, exclude_none=True)
    await here.write(lambda tx: edit_direction(tx, str(direction_id), wanted.seen, changes, here.actor, here.now))
    return await here.read(lambda tx: direction(tx, str(direction_id)))


@router.delete("/{direction_id}")
@permits(Permission.RULES)
async def remove(here: Here, direction_id: UUID) -> RemovedDirection:
    """Remove a direction."""
    gone = await here.write(lambda tx: remove_direction(tx, str(direction_id), here.actor, here.now))
    return RemovedDirection(id=gone.id, text=gone.text)

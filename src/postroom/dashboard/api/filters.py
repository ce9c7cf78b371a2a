"""`/api/filters`: tier rules, guard, contacts, ingestion policy."""

from __future__ import annotations

from postroom.dashboard.api import api_router
from postroom.dashboard.reading.filters import Filters, filters
from postroom.dashboard.security.permits import permits
from postroom.dashboard.visit import Here
from postroom.domain.roles import Permission

router = api_router("filters")


@router.get("")
@permits(Permission.READ)
async def show(here: Here) -> Filters:
    """What decides a message's tier, and how much of it is taken in."""
    return await here.read(lambda tx: filters(tx, here.app.settings.queue, here.now))

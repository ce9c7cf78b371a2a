"""Filters: what decides a message's tier, and how much of it is taken in. To be read, not changed."""

from __future__ import annotations

from starlette.responses import Response

from postroom.dashboard.pages import pages_router
from postroom.dashboard.reading.filters import filters
from postroom.dashboard.visit import Here

router = pages_router()


@router.get("/filters")
async def show(here: Here) -> Response:
    shown = await here.read(lambda tx: filters(tx, here.app.settings.queue, here.now))
    return await here.page("filters.html", "filters", filters=shown)

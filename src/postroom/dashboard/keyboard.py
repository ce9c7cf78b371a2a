"""The page of keyboard shortcuts, for those who open it by its link; `?` shows the same above any page."""

from __future__ import annotations

from starlette.responses import Response

from postroom.dashboard.context import Here, pages_router

pages = pages_router()


@pages.get("/keyboard")
async def keyboard_page(here: Here) -> Response:
    return await here.page("keyboard.html", None)

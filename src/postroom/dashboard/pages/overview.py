"""Overview: the post room at a glance."""

from __future__ import annotations

from starlette.responses import Response

from postroom.dashboard.pages import pages_router
from postroom.dashboard.reading.overview import overview
from postroom.dashboard.visit import Here

router = pages_router()


@router.get("/")
async def home(here: Here) -> Response:
    shown = await here.read(lambda tx: overview(tx, here.app.settings, here.now))
    return await here.page("overview.html", "overview", overview=shown, chart=shown.mail.chart("Mail today by tier"))

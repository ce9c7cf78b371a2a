"""Overview: the post room at a glance."""

from __future__ import annotations

from starlette.responses import Response

from postroom.dashboard.pages import pages_router
from postroom.dashboard.reading.overview import overview
from postroom.dashboard.visit import Here
from postroom.triage.model import model_problem

router = pages_router()


@router.get("/")
async def home(here: Here) -> Response:
    problem = model_problem(here.app.settings.model, here.app.vault)
    shown = await here.read(lambda tx: overview(tx, here.app.settings, here.now, problem))
    return await here.page("overview.html", "overview", overview=shown, chart=shown.mail.chart("Mail today by tier"))

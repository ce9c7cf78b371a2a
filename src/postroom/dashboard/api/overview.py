"""`/api/overview`: the post room at a glance."""

from __future__ import annotations

from postroom.dashboard.api import api_router
from postroom.dashboard.reading.overview import Overview, overview
from postroom.dashboard.security.permits import permits
from postroom.dashboard.visit import Here
from postroom.domain.roles import Permission
from postroom.triage.model import model_problem

router = api_router("overview")


@router.get("")
@permits(Permission.READ)
async def show(here: Here) -> Overview:
    """Mail today, waiting times, what needs a person, the archive, money."""
    problem = model_problem(here.app.settings.model, here.app.vault)
    return await here.read(lambda tx: overview(tx, here.app.settings, here.now, problem))

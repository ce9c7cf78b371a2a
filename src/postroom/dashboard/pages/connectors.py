"""Connectors: who brings mail, whether they are alive, and how it spreads over the tiers."""

from __future__ import annotations

from starlette.responses import Response

from postroom.dashboard.choosing import Choice, chosen
from postroom.dashboard.pages import pages_router
from postroom.dashboard.reading.connectors import connector_detail, connector_rows
from postroom.dashboard.reading.tiers import Window
from postroom.dashboard.visit import Here

router = pages_router()

SECTION = "connectors"


@router.get("/connectors")
async def connectors(here: Here) -> Response:
    rows = await here.read(lambda tx: connector_rows(tx, here.now))
    return await here.page("connectors/list.html", SECTION, connectors=rows)


@router.get("/connectors/{kind}/{identity:path}")
async def connector(here: Here, kind: str, identity: str, window: Choice = "") -> Response:
    wanted = chosen(Window, window, "window") or Window.DAY
    detail = await here.read(lambda tx: connector_detail(tx, kind, identity, wanted, here.now))
    chart = detail.mail.chart(f"Mail by tier, {wanted.label.lower()}")
    return await here.page("connectors/detail.html", SECTION, detail=detail, chart=chart, windows=list(Window))

"""`/api/connectors`: the same as the Connectors pages."""

from __future__ import annotations

from postroom.dashboard.api import api_router
from postroom.dashboard.reading.connectors import ConnectorDetail, ConnectorRow, connector_detail, connector_rows
from postroom.dashboard.reading.tiers import Window
from postroom.dashboard.security.permits import named_by, permits
from postroom.dashboard.visit import Here
from postroom.domain.roles import Permission

router = api_router("connectors")


@router.get("")
@permits(Permission.READ)
async def connectors(here: Here) -> list[ConnectorRow]:
    """Every connector that has ever called, the silent ones first."""
    return await here.read(lambda tx: connector_rows(tx, here.now))


@router.get("/{kind}/{identity}")
@permits(Permission.READ, named_by("identity"))
async def connector(here: Here, kind: str, identity: str, window: Window = Window.DAY) -> ConnectorDetail:
    """One connector with its counters, its checkpoint, and the mail of a window by tier."""
    return await here.read(lambda tx: connector_detail(tx, kind, identity, window, here.now))

"""Connectors: which ones bring mail, whether they are alive, and how their mail spreads over the tiers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import select
from starlette.responses import Response

from postroom.dashboard.context import Here
from postroom.dashboard.forms import FilterChoice, chosen
from postroom.dashboard.mail.tiers import MailScope, TierSnapshot, TierWindow, tier_snapshot
from postroom.dashboard.routing import api_router, named_by, pages_router, permits
from postroom.db import Tx
from postroom.db.tables.access import connectors as connectors_table
from postroom.domain.errors import NotFound
from postroom.domain.roles import Permission
from postroom.switchboard.connector_registry import Connector, list_connectors


@dataclass(frozen=True, slots=True)
class ConnectorRow:
    connector_type: str
    endpoint_identity: str
    is_alive: bool
    """It was heard of within the last five minutes."""
    status: str
    instance: str
    version: str
    capabilities: list[str]
    first_seen_at: datetime
    last_heartbeat_at: datetime


@dataclass(frozen=True, slots=True)
class ConnectorDetail:
    connector: ConnectorRow
    counters: dict[str, int]
    checkpoint: dict[str, Any]
    window: TierWindow
    mail: TierSnapshot


def connector_rows(tx: Tx, now: datetime) -> list[ConnectorRow]:
    """The silent ones first: they are why somebody looks."""
    return sorted((_row(each, now) for each in list_connectors(tx)), key=lambda row: row.is_alive)


def connector_detail(tx: Tx, kind: str, identity: str, window: TierWindow, now: datetime) -> ConnectorDetail:
    here = (connectors_table.c.connector_type == kind) & (connectors_table.c.endpoint_identity == identity)
    row = tx.execute(select(connectors_table).where(here)).one_or_none()
    if row is None:
        raise NotFound("connector", f"no {kind} connector of {identity} has ever called")
    found = Connector(**{name: getattr(row, name) for name in Connector.__slots__})
    mail = tier_snapshot(tx, now - window.length, now, MailScope(kind, identity))
    return ConnectorDetail(_row(found, now), dict(found.counters), dict(found.checkpoint or {}), window, mail)


def _row(connector: Connector, now: datetime) -> ConnectorRow:
    return ConnectorRow(
        connector.connector_type,
        connector.endpoint_identity,
        connector.is_alive(now),
        connector.status,
        connector.instance,
        connector.version,
        list(connector.capabilities),
        connector.first_seen_at,
        connector.last_heartbeat_at,
    )


pages = pages_router()

SECTION = "connectors"


@pages.get("/connectors")
async def connectors_page(here: Here) -> Response:
    rows = await here.read(lambda tx: connector_rows(tx, here.now))
    return await here.page("connectors/list.html", SECTION, connectors=rows)


@pages.get("/connectors/{kind}/{identity:path}")
async def connector_page(here: Here, kind: str, identity: str, window: FilterChoice = "") -> Response:
    wanted = chosen(TierWindow, window, "window") or TierWindow.DAY
    detail = await here.read(lambda tx: connector_detail(tx, kind, identity, wanted, here.now))
    chart = detail.mail.chart(f"Mail by tier, {wanted.label.lower()}")
    return await here.page("connectors/detail.html", SECTION, detail=detail, chart=chart, windows=list(TierWindow))


api = api_router("connectors")


@api.get("")
@permits(Permission.READ)
async def connectors(here: Here) -> list[ConnectorRow]:
    """Every connector that has ever called, the silent ones first."""
    return await here.read(lambda tx: connector_rows(tx, here.now))


@api.get("/{kind}/{identity}")
@permits(Permission.READ, named_by("identity"))
async def connector(here: Here, kind: str, identity: str, window: TierWindow = TierWindow.DAY) -> ConnectorDetail:
    """One connector with its counters, its checkpoint, and the mail of a window by tier."""
    return await here.read(lambda tx: connector_detail(tx, kind, identity, window, here.now))

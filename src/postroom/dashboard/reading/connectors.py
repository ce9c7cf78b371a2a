"""Connectors as the dashboard shows them: alive or silent, what they count, and the mail that they brought."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import select

from postroom.dashboard.reading.tiers import Mail, TierSnapshot, Window, tier_snapshot
from postroom.db import Tx
from postroom.db.tables.switchboard import connectors
from postroom.domain.errors import NotFound
from postroom.switchboard.registry import Connector, list_connectors


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
    window: Window
    mail: TierSnapshot


def connector_rows(tx: Tx, now: datetime) -> list[ConnectorRow]:
    """The silent ones first: they are why somebody looks."""
    return sorted((_row(each, now) for each in list_connectors(tx)), key=lambda row: row.is_alive)


def connector_detail(tx: Tx, kind: str, identity: str, window: Window, now: datetime) -> ConnectorDetail:
    here = (connectors.c.connector_type == kind) & (connectors.c.endpoint_identity == identity)
    row = tx.execute(select(connectors).where(here)).one_or_none()
    if row is None:
        raise NotFound("connector", f"no {kind} connector of {identity} has ever called")
    found = Connector(**{name: getattr(row, name) for name in Connector.__slots__})
    mail = tier_snapshot(tx, now - window.length, now, Mail(kind, identity))
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

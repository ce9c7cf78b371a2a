"""Connectors that have called, and their latest heartbeat. One that is silent for five minutes counts as dead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import select

from postroom.db import Tx
from postroom.db.database import insert
from postroom.db.tables.access import connectors as table

ALIVE_FOR = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Heartbeat:
    connector_type: str
    endpoint_identity: str
    instance: str
    version: str
    status: str
    counters: Mapping[str, int]
    checkpoint: Mapping[str, Any] | None
    capabilities: Sequence[str]


@dataclass(frozen=True, slots=True)
class Connector:
    connector_type: str
    endpoint_identity: str
    instance: str
    version: str
    status: str
    counters: Mapping[str, int]
    checkpoint: Mapping[str, Any] | None
    capabilities: Sequence[str]
    first_seen_at: datetime
    last_heartbeat_at: datetime

    def is_alive(self, now: datetime) -> bool:
        return now - self.last_heartbeat_at < ALIVE_FOR


def record_heartbeat(tx: Tx, beat: Heartbeat, now: datetime) -> None:
    """The latest state of this mailbox's connector; the first heartbeat registers it."""
    said = {name: getattr(beat, name) for name in Heartbeat.__slots__}
    said |= {"counters": dict(beat.counters), "capabilities": list(beat.capabilities), "last_heartbeat_at": now}
    statement = insert(tx, table).values(**said, first_seen_at=now)
    identity = ("connector_type", "endpoint_identity")
    changes = {name: value for name, value in said.items() if name not in identity}
    tx.execute(statement.on_conflict_do_update(index_elements=identity, set_=changes))


def list_connectors(tx: Tx) -> list[Connector]:
    rows = tx.execute(select(table).order_by(table.c.connector_type, table.c.endpoint_identity))
    return [Connector(**{name: getattr(row, name) for name in Connector.__slots__}) for row in rows]

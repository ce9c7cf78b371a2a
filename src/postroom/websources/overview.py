"""The sources beside what is known of them: for people, changing nothing."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import func, select

from postroom.db import Tx
from postroom.db.tables.web import discovered_items, web_endpoints
from postroom.websources.config import Mode, Sources
from postroom.websources.items import ItemStatus


@dataclass(frozen=True, slots=True)
class EndpointView:
    source: str
    endpoint: str
    mode: Mode
    url: str
    watched: bool
    waiting: int
    fetched: int
    failed: int
    skipped: int
    looked_at: datetime | None


def overview(tx: Tx, sources: Sources) -> list[EndpointView]:
    """One line for each endpoint of the file, in its order."""
    known = {(row.source_slug, row.name): row for row in tx.execute(select(web_endpoints))}
    counted = select(discovered_items.c.endpoint_id, discovered_items.c.status, func.count()).group_by(
        discovered_items.c.endpoint_id, discovered_items.c.status
    )
    counts = {(endpoint_id, status): count for endpoint_id, status, count in tx.execute(counted)}
    views = []
    for source in sources:
        for endpoint in source.endpoint:
            row = known.get((source.slug, endpoint.name))
            of = {status: 0 if row is None else counts.get((row.id, status), 0) for status in ItemStatus}
            views.append(
                EndpointView(
                    source.slug,
                    endpoint.name,
                    endpoint.mode,
                    endpoint.url,
                    endpoint.sentinel,
                    waiting=of[ItemStatus.PENDING],
                    fetched=of[ItemStatus.FETCHED],
                    failed=of[ItemStatus.FAILED],
                    skipped=of[ItemStatus.SKIPPED],
                    looked_at=None if row is None else row.sentinel_at,
                )
            )
    return views

"""Connectors: which ones bring mail, whether they are alive, and how their mail spreads over the tiers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any

from fastapi import Query
from sqlalchemy import ColumnElement, Subquery, func, select
from starlette.responses import Response

from postroom.dashboard.context import Here, api_router, named_by, pages_router, permits
from postroom.dashboard.display.charts import Chart, ChartPart, pie
from postroom.dashboard.display.formatting import percent
from postroom.dashboard.forms import FilterChoice, chosen
from postroom.db import Tx
from postroom.db.tables.mail import messages
from postroom.domain.errors import NotFound
from postroom.domain.roles import Permission
from postroom.domain.terms import TIERS, Tier
from postroom.switchboard.tools.mail import Connector, list_connectors

MOST_COUNTED = 500_000
"""If a window has more mail than this, only the newest is counted."""
_LOOKED_AT = ("policy_tier", "assignment_rule", "direction", "provider", "endpoint_identity", "backfill_job_id")


NOT_RECORDED = "not recorded"
"""The rule of mail that came before rules were recorded, or from a connector that does not say."""


class TierWindow(StrEnum):
    HOUR = "1h"
    DAY = "24h"
    WEEK = "7d"
    MONTH = "30d"

    @property
    def length(self) -> timedelta:
        return _LENGTHS[self]

    @property
    def label(self) -> str:
        return _LABELS[self]


_LENGTHS = {
    TierWindow.HOUR: timedelta(hours=1),
    TierWindow.DAY: timedelta(days=1),
    TierWindow.WEEK: timedelta(days=7),
    TierWindow.MONTH: timedelta(days=30),
}
_LABELS = {
    TierWindow.HOUR: "Last hour",
    TierWindow.DAY: "Last 24 hours",
    TierWindow.WEEK: "Last 7 days",
    TierWindow.MONTH: "Last 30 days",
}


class TierTime(StrEnum):
    """By which moment mail falls into a window."""

    TAKEN_IN = "taken_in"
    RECEIVED = "received"

    @property
    def column(self) -> ColumnElement[datetime]:
        return messages.c.accepted_at if self is TierTime.TAKEN_IN else messages.c.received_at

    @property
    def label(self) -> str:
        return "taken in" if self is TierTime.TAKEN_IN else "received"


@dataclass(frozen=True, slots=True)
class MailScope:
    """Which mail is counted."""

    provider: str | None = None
    endpoint_identity: str | None = None
    live_only: bool = False

    def conditions(self, window: Subquery) -> list[ColumnElement[bool]]:
        wanted = {"provider": self.provider, "endpoint_identity": self.endpoint_identity}
        found: list[ColumnElement[bool]] = [
            window.c[name] == value for name, value in wanted.items() if value is not None
        ]
        return [*found, window.c.backfill_job_id.is_(None)] if self.live_only else found


@dataclass(frozen=True, slots=True)
class TierShare:
    tier: Tier
    messages: int
    share: str
    """Formatted, in percent."""


@dataclass(frozen=True, slots=True)
class RuleShare:
    rule: str
    tier: Tier
    messages: int


@dataclass(frozen=True, slots=True)
class TierSnapshot:
    """Mail that was taken in, or received, from `since` until `taken_at`."""

    by: TierTime
    since: datetime
    taken_at: datetime
    total: int
    tiers: list[TierShare]
    rules: list[RuleShare]

    def chart(self, title: str) -> Chart:
        return pie(
            title,
            [ChartPart(_name(each.tier), each.messages, f"{each.messages:,} ({each.share})") for each in self.tiers],
        )


def tier_snapshot(
    tx: Tx, since: datetime, now: datetime, where: MailScope | None = None, by: TierTime = TierTime.TAKEN_IN
) -> TierSnapshot:
    """Incoming mail only.

    The window is a bounded subquery, so that the planner uses the index on time and no other.
    """
    window = (
        select(*(messages.c[name] for name in _LOOKED_AT))
        .where(by.column >= since, by.column <= now)
        .order_by(by.column.desc())
        .limit(MOST_COUNTED)
        .subquery()
    )
    query = select(window.c.policy_tier, window.c.assignment_rule, func.count().label("messages")).where(
        window.c.direction == "inbound", *((where or MailScope()).conditions(window))
    )
    rows = tx.execute(query.group_by(window.c.policy_tier, window.c.assignment_rule)).all()
    counts = {tier: sum(row.messages for row in rows if row.policy_tier == tier) for tier in TIERS}
    total = sum(counts.values())
    rules = [RuleShare(row.assignment_rule or NOT_RECORDED, Tier(row.policy_tier), row.messages) for row in rows]
    return TierSnapshot(
        by,
        since,
        now,
        total,
        [TierShare(tier, counts[tier], percent(counts[tier], total)) for tier in TIERS],
        sorted(rules, key=lambda each: (TIERS.index(each.tier), -each.messages)),
    )


def _name(tier: Tier) -> str:
    return tier.replace("_", " ").capitalize()


@dataclass(frozen=True, slots=True)
class ConnectorRow:
    connector_type: str
    endpoint_identity: str
    is_alive: bool
    """It reported within the last five minutes."""
    status: str
    instance: str
    version: str
    capabilities: list[str]
    first_seen_at: datetime
    last_heartbeat_at: datetime


@dataclass(frozen=True, slots=True)
class ConnectorDetail:
    connector: ConnectorRow
    others: list[ConnectorRow]
    """Further connectors of the same mailbox; `mail` is what all of them brought."""
    counters: dict[str, int]
    checkpoint: dict[str, Any]
    window: TierWindow
    mail: TierSnapshot


def connector_rows(tx: Tx, now: datetime) -> list[ConnectorRow]:
    """The silent ones first."""
    return sorted((_row(each, now) for each in list_connectors(tx)), key=lambda row: row.is_alive)


@dataclass(frozen=True, slots=True)
class DetailWanted:
    window: TierWindow = TierWindow.DAY
    by: TierTime = TierTime.TAKEN_IN
    instance: str | None = None
    """None: the connector of the mailbox that reported last."""


def connector_detail(tx: Tx, kind: str, identity: str, wanted: DetailWanted, now: datetime) -> ConnectorDetail:
    mine = [each for each in list_connectors(tx) if (each.connector_type, each.endpoint_identity) == (kind, identity)]
    found = next((each for each in mine if wanted.instance in (None, each.instance)), None)
    if found is None:
        raise NotFound("connector", f"no such {kind} connector for {identity} has ever reported")
    others = [_row(each, now) for each in mine if each is not found]
    mail = tier_snapshot(tx, now - wanted.window.length, now, MailScope(kind, identity), wanted.by)
    return ConnectorDetail(
        _row(found, now), others, dict(found.counters), dict(found.checkpoint or {}), wanted.window, mail
    )


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
    return await here.page("connectors/list.html", SECTION, connectors=await connectors(here))


@pages.get("/connectors/{kind}/{identity:path}")
async def connector_page(
    here: Here, kind: str, identity: str, window: FilterChoice = "", by: FilterChoice = "", instance: FilterChoice = ""
) -> Response:
    period = chosen(TierWindow, window, "window") or TierWindow.DAY
    time = chosen(TierTime, by, "by") or TierTime.TAKEN_IN
    detail = await connector(here, kind, identity, period, time, instance or None)
    chart = detail.mail.chart(f"Mail by tier, {period.label.lower()}")
    choices: dict[str, Any] = {"windows": list(TierWindow), "times": list(TierTime)}
    return await here.page("connectors/detail.html", SECTION, detail=detail, chart=chart, **choices)


api = api_router("connectors")


@api.get("")
@permits(Permission.READ)
async def connectors(here: Here) -> list[ConnectorRow]:
    """Every connector that has ever reported, the silent ones first."""
    return await here.read(lambda tx: connector_rows(tx, here.now))


@api.get("/{kind}/{identity}")
@permits(Permission.READ, named_by("identity"))
async def connector(
    here: Here,
    kind: str,
    identity: str,
    window: TierWindow = TierWindow.DAY,
    by: TierTime = TierTime.TAKEN_IN,
    instance: Annotated[str | None, Query(max_length=200)] = None,
) -> ConnectorDetail:
    """One connector with its counters, its checkpoint, and the mail of a period by tier. Of several connectors of the
    mailbox: the one named by `instance`, else the one that reported last."""
    wanted = DetailWanted(window, by, instance)
    return await here.read(lambda tx: connector_detail(tx, kind, identity, wanted, here.now))

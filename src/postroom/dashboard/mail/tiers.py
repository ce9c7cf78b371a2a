"""How mail spreads over the tiers within a window of time: counts, shares, and by which rule."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from sqlalchemy import ColumnElement, Subquery, func, select

from postroom.dashboard.display.charts import Chart, ChartPart, pie
from postroom.dashboard.display.formatting import percent
from postroom.db import Tx
from postroom.db.tables.mail import messages
from postroom.domain.tiers import TIERS, Tier

MOST_COUNTED = 500_000
"""Of a window with more mail than this, the newest are counted."""
_LOOKED_AT = ("policy_tier", "assignment_rule", "direction", "provider", "endpoint_identity", "backfill_job_id")


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


@dataclass(frozen=True, slots=True)
class MailScope:
    """Whose mail, and whether history counts too."""

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
    """In percent, as it is said."""


@dataclass(frozen=True, slots=True)
class RuleShare:
    rule: str
    tier: Tier
    messages: int


@dataclass(frozen=True, slots=True)
class TierSnapshot:
    """Mail that was received from `since` until the moment at which it was counted."""

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


def tier_snapshot(tx: Tx, since: datetime, now: datetime, where: MailScope | None = None) -> TierSnapshot:
    """Incoming mail only: what the owner sent has no tier to speak of.

    The window comes first and is bounded, so that no other index than that of time is thought to be of use.
    """
    window = (
        select(*(messages.c[name] for name in _LOOKED_AT))
        .where(messages.c.received_at >= since, messages.c.received_at <= now)
        .order_by(messages.c.received_at.desc())
        .limit(MOST_COUNTED)
        .subquery()
    )
    query = select(window.c.policy_tier, window.c.assignment_rule, func.count().label("messages")).where(
        window.c.direction == "inbound", *((where or MailScope()).conditions(window))
    )
    rows = tx.execute(query.group_by(window.c.policy_tier, window.c.assignment_rule)).all()
    counts = {tier: sum(row.messages for row in rows if row.policy_tier == tier) for tier in TIERS}
    total = sum(counts.values())
    rules = [RuleShare(row.assignment_rule or "none", Tier(row.policy_tier), row.messages) for row in rows]
    return TierSnapshot(
        since,
        now,
        total,
        [TierShare(tier, counts[tier], percent(counts[tier], total)) for tier in TIERS],
        sorted(rules, key=lambda each: (TIERS.index(each.tier), -each.messages)),
    )


def _name(tier: Tier) -> str:
    return tier.replace("_", " ").capitalize()

"""Filters: what decides a message's tier, and how much of a message is imported. Read only."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import func, select
from starlette.responses import Response

from postroom.connectors.guidance import MAX_AGE
from postroom.connectors.priority import AssignmentRule
from postroom.dashboard.context import Here, api_router, pages_router, permits
from postroom.db import Tx
from postroom.db.tables.access import connectors
from postroom.db.tables.mail import contact_exports, contacts
from postroom.domain.clock import require_utc
from postroom.domain.errors import BadInput
from postroom.domain.roles import Permission
from postroom.domain.tiers import Tier
from postroom.mail.tier_policy import Treatment
from postroom.settings import QueueSettings
from postroom.switchboard import tier_policy


@dataclass(frozen=True, slots=True)
class TierRule:
    position: int
    rule: AssignmentRule
    tier: Tier
    condition: str


TIER_RULES = (
    TierRule(
        1,
        AssignmentRule.KNOWN_CONTACT,
        Tier.HIGH_PRIORITY,
        "Every sender is a known contact, and the receiving server did not flag the sender as forged.",
    ),
    TierRule(
        2,
        AssignmentRule.REPLY_TO_OUTBOUND,
        Tier.HIGH_PRIORITY,
        "It replies to a message that you sent (In-Reply-To names one of your Message-IDs).",
    ),
    TierRule(
        3,
        AssignmentRule.DIRECT_CORRESPONDENCE,
        Tier.INTERACTIVE,
        "Your address is in To, there is no List-Unsubscribe header, and Precedence does not indicate a mass mailing.",
    ),
    TierRule(4, AssignmentRule.FALLBACK_DEFAULT, Tier.DEFAULT, "Everything else."),
)
"""In words; `connectors/priority.py` decides, in this order."""


class Freshness(StrEnum):
    FRESH = "fresh"
    STALE = "stale"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class ConnectorCopy:
    """A connector's copy of the contacts."""

    endpoint_identity: str
    state: str
    generated_at: datetime | None


@dataclass(frozen=True, slots=True)
class ContactState:
    freshness: Freshness
    generated_at: datetime | None
    version: int | None
    addresses: int
    by_source: dict[str, int]
    copies: list[ConnectorCopy]


@dataclass(frozen=True, slots=True)
class PolicyRule:
    position: int
    treatment: str
    note: str
    condition: dict[str, Any]
    enabled: bool


@dataclass(frozen=True, slots=True)
class Filters:
    tier_rules: tuple[TierRule, ...]
    guard: int
    """Jobs of a tier in a row before a waiting lower tier gets a turn."""
    guard_default: int
    contacts: ContactState
    policy_version: str
    policy_rules: list[PolicyRule]


def filters(tx: Tx, settings: QueueSettings, now: datetime) -> Filters:
    default: int = QueueSettings.model_fields["max_consecutive_same_tier"].default
    rules = [
        PolicyRule(place + 1, Treatment(rule["tier"]).name.lower(), rule["note"], rule["condition"], rule["enabled"])
        for place, rule in enumerate(tier_policy.all_policy_rules(tx))
    ]
    return Filters(
        TIER_RULES,
        settings.max_consecutive_same_tier,
        default,
        contact_state(tx, now),
        tier_policy.rules_with_version(tx)[0],
        rules,
    )


def contact_state(tx: Tx, now: datetime) -> ContactState:
    last = tx.execute(select(contact_exports).order_by(contact_exports.c.version.desc()).limit(1)).first()
    by_source = tx.execute(
        select(contacts.c.source, func.count()).group_by(contacts.c.source).order_by(contacts.c.source)
    )
    sources = {source: count for source, count in by_source}
    return ContactState(
        _freshness(None if last is None else last.generated_at, now),
        None if last is None else last.generated_at,
        None if last is None else last.version,
        sum(sources.values()),
        sources,
        _copies(tx),
    )


def _freshness(generated_at: datetime | None, now: datetime) -> Freshness:
    if generated_at is None:
        return Freshness.MISSING
    return Freshness.FRESH if now - generated_at <= MAX_AGE else Freshness.STALE


def _copies(tx: Tx) -> list[ConnectorCopy]:
    rows = tx.execute(
        select(connectors.c.endpoint_identity, connectors.c.checkpoint).order_by(connectors.c.endpoint_identity)
    )
    checkpoints = [(row.endpoint_identity, row.checkpoint or {}) for row in rows]
    return [
        ConnectorCopy(identity, str(checkpoint["contacts"]), _instant(checkpoint.get("contacts_generated_at")))
        for identity, checkpoint in checkpoints
        if "contacts" in checkpoint
    ]


def _instant(text: object) -> datetime | None:
    """A connector may report anything."""
    try:
        return require_utc(datetime.fromisoformat(str(text)), "generated_at")
    except (ValueError, BadInput):
        return None


pages = pages_router()


@pages.get("/filters")
async def filters_page(here: Here) -> Response:
    return await here.page("filters.html", "filters", filters=await show(here))


api = api_router("filters")


@api.get("")
@permits(Permission.READ)
async def show(here: Here) -> Filters:
    """What decides a message's tier, and how much of it is imported."""
    return await here.read(lambda tx: filters(tx, here.app.settings.queue, here.now))

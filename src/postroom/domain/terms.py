"""The words that the database, the tools and the connectors share: tiers of mail, and the states and modes of
backfill jobs.
"""

from __future__ import annotations

from enum import StrEnum


class Tier(StrEnum):
    HIGH_PRIORITY = "high_priority"
    INTERACTIVE = "interactive"
    DEFAULT = "default"


TIERS: tuple[Tier, ...] = tuple(Tier)


class AssignmentRule(StrEnum):
    """Which rule of spec/2 gave a message its tier, in the order in which they are tried."""

    KNOWN_CONTACT = "known_contact"
    REPLY_TO_OUTBOUND = "reply_to_outbound"
    DIRECT_CORRESPONDENCE = "direct_correspondence"
    FALLBACK_DEFAULT = "fallback_default"


class BackfillStatus(StrEnum):
    PENDING = "pending"
    ACTIVE = "active"
    PAUSED = "paused"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    COST_CAPPED = "cost_capped"
    ERROR = "error"


class BackfillMode(StrEnum):
    SELECTIVE = "selective"
    BACKGROUND = "background"
    """Only while no live mail waits."""


class Include(StrEnum):
    """Mail that is left out unless asked for."""

    DRAFTS = "drafts"
    SENT = "sent"
    SPAM = "spam"
    TRASH = "trash"

"""The words of a backfill job that the database, the tools and the connectors share."""

from __future__ import annotations

from enum import StrEnum


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

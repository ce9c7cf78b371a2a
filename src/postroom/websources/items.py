"""The words for a discovered item: which lane found it, and how far it is."""

from __future__ import annotations

from enum import StrEnum


class Method(StrEnum):
    """The lane that found an item first."""

    SENTINEL = "SENTINEL"
    BACKFILL = "BACKFILL"


class ItemStatus(StrEnum):
    PENDING = "PENDING"
    FETCHED = "FETCHED"
    FAILED = "FAILED"
    SKIPPED = "SKIPPED"

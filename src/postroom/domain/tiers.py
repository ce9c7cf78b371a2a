"""The policy tiers of mail, from most to least urgent. The order of the members is the order of service."""

from __future__ import annotations

from enum import StrEnum


class Tier(StrEnum):
    HIGH_PRIORITY = "high_priority"
    INTERACTIVE = "interactive"
    DEFAULT = "default"


TIERS: tuple[Tier, ...] = tuple(Tier)

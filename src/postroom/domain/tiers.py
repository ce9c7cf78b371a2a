"""The policy tiers of mail, from most to least urgent. The order of the members is the order of service."""

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

"""May this message be removed at the source, and if not, why not? Pure; all doubts are in favour of staying (SY-10)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from postroom.archive.certificates import Action, Removal
from postroom.archive.model import ArchivedMessage, Provenance

ALWAYS_KEPT = frozenset({"DRAFT"})
"""A draft is still being written."""


class Stays(StrEnum):
    """Why a message stays, in words for a person."""

    NOT_AT_GMAIL = "has no Gmail id"
    GONE = "is deleted at the source already"
    REMOVED_BEFORE = "was removed before"
    NOTHING_TO_REMOVE = "is not where it would be removed from"
    ABOVE_WATERMARK = "is not below the watermark"
    BAD = "is listed as bad"
    LABEL = "has a label that keeps it"
    YOUNG = "is younger than archiver.keep_days"
    DAMAGED = "its stored bytes do not verify"
    NOT_COMPARED = "was never compared with the source"


@dataclass(frozen=True, slots=True)
class Policy:
    """What the owner of the mailbox chose."""

    removal: Removal
    keep_labels: frozenset[str]
    young_from: datetime
    """Mail from then on stays."""


@dataclass(frozen=True, slots=True)
class Grounds:
    """What was true when it was asked; asked again for every batch."""

    watermark: int
    bad: Collection[str] = frozenset()
    removed_before: Collection[str] = frozenset()


def why_it_stays(message: ArchivedMessage, policy: Policy, grounds: Grounds) -> Stays | None:
    """None if it may be removed. NOT_COMPARED is the one reason that asking the source can dispel, and comes last."""
    labels = folded(message.labels)
    reasons = (
        (message.gmail_id is None, Stays.NOT_AT_GMAIL),
        (message.deleted_at_source is not None, Stays.GONE),
        (message.gmail_id in grounds.removed_before, Stays.REMOVED_BEFORE),
        (_is_nothing_to_do(policy.removal, labels), Stays.NOTHING_TO_REMOVE),
        (message.date.timestamp() >= grounds.watermark, Stays.ABOVE_WATERMARK),
        (message.gmail_id in grounds.bad, Stays.BAD),
        (bool(labels & folded(policy.keep_labels | ALWAYS_KEPT)), Stays.LABEL),
        (message.date >= policy.young_from, Stays.YOUNG),
        (message.provenance is not Provenance.API, Stays.NOT_COMPARED),
    )
    return next((reason for applies, reason in reasons if applies), None)


def is_removed(removal: Removal, labels: Collection[str]) -> bool:
    """Whether a message that is still at the source, with these labels, has been removed already."""
    return removal.action is not Action.DELETE and _is_nothing_to_do(removal, folded(labels))


def folded(labels: Collection[str]) -> frozenset[str]:
    """Gmail knows no two labels that differ only in case."""
    return frozenset(label.casefold() for label in labels)


def _is_nothing_to_do(removal: Removal, labels: frozenset[str]) -> bool:
    match removal.action:
        case Action.LABEL:
            return removal.label.casefold() not in labels
        case Action.TRASH:
            return "trash" in labels
        case Action.DELETE:
            return False

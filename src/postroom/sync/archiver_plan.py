"""Which messages may be removed at the source, and if not, why not (SY-10); the proof read back from disk; and the plan
of a run, made from the archive alone. In doubt a message is kept.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from postroom.archive.backend import ArchiveBackend, MailReader
from postroom.archive.certificates import ArchiveProof, Removal, RemovalAction, RemovalResult
from postroom.archive.messages import ArchivedMessage, Provenance
from postroom.domain.errors import BadInput, Fatal, NotAllowed, PostroomError
from postroom.settings import ArchiverSettings

ALWAYS_KEPT = frozenset({"DRAFT"})
"""A draft is still being written."""


class KeepReason(StrEnum):
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
class RemovalPolicy:
    """What the owner of the mailbox chose."""

    removal: Removal
    keep_labels: frozenset[str]
    young_from: datetime
    """Mail from then on stays."""


@dataclass(frozen=True, slots=True)
class RemovalGrounds:
    """What was true when it was asked; asked again for every batch."""

    watermark: int
    bad: Collection[str] = frozenset()
    removed_before: Collection[str] = frozenset()


def keep_reason(message: ArchivedMessage, policy: RemovalPolicy, grounds: RemovalGrounds) -> KeepReason | None:
    """None if it may be removed. NOT_COMPARED is the one reason that asking the source can dispel, and comes last."""
    labels = folded(message.labels)
    reasons = (
        (message.gmail_id is None, KeepReason.NOT_AT_GMAIL),
        (message.deleted_at_source is not None, KeepReason.GONE),
        (message.gmail_id in grounds.removed_before, KeepReason.REMOVED_BEFORE),
        (_is_nothing_to_do(policy.removal, labels), KeepReason.NOTHING_TO_REMOVE),
        (message.date.timestamp() >= grounds.watermark, KeepReason.ABOVE_WATERMARK),
        (message.gmail_id in grounds.bad, KeepReason.BAD),
        (bool(labels & folded(policy.keep_labels | ALWAYS_KEPT)), KeepReason.LABEL),
        (message.date >= policy.young_from, KeepReason.YOUNG),
        (message.provenance is not Provenance.API, KeepReason.NOT_COMPARED),
    )
    return next((reason for applies, reason in reasons if applies), None)


def is_removed(removal: Removal, labels: Collection[str]) -> bool:
    """Whether a message that is still at the source, with these labels, has been removed already."""
    return removal.action is not RemovalAction.DELETE and _is_nothing_to_do(removal, folded(labels))


def folded(labels: Collection[str]) -> frozenset[str]:
    """Gmail knows no two labels that differ only in case."""
    return frozenset(label.casefold() for label in labels)


def _is_nothing_to_do(removal: Removal, labels: frozenset[str]) -> bool:
    match removal.action:
        case RemovalAction.LABEL:
            return removal.label.casefold() not in labels
        case RemovalAction.TRASH:
            return "trash" in labels
        case RemovalAction.DELETE:
            return False


def policy_of(
    settings: ArchiverSettings, now: datetime, *, action: RemovalAction | None = None, label: str | None = None
) -> RemovalPolicy:
    """`action` and `label` win over the settings; without either, nobody has said what removing should mean."""
    chosen = action or (None if settings.action is None else RemovalAction(settings.action))
    if chosen is None:
        raise BadInput("action", "say what removing means: --action label, trash or delete (or set archiver.action)")
    if label is not None and chosen is not RemovalAction.LABEL:
        raise BadInput("label", f"goes with --action label, not with {chosen}")
    removal = Removal(chosen, (label or settings.label) if chosen is RemovalAction.LABEL else "")
    kept = frozenset(name for each in settings.keep_labels.split(",") if (name := each.strip()))
    return RemovalPolicy(removal, kept, now - timedelta(days=settings.keep_days))


def require_enabled(settings: ArchiverSettings, *, enabled_now: bool = False) -> None:
    if not (settings.enabled or enabled_now):
        raise NotAllowed(
            "The archiver is off, as it is by default. `postroom archive plan` shows what it would remove. Set "
            "archiver.enabled (POSTROOM_ARCHIVER__ENABLED=true), or give --enable for this run only."
        )


class UnsafeToRemove(Fatal):
    """The archiver met something that it did not expect, and stopped before removing anything more."""


def find_messages(archive: ArchiveBackend, email: str, keys: Iterable[str]) -> dict[str, ArchivedMessage]:
    """The messages of these keys that the archive has."""
    with archive.reader() as reader:
        wanted = list(keys)
        found = reader.find_many(email, wanted)
        return {key: found[key] for key in wanted if key in found}


def read_back(archive: ArchiveBackend, messages: Iterable[ArchivedMessage]) -> list[ArchiveProof]:
    """Read the bytes of each from disk, through connections of its own, and hash them. The first flaw is a doubt."""
    with archive.reader() as reader:
        return [_proof(reader, message) for message in messages]


def _proof(reader: MailReader, message: ArchivedMessage) -> ArchiveProof:
    try:
        found = reader.reread(message)
        if found is None:
            raise Fatal(f"it was in {message.shard} a moment ago and is not any more.")
        raw = reader.raw_of(found)
    except PostroomError as error:
        raise UnsafeToRemove(
            f"Stopped before removing message {message.key}: {error.message} Nothing of its batch was removed. Run "
            "`postroom verify`, repair what it finds, let `postroom sync run` fetch what is missing, then start again."
        ) from error
    digest = hashlib.sha256(raw).hexdigest()
    gmail_id = found.gmail_id or ""
    return ArchiveProof(gmail_id, found.key, digest, len(raw), found.shard, found.row_id, found.provenance)


@dataclass(slots=True)
class ArchivePlan:
    account: str
    removal: Removal
    watermark: int
    messages: int = 0
    """Those that would be removed."""
    bytes: int = 0
    oldest: datetime | None = None
    newest: datetime | None = None
    to_compare: int = 0
    """How many of them came from a Takeout or an import, and are compared with the source first."""
    interrupted: int = 0
    """Removals of an earlier run whose outcome is not known; a run asks the source about them first."""
    stays: Counter[KeepReason] = field(default_factory=Counter)
    damaged: list[str] = field(default_factory=list)

    def add(self, message: ArchivedMessage) -> None:
        self.messages += 1
        self.bytes += message.size
        self.oldest = min(self.oldest or message.date, message.date)
        self.newest = max(self.newest or message.date, message.date)


def make_plan(
    archive: ArchiveBackend,
    email: str,
    policy: RemovalPolicy,
    watermark: int,
    bad: Collection[str],
    *,
    verify: bool = False,
    progress: Callable[[int], None] = lambda done: None,
) -> ArchivePlan:
    """Look at every message; `verify` reads the bytes too, as a run would, and takes as long as that."""
    plan = ArchivePlan(email, policy.removal, watermark)
    ledger = archive.ledger(email)
    plan.interrupted = ledger.counts().get(RemovalResult.INTENDED, 0)
    for portion in archive.portions(email):
        ids = [message.gmail_id for message in portion if message.gmail_id]
        grounds = RemovalGrounds(watermark, bad, ledger.removed_among(policy.removal, ids))
        for message in portion:
            _consider(plan, message, policy, grounds, archive if verify else None)
        progress(len(portion))
    return plan


def _consider(
    plan: ArchivePlan,
    message: ArchivedMessage,
    policy: RemovalPolicy,
    grounds: RemovalGrounds,
    archive: ArchiveBackend | None,
) -> None:
    reason = keep_reason(message, policy, grounds)
    if reason in (None, KeepReason.NOT_COMPARED) and archive is not None and not _is_sound(archive, message):
        plan.damaged.append(message.key)
        reason = KeepReason.DAMAGED
    if reason is KeepReason.NOT_COMPARED:
        plan.to_compare += 1
        reason = None
    if reason is None:
        plan.add(message)
    else:
        plan.stays[reason] += 1


def _is_sound(archive: ArchiveBackend, message: ArchivedMessage) -> bool:
    try:
        read_back(archive, [message])
    except UnsafeToRemove:
        return False
    return True

"""What the archiver may remove and how: the policy, the reasons to keep a message (SY-10), the proof read back from
disk, the mailbox that messages are removed from, and the plan of a run. In doubt a message is kept.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial
from typing import TypeVar

from postroom.archive.backend import ArchiveBackend, MailReader
from postroom.archive.certificates import ArchiveProof, Removal, RemovalAction, RemovalResult
from postroom.archive.messages import ArchivedMessage, IncomingMail, Provenance, StoreOutcome
from postroom.archive.service import AccountStore, SharedArchive
from postroom.domain.clock import EQUAL_JITTER, Backoff, Clock, retry
from postroom.domain.errors import BadInput, Fatal, NotAllowed, PostroomError
from postroom.mailboxes.errors import Gone
from postroom.mailboxes.labels import LabelNames
from postroom.mailboxes.protocol import Detail, Mailbox, MailboxChange, Move, RemoteMessage, Span
from postroom.mailboxes.reader import sort_results
from postroom.settings import ArchiverSettings

ALWAYS_KEPT = frozenset({"DRAFT"})
"""A draft is still being written."""


class KeepReason(StrEnum):
    """Why a message stays, in words for a person."""

    NOT_AT_SOURCE = "was never seen at the source"
    GONE = "is deleted at the source already"
    REMOVED_BEFORE = "was removed before"
    NOTHING_TO_REMOVE = "is not where it would be removed from"
    ABOVE_WATERMARK = "is not below the watermark"
    BAD = "is listed as bad"
    LABEL = "has a label that keeps it"
    YOUNG = "is younger than archiver.keep_days"
    DAMAGED = "its stored bytes do not verify"
    NOT_COMPARED = "was never compared with the source"
    NOT_CONFIRMED = "its folder was numbered anew, and it could not be read again there"


@dataclass(frozen=True, slots=True)
class RemovalPolicy:
    """What to remove and what to keep, as the owner chose."""

    removal: Removal
    keep_labels: frozenset[str]
    young_from: datetime
    """Mail of this time or later is kept."""


@dataclass(frozen=True, slots=True)
class RemovalGrounds:
    """Facts that decide beside the policy; read again for every batch."""

    watermark: int
    bad: Collection[str] = frozenset()
    removed_before: Collection[str] = frozenset()


def keep_reason(message: ArchivedMessage, policy: RemovalPolicy, grounds: RemovalGrounds) -> KeepReason | None:
    """None if it may be removed. NOT_COMPARED comes last: it alone can be resolved by comparing with the source."""
    labels = folded(message.labels)
    reasons = (
        (message.gmail_id is None, KeepReason.NOT_AT_SOURCE),
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
    """For comparison: no two labels of Gmail differ only in case."""
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
    """`action` and `label` take precedence over the settings. Raises BadInput if neither names an action."""
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
    """The archiver found something unexpected and stopped before removing anything more."""


def find_messages(archive: ArchiveBackend, email: str, keys: Iterable[str]) -> dict[str, ArchivedMessage]:
    """The archived messages among these keys."""
    with archive.reader() as reader:
        wanted = list(keys)
        found = reader.find_many(email, wanted)
        return {key: found[key] for key in wanted if key in found}


def read_back(archive: ArchiveBackend, messages: Iterable[ArchivedMessage]) -> list[ArchiveProof]:
    """Read the bytes of each message from disk, through separate connections, and hash them. Raises UnsafeToRemove at
    the first flaw."""
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
    """Messages that would be removed."""
    bytes: int = 0
    oldest: datetime | None = None
    newest: datetime | None = None
    to_compare: int = 0
    """How many of them come from a Takeout or an import and would be compared with the source first."""
    interrupted: int = 0
    """Removals of an earlier run whose outcome is unknown; a run checks them at the source first."""
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
    """Plan a run over every message; `verify` also reads the bytes, which takes as long as in a run."""
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


T = TypeVar("T")


ATTEMPTS = 6


_BACKOFF = Backoff(1.0, 60.0, jitter=EQUAL_JITTER, longest_asked_s=60.0)


class RemovalSource:
    """The mailbox that messages are removed from, for one policy."""

    def __init__(self, mailbox: Mailbox, clock: Clock, policy: RemovalPolicy, ids: Mapping[str, str]) -> None:
        self.mailbox = mailbox
        self.names = LabelNames(mailbox)
        self._clock = clock
        self._change = _change_for(policy.removal, ids.get(policy.removal.label.casefold(), ""))
        kept = policy.keep_labels | ALWAYS_KEPT
        self._kept_ids = sorted({ids[name.casefold()] for name in kept if name.casefold() in ids})
        self.unknown_labels = sorted(name for name in kept if name.casefold() not in ids)
        """Labels of the policy that this mailbox does not have."""

    async def with_keeping_label(self, oldest: datetime, newest: datetime) -> set[str]:
        """Ids of this span that have a keeping label now, also if the archive does not know it yet. Only lists ids."""
        span = Span(int(oldest.timestamp()), int(newest.timestamp()) + 2)
        kept: set[str] = set()
        for label_id in self._kept_ids:
            kept |= await with_retries(self._clock, partial(self._listed, span, label_id))
        return kept

    async def _listed(self, span: Span, label_id: str) -> set[str]:
        return {each async for page in self.mailbox.list(span, label_id=label_id) for each in page.ids}

    async def labels_now(self, gmail_ids: Sequence[str]) -> dict[str, frozenset[str] | None]:
        """The names of each message's labels now; None for a message that is gone."""
        found = sort_results(await self.mailbox.fetch(gmail_ids, Detail.FLAGS))
        for message_id, error in found.failed.items():
            raise UnsafeToRemove(
                f"Stopped: the mailbox could not say what became of message {message_id}: {error.message} Its "
                "certificate is kept; the next run asks again."
            ) from error
        labels = {message.id: await self.names.names(message.label_ids) for message in found.got}
        return {**labels, **dict.fromkeys(found.gone)}

    async def unconfirmed(self, gmail_ids: Sequence[str]) -> frozenset[str]:
        """Those that may be other messages by now, as far as the mailbox can tell."""
        return await with_retries(self._clock, partial(self.mailbox.confirm, gmail_ids))

    async def remove(self, gmail_ids: Sequence[str]) -> None:
        """Returns once the mailbox has confirmed the removal; ids that are gone count as removed."""
        try:
            await with_retries(self._clock, partial(self.mailbox.modify, gmail_ids, self._change))
        except Gone:  # at least one of them; the service does not say which
            for gmail_id in gmail_ids:
                with suppress(Gone):
                    await with_retries(self._clock, partial(self.mailbox.modify, [gmail_id], self._change))


def _change_for(removal: Removal, label_id: str) -> MailboxChange:
    match removal.action:
        case RemovalAction.LABEL:
            return MailboxChange(remove=frozenset({label_id}))
        case RemovalAction.TRASH:
            return MailboxChange(move=Move.TRASH)
        case RemovalAction.DELETE:
            return MailboxChange(move=Move.DELETE)


async def with_retries(clock: Clock, call: Callable[[], Awaitable[T]]) -> T:
    """Retry transient errors. The call must be safe to repeat: an answer may have been lost."""
    return await retry(call, _BACKOFF, clock, attempts=ATTEMPTS)


async def open_source(mailbox: Mailbox, clock: Clock, policy: RemovalPolicy) -> RemovalSource:
    """Look up the labels that the policy names. Raises BadInput if the label to remove does not exist."""
    labels = await with_retries(clock, mailbox.labels)
    ids = {label.name.casefold(): label.id for label in labels}
    _require_label(policy.removal, ids)
    return RemovalSource(mailbox, clock, policy, ids)


def _require_label(removal: Removal, ids: Collection[str]) -> None:
    if removal.action is RemovalAction.LABEL and removal.label.casefold() not in ids:
        raise BadInput("label", f"the mailbox has no label {removal.label!r}; INBOX is the usual choice")


@dataclass(frozen=True, slots=True)
class AtSource:
    """Date and labels of a message at the source; those of a Takeout may differ."""

    date: datetime
    labels: frozenset[str]


@dataclass(slots=True)
class ComparedMail:
    """The result of comparing imported messages with the source."""

    found: dict[str, AtSource] = field(default_factory=dict)
    """Messages that are stored now with the bytes of the source."""
    gone: list[str] = field(default_factory=list)
    failed: dict[str, PostroomError] = field(default_factory=dict)
    replaced: int = 0


async def compare_with_source(
    source: RemovalSource, archive: SharedArchive, email: str, messages: Sequence[ArchivedMessage]
) -> ComparedMail:
    """Fetch imported messages and store the bytes of the source. Raises OwnedElsewhere, before anything is fetched,
    while another process writes to the archive."""
    compared = ComparedMail()
    ids = [message.gmail_id for message in messages if message.gmail_id]
    size = source.mailbox.batch_size
    async with archive.store(email, "postroom archive run") as store:
        for start in range(0, len(ids), size):
            await _compare_some(source, store, ids[start : start + size], compared)
    return compared


async def _compare_some(source: RemovalSource, store: AccountStore, ids: Sequence[str], compared: ComparedMail) -> None:
    fetched = sort_results(await source.mailbox.fetch(ids))
    compared.gone += fetched.gone
    compared.failed |= fetched.failed
    stored = await store.store([_incoming(message) for message in fetched.got])
    compared.replaced += sum(each.outcome is StoreOutcome.REPLACED for each in stored)
    for message in fetched.got:
        if message.received is not None:
            labels = await source.names.names(message.label_ids)
            compared.found[message.id] = AtSource(message.received, labels)


def _incoming(message: RemoteMessage) -> IncomingMail:
    """Without labels: recording those is the task of the sync."""
    return IncomingMail(
        raw=message.raw or b"",
        provenance=Provenance.API,
        gmail_id=message.id,
        thread_id=message.thread_id or None,
        received=message.received,
    )

"""What the archiver does at the mailbox: find labels that protect mail, remove messages, and fetch imported mail to
compare it byte by byte before it may be removed. Every change can be repeated safely.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import TypeVar

from postroom.archive.certificates import Removal, RemovalAction
from postroom.archive.messages import ArchivedMessage, IncomingMail, Provenance, StoreOutcome
from postroom.archive.service import AccountStore, SharedArchive
from postroom.domain.clock import Clock
from postroom.domain.errors import BadInput, PostroomError, Retryable
from postroom.mailboxes.errors import Gone
from postroom.mailboxes.labels import LabelNames
from postroom.mailboxes.protocol import Detail, Mailbox, MailboxChange, Move, RemoteMessage, Span
from postroom.mailboxes.reader import sort_results
from postroom.sync.archiver.plan import ALWAYS_KEPT, RemovalPolicy, UnsafeToRemove

T = TypeVar("T")
ATTEMPTS = 6
_FIRST_BACK_OFF_S = 1.0
_LONGEST_BACK_OFF_S = 60.0
_DICE = random.Random()  # noqa: S311 - jitter, no secret


class RemovalSource:
    """One account's mailbox, for one policy."""

    def __init__(self, mailbox: Mailbox, clock: Clock, policy: RemovalPolicy, ids: Mapping[str, str]) -> None:
        self.mailbox = mailbox
        self.names = LabelNames(mailbox)
        self._clock = clock
        self._change = _change_for(policy.removal, ids.get(policy.removal.label.casefold(), ""))
        kept = policy.keep_labels | ALWAYS_KEPT
        self._kept_ids = sorted({ids[name.casefold()] for name in kept if name.casefold() in ids})
        self.unknown_labels = sorted(name for name in kept if name.casefold() not in ids)
        """Labels that should keep mail here and that this mailbox does not have."""

    async def with_a_label_that_keeps(self, oldest: datetime, newest: datetime) -> set[str]:
        """Messages of this time that have such a label now, whatever the archive last heard. Cheap: listed, not got."""
        span = Span(int(oldest.timestamp()), int(newest.timestamp()) + 2)
        kept: set[str] = set()
        for label_id in self._kept_ids:
            kept |= await with_retries(self._clock, partial(self._listed, span, label_id))
        return kept

    async def _listed(self, span: Span, label_id: str) -> set[str]:
        return {each async for page in self.mailbox.list(span, label_id=label_id) for each in page.ids}

    async def labels_now(self, gmail_ids: Sequence[str]) -> dict[str, frozenset[str] | None]:
        """The names of each message's labels at this moment; None for one that is no longer there."""
        found = sort_results(await self.mailbox.fetch(gmail_ids, Detail.FLAGS))
        for message_id, error in found.failed.items():
            raise UnsafeToRemove(
                f"Stopped: Gmail could not say what became of message {message_id}: {error.message} Its "
                "certificate is kept; the next run asks again."
            ) from error
        labels = {message.id: await self.names.names(message.label_ids) for message in found.got}
        return {**labels, **dict.fromkeys(found.gone)}

    async def remove(self, gmail_ids: Sequence[str]) -> None:
        """Returns once the mailbox has said that it is done; ids that are not there any more count as done."""
        try:
            await with_retries(self._clock, partial(self.mailbox.modify, gmail_ids, self._change))
        except Gone:  # one of them was, and nobody says which
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
    """Again after what may pass; an answer that was lost is asked for again, because repeating is harmless."""
    for attempt in range(1, ATTEMPTS):
        try:
            return await call()
        except Retryable as error:
            told = 0.0 if error.retry_after is None else error.retry_after.total_seconds()
            pause = min(_FIRST_BACK_OFF_S * 2 ** (attempt - 1), _LONGEST_BACK_OFF_S) * _DICE.uniform(0.5, 1.0)
            await clock.sleep(max(pause, min(told, _LONGEST_BACK_OFF_S)))
    return await call()


async def open_source(mailbox: Mailbox, clock: Clock, policy: RemovalPolicy) -> RemovalSource:
    """Find the labels that the policy names; one to be removed has to exist."""
    labels = await with_retries(clock, mailbox.labels)
    ids = {label.name.casefold(): label.id for label in labels}
    _require_label(policy.removal, ids)
    return RemovalSource(mailbox, clock, policy, ids)


def _require_label(removal: Removal, ids: Collection[str]) -> None:
    if removal.action is RemovalAction.LABEL and removal.label.casefold() not in ids:
        raise BadInput("label", f"the mailbox has no label {removal.label!r}; INBOX is the usual choice")


@dataclass(frozen=True, slots=True)
class AtSource:
    """What Gmail says of a message, which a Takeout may say otherwise."""

    date: datetime
    labels: frozenset[str]


@dataclass(slots=True)
class ComparedMail:
    """What was found for each message that was asked for."""

    found: dict[str, AtSource] = field(default_factory=dict)
    """Those that are stored now as Gmail holds them."""
    gone: list[str] = field(default_factory=list)
    failed: dict[str, PostroomError] = field(default_factory=dict)
    replaced: int = 0


async def compare(
    source: RemovalSource, archive: SharedArchive, email: str, messages: Sequence[ArchivedMessage]
) -> ComparedMail:
    """Raises OwnedElsewhere, before anything is fetched, while another process writes to the archive."""
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
    """The bytes alone: what labels there are now is the sync's to record."""
    return IncomingMail(
        raw=message.raw or b"",
        provenance=Provenance.API,
        gmail_id=message.id,
        thread_id=message.thread_id or None,
        received=message.received,
    )

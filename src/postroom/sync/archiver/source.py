"""What the archiver does at the mailbox: find labels that protect mail, remove messages, and fetch imported mail to
compare it byte by byte before it may be removed. Every change can be repeated safely.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import TypeVar

from postroom.archive.certificates import Removal, RemovalAction
from postroom.archive.messages import ArchivedMessage, IncomingMail, Provenance, StoreOutcome
from postroom.archive.service import AccountStore, SharedArchive
from postroom.domain.backoff import EQUAL_JITTER, Backoff, retry
from postroom.domain.clock import Clock
from postroom.domain.errors import BadInput, PostroomError
from postroom.mailboxes.errors import Gone
from postroom.mailboxes.gmail.calls import search_query
from postroom.mailboxes.gmail.client import GmailClient
from postroom.mailboxes.gmail.fetching import Failed, Got, MissingMessage
from postroom.mailboxes.gmail.resources import GmailMessage, MessageFormat
from postroom.mailboxes.labels import LabelNames
from postroom.mailboxes.protocol import Span
from postroom.sync.archiver.plan import ALWAYS_KEPT, RemovalPolicy, UnsafeToRemove

T = TypeVar("T")
ATTEMPTS = 6
_BACKOFF = Backoff(1.0, 60.0, jitter=EQUAL_JITTER, longest_asked_s=60.0)


class RemovalSource:
    """One account's mailbox, for one policy."""

    def __init__(self, client: GmailClient, clock: Clock, policy: RemovalPolicy, ids: Mapping[str, str]) -> None:
        self.client = client
        self.names = LabelNames(client)
        self._clock = clock
        self._removal = policy.removal
        self._label_id = ids.get(policy.removal.label.casefold(), "")
        kept = policy.keep_labels | ALWAYS_KEPT
        self._kept_ids = sorted({ids[name.casefold()] for name in kept if name.casefold() in ids})
        self.unknown_labels = sorted(name for name in kept if name.casefold() not in ids)
        """Labels that should keep mail here and that this mailbox does not have."""

    async def with_a_label_that_keeps(self, oldest: datetime, newest: datetime) -> set[str]:
        """Messages of this time that have such a label now, whatever the archive last heard. Cheap: listed, not got."""
        query = search_query(Span(int(oldest.timestamp()), int(newest.timestamp()) + 2))
        kept: set[str] = set()
        for label_id in self._kept_ids:
            kept |= await with_retries(self._clock, partial(self._listed, query, label_id))
        return kept

    async def _listed(self, query: str, label_id: str) -> set[str]:
        pages = self.client.list_messages(query, label_ids=[label_id], include_spam_trash=True)
        return {message.id async for page in pages for message in page.messages}

    async def labels_now(self, gmail_ids: Sequence[str]) -> dict[str, frozenset[str] | None]:
        """The names of each message's labels at this moment; None for one that is no longer there."""
        found: dict[str, frozenset[str] | None] = {}
        for fetched in await self.client.get_messages(gmail_ids, MessageFormat.MINIMAL):
            match fetched:
                case Got(message):
                    found[message.id] = await self.names.names(message.label_ids)
                case MissingMessage(message_id):
                    found[message_id] = None
                case Failed(message_id, error):
                    raise UnsafeToRemove(
                        f"Stopped: Gmail could not say what became of message {message_id}: {error.message} Its "
                        "certificate is kept; the next run asks again."
                    ) from error
        return found

    async def remove(self, gmail_ids: Sequence[str]) -> None:
        """Returns once Gmail has said that it is done; ids that are not there any more count as done."""
        try:
            await with_retries(self._clock, partial(self._remove_all, gmail_ids))
        except Gone:  # one of them was, and nobody says which
            for gmail_id in gmail_ids:
                await with_retries(self._clock, partial(self._remove_one, gmail_id))

    async def _remove_all(self, gmail_ids: Sequence[str]) -> None:
        match self._removal.action:
            case RemovalAction.LABEL:
                await self.client.modify_messages(gmail_ids, remove=[self._label_id])
            case RemovalAction.TRASH:
                await self.client.modify_messages(gmail_ids, add=["TRASH"], remove=["INBOX"])
            case RemovalAction.DELETE:
                await self.client.delete_messages(gmail_ids)

    async def _remove_one(self, gmail_id: str) -> None:
        try:
            match self._removal.action:
                case RemovalAction.LABEL:
                    await self.client.modify_message(gmail_id, remove=[self._label_id])
                case RemovalAction.TRASH:
                    await self.client.trash_message(gmail_id)
                case RemovalAction.DELETE:
                    await self.client.delete_message(gmail_id)
        except Gone:
            return


async def with_retries(clock: Clock, call: Callable[[], Awaitable[T]]) -> T:
    """Again after what may pass; an answer that was lost is asked for again, because repeating is harmless."""
    return await retry(call, _BACKOFF, clock, attempts=ATTEMPTS)


async def open_source(client: GmailClient, clock: Clock, policy: RemovalPolicy) -> RemovalSource:
    """Find the labels that the policy names; one to be removed has to exist."""
    labels = await with_retries(clock, client.list_labels)
    ids = {(label.id if label.is_system else label.name).casefold(): label.id for label in labels}
    _require_label(policy.removal, ids)
    return RemovalSource(client, clock, policy, ids)


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
    size = source.client.batch_size
    async with archive.store(email, "postroom archive run") as store:
        for start in range(0, len(ids), size):
            await _compare_some(source, store, ids[start : start + size], compared)
    return compared


async def _compare_some(source: RemovalSource, store: AccountStore, ids: Sequence[str], compared: ComparedMail) -> None:
    got: list[GmailMessage] = []
    for fetched in await source.client.get_messages(ids):
        match fetched:
            case Got(message):
                got.append(message)
            case MissingMessage(message_id):
                compared.gone.append(message_id)
            case Failed(message_id, error):
                compared.failed[message_id] = error
    stored = await store.store([_incoming(message) for message in got])
    compared.replaced += sum(each.outcome is StoreOutcome.REPLACED for each in stored)
    for message in got:
        if message.internal_date is not None:
            labels = await source.names.names(message.label_ids)
            compared.found[message.id] = AtSource(message.internal_date, labels)


def _incoming(message: GmailMessage) -> IncomingMail:
    """The bytes alone: what labels there are now is the sync's to record."""
    return IncomingMail(
        raw=message.raw or b"",
        provenance=Provenance.API,
        gmail_id=message.id,
        thread_id=message.thread_id or None,
        received=message.internal_date,
    )

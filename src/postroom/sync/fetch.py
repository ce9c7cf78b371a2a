"""Fetches messages by id into the archive, in small chunks, each on disk before the next is requested. Every id gets a
result.

Errors of the account, the service or the archive are raised and never held against a message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from postroom.accounts.account import Account
from postroom.archive.messages import IncomingMail, Provenance, StoredMessage, StoreOutcome
from postroom.archive.service import AccountStore
from postroom.domain.errors import Fatal, NotAllowed, PostroomError, Retryable
from postroom.mail.addresses import canonical_address
from postroom.mailboxes.labels import LabelNames
from postroom.mailboxes.protocol import Mailbox, MailboxIdentity, RemoteMessage
from postroom.mailboxes.reader import OUTAGE, FetchedMail, MailboxReader, sort_results


def require_mailbox(identity: MailboxIdentity, account: Account) -> None:
    if canonical_address(identity.email, fold_gmail=True) != canonical_address(account.email, fold_gmail=True):
        raise NotAllowed(
            f"The login of {account.email} opens the mailbox of {identity.email} instead. Log in as {account.email} "
            f"with `postroom account add gmail`, or add the account of {identity.email}."
        )


OnChunk = Callable[["FetchOutcome"], None]
_WITNESSES = 3


class NotStorable(Fatal):
    """The archive could not take this message."""


@dataclass(frozen=True, slots=True)
class FetchOutcome:
    """What became of each id that was asked for."""

    stored: frozenset[str] = frozenset()
    duplicates: frozenset[str] = frozenset()
    """In the archive already, with these bytes."""
    gone: frozenset[str] = frozenset()
    """No longer in the mailbox."""
    failed: Mapping[str, PostroomError] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)
    """Of those in the archive, the ones that could not be read, and why. Their exact bytes are there."""

    @property
    def settled(self) -> frozenset[str]:
        """Those of which nothing more need be asked."""
        return self.stored | self.duplicates | self.gone

    def __or__(self, other: FetchOutcome) -> FetchOutcome:
        return FetchOutcome(
            self.stored | other.stored,
            self.duplicates | other.duplicates,
            self.gone | other.gone,
            {**self.failed, **other.failed},
            {**self.unread, **other.unread},
        )


class ArchiveSink:
    """The archive of one account, as what messages are read into."""

    def __init__(self, store: AccountStore) -> None:
        self._store = store

    async def store(self, mails: Sequence[tuple[RemoteMessage, frozenset[str]]]) -> list[StoredMessage]:
        return await self._store.store([_incoming(message, labels) for message, labels in mails])

    def problem(self, error: Exception) -> PostroomError:
        if isinstance(error, Retryable):
            raise error
        return NotStorable(f"It could not be stored: {_without_mail(error)}")


class MailFetcher:
    def __init__(self, mailbox: Mailbox, store: AccountStore, names: LabelNames) -> None:
        self.mailbox = mailbox
        self.store = store
        self.names = names
        self._reader = MailboxReader(mailbox, ArchiveSink(store), names)

    async def bring(self, ids: Iterable[str], beat: OnChunk = lambda chunk: None) -> FetchOutcome:
        """`beat` is called with the answers of each chunk as soon as it is on disk."""
        wanted = list(dict.fromkeys(ids))
        size = self.mailbox.batch_size
        brought = FetchOutcome()
        for start in range(0, len(wanted), size):
            with self.store.expecting():
                chunk = await self._bring_chunk(wanted[start : start + size])
            beat(chunk)
            brought |= chunk
        return brought

    async def _bring_chunk(self, ids: Sequence[str]) -> FetchOutcome:
        fetched = await self._reader.fetch(ids)
        if isinstance(fetched.refusal, PostroomError) and not fetched.stored:
            raise fetched.refusal  # none of them can be stored: it is the archive
        brought = _outcome_of(fetched)
        await self._require_service(fetched)
        return brought

    async def _require_service(self, fetched: FetchedMail[StoredMessage]) -> None:
        """Raise if it is not the messages that are to blame: the pace, the network, or a service that is down."""
        errors = fetched.unfetched.values()
        for error in errors:
            if isinstance(error, OUTAGE):
                raise error
        is_any_here = bool(fetched.stored or fetched.unstored)
        if any(isinstance(error, Retryable) for error in errors) or (errors and not is_any_here):
            await self.require_messages()

    async def require_messages(self) -> None:
        """Raise unless others that were had before can still be had: lists may go on while messages do not."""
        await self.mailbox.identity()
        others = sort_results(await self.mailbox.fetch(await self.store.some_ids(_WITNESSES)))
        if others.failed and not others.got:
            raise next(iter(others.failed.values()))


def _incoming(message: RemoteMessage, labels: frozenset[str]) -> IncomingMail:
    return IncomingMail(
        raw=message.raw or b"",
        provenance=Provenance.API,
        gmail_id=message.id,
        thread_id=message.thread_id or None,
        labels=labels,
        received=message.received,
    )


def _without_mail(error: Exception) -> str:
    """What an error says, where it is ours; another's words may quote the message, so its kind has to do."""
    return error.message if isinstance(error, PostroomError) else type(error).__name__


def _outcome_of(fetched: FetchedMail[StoredMessage]) -> FetchOutcome:
    stored = fetched.stored
    old = frozenset(key for key, each in stored.items() if each.outcome is StoreOutcome.DUPLICATE)
    return FetchOutcome(
        frozenset(stored) - old,
        old,
        frozenset(fetched.gone),
        fetched.failed,
        {key: each.trouble for key, each in stored.items() if each.trouble},
    )

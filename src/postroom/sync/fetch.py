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
from postroom.mailboxes.errors import MailboxThrottled, MailboxUnreachable
from postroom.mailboxes.gmail.client import GmailClient
from postroom.mailboxes.gmail.fetching import Failed, Got, MissingMessage
from postroom.mailboxes.gmail.resources import GmailMessage, Profile
from postroom.mailboxes.labels import LabelNames


def require_mailbox(profile: Profile, account: Account) -> None:
    if canonical_address(profile.email, fold_gmail=True) != canonical_address(account.email, fold_gmail=True):
        raise NotAllowed(
            f"The login of {account.email} opens the mailbox of {profile.email} instead. Log in as {account.email} "
            f"with `postroom account add gmail`, or add the account of {profile.email}."
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


class MailFetcher:
    def __init__(self, client: GmailClient, store: AccountStore, names: LabelNames) -> None:
        self.client = client
        self.store = store
        self.names = names

    async def bring(self, ids: Iterable[str], beat: OnChunk = lambda chunk: None) -> FetchOutcome:
        """`beat` is called with the answers of each chunk as soon as it is on disk."""
        wanted = list(dict.fromkeys(ids))
        size = self.client.batch_size
        brought = FetchOutcome()
        for start in range(0, len(wanted), size):
            with self.store.expecting():
                chunk = await self._bring_chunk(wanted[start : start + size])
            beat(chunk)
            brought |= chunk
        return brought

    async def _bring_chunk(self, ids: Sequence[str]) -> FetchOutcome:
        messages: list[GmailMessage] = []
        gone: list[str] = []
        failed: dict[str, PostroomError] = {}
        for fetched in await self.client.get_messages(ids):
            match fetched:
                case Got(message):
                    messages.append(message)
                case MissingMessage(message_id):
                    gone.append(message_id)
                case Failed(message_id, error):
                    failed[message_id] = error
        brought = await self._keep(messages) | FetchOutcome(gone=frozenset(gone), failed=failed)
        await self._require_service(failed, is_any_here=bool(messages))
        return brought

    async def _require_service(self, failed: Mapping[str, PostroomError], *, is_any_here: bool) -> None:
        """Raise if it is not the messages that are to blame: the pace, the network, or a service that is down."""
        for error in failed.values():
            if isinstance(error, MailboxThrottled | MailboxUnreachable):
                raise error
        if any(isinstance(error, Retryable) for error in failed.values()) or (failed and not is_any_here):
            await self.require_messages()

    async def require_messages(self) -> None:
        """Raise unless others that were had before can still be had: lists may go on while messages do not."""
        await self.client.get_profile()
        others = await self.client.get_messages(await self.store.some_ids(_WITNESSES))
        problems = [each.error for each in others if isinstance(each, Failed)]
        if problems and not any(isinstance(each, Got) for each in others):
            raise problems[0]

    async def _keep(self, messages: Sequence[GmailMessage]) -> FetchOutcome:
        mails = [await self._incoming(message) for message in messages]
        try:
            return _answers(messages, await self.store.store(mails))
        except Retryable:
            raise
        except Exception as error:
            return await self._keep_apart(messages, mails, error)

    async def _keep_apart(
        self, messages: Sequence[GmailMessage], mails: Sequence[IncomingMail], first: Exception
    ) -> FetchOutcome:
        """One of them cannot be stored: find out which. If none can, the archive itself is at fault."""
        brought = FetchOutcome()
        for message, mail in zip(messages, mails, strict=True):
            try:
                brought |= _answers([message], await self.store.store([mail]))
            except Retryable:
                raise
            except Exception as error:
                brought |= FetchOutcome(
                    failed={message.id: NotStorable(f"It could not be stored: {_without_mail(error)}")}
                )
        if isinstance(first, PostroomError) and len(brought.failed) == len(messages):
            raise first
        return brought

    async def _incoming(self, message: GmailMessage) -> IncomingMail:
        return IncomingMail(
            raw=message.raw or b"",
            provenance=Provenance.API,
            gmail_id=message.id,
            thread_id=message.thread_id or None,
            labels=await self.names.names(message.label_ids),
            received=message.internal_date,
        )


def _without_mail(error: Exception) -> str:
    """What an error says, where it is ours; another's words may quote the message, so its kind has to do."""
    return error.message if isinstance(error, PostroomError) else type(error).__name__


def _answers(messages: Sequence[GmailMessage], stored: Sequence[StoredMessage]) -> FetchOutcome:
    old = {message.id for message, each in zip(messages, stored, strict=True) if each.outcome is StoreOutcome.DUPLICATE}
    unread = {message.id: each.trouble for message, each in zip(messages, stored, strict=True) if each.trouble}
    return FetchOutcome(frozenset(message.id for message in messages) - old, frozenset(old), unread=unread)

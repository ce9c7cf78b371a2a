"""Fetches messages by id into the archive, records those that cannot be fetched or parsed (bad messages), and tries
them again.

Messages are fetched in small chunks, each on disk before the next is requested, and every id gets a result. Errors
of the account, the service or the archive are raised and never recorded against a message. Bad messages are retried
after a day, when the code that reads mail has changed, or on request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from postroom.accounts.account import Account
from postroom.accounts.troubled import (
    ArrivalLane,
    MessageTrouble,
    TroubledMessage,
    TroubleKind,
    forget_trouble,
    record_trouble,
    troubled_of,
)
from postroom.archive.messages import IncomingMail, Provenance, StoredMessage, StoreOutcome
from postroom.archive.service import AccountStore
from postroom.db import Database, Tx
from postroom.domain.clock import Clock
from postroom.domain.errors import Fatal, NotAllowed, NotFound, PostroomError, Retryable
from postroom.mail.addresses import canonical_address
from postroom.mailboxes.labels import LabelNames
from postroom.mailboxes.protocol import Mailbox, MailboxIdentity, RemoteMessage
from postroom.mailboxes.reader import OUTAGE, FetchedMail, MailboxReader, sort_results
from postroom.reading.mail import READER_VERSION
from postroom.settings import SyncSettings
from postroom.telemetry import logs


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
    """What became of each requested id."""

    stored: frozenset[str] = frozenset()
    duplicates: frozenset[str] = frozenset()
    """In the archive already, with these bytes."""
    gone: frozenset[str] = frozenset()
    """No longer in the mailbox."""
    failed: Mapping[str, PostroomError] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)
    """Messages in the archive that could not be parsed, with the reason. Their exact bytes are stored."""

    @property
    def settled(self) -> frozenset[str]:
        """Ids that need no further attempt."""
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
    """The archive of one account, as the sink of a `MailboxReader`."""

    def __init__(self, store: AccountStore) -> None:
        self._store = store

    async def store(self, mails: Sequence[tuple[RemoteMessage, frozenset[str]]]) -> list[StoredMessage]:
        incoming = [_incoming(message, labels) for message, labels in mails]
        return await self._store.store(incoming, is_of_walk=True)

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

    async def fetch(self, ids: Iterable[str], on_chunk: OnChunk = lambda chunk: None) -> FetchOutcome:
        """Fetch and store these messages. `on_chunk` is called with the outcome of each chunk once it is on disk."""
        wanted = list(dict.fromkeys(ids))
        size = self.mailbox.batch_size
        outcome = FetchOutcome()
        for start in range(0, len(wanted), size):
            with self.store.expecting():
                chunk = await self._fetch_chunk(wanted[start : start + size])
            on_chunk(chunk)
            outcome |= chunk
        return outcome

    async def _fetch_chunk(self, ids: Sequence[str]) -> FetchOutcome:
        fetched = await self._reader.fetch(ids)
        if isinstance(fetched.refusal, PostroomError) and not fetched.stored:
            raise fetched.refusal  # none of them can be stored: the archive is at fault, not a message
        outcome = _outcome_of(fetched)
        await self._require_service(fetched)
        return outcome

    async def _require_service(self, fetched: FetchedMail[StoredMessage]) -> None:
        """Raise if the failures are not the messages' own: throttling, the network, or a service that is down."""
        errors = fetched.unfetched.values()
        for error in errors:
            if isinstance(error, OUTAGE):
                raise error
        is_any_here = bool(fetched.stored or fetched.unstored)
        if any(isinstance(error, Retryable) for error in errors) or (errors and not is_any_here):
            await self.require_messages()

    async def require_messages(self) -> None:
        """Raise unless messages that were fetched before can be fetched now: a service may still list messages and fail
        to return them."""
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
    """The text of one of our own errors, else the error's type: the text of others may quote the message."""
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


def record_bad(tx: Tx, account_id: str, gmail_id: str, reason: str, reader_version: int, now: datetime) -> None:
    """Record a message that could not be fetched or stored; it is tried again later."""
    trouble = MessageTrouble(gmail_id, TroubleKind.FETCH, reason)
    record_trouble(tx, account_id, ArrivalLane.SYNC, [trouble], now, reader_version)


def record_outcome(tx: Tx, account_id: str, outcome: FetchOutcome, now: datetime) -> None:
    """Record the messages that failed or could not be parsed, and remove the records of those that succeeded."""
    failed = [
        MessageTrouble(key, TroubleKind.FETCH, logs.clean(error.message)) for key, error in outcome.failed.items()
    ]
    unread = [MessageTrouble(key, TroubleKind.READ, reason) for key, reason in outcome.unread.items()]
    forget_trouble(tx, account_id, outcome.settled - outcome.unread.keys(), [TroubleKind.FETCH, TroubleKind.READ])
    record_trouble(tx, account_id, ArrivalLane.SYNC, [*failed, *unread], now)


def bad_of(tx: Tx, account_id: str) -> list[TroubledMessage]:
    """Troubled messages that the archive lacks, of all lanes."""
    return [each for each in troubled_of(tx, account_id) if not each.archived]


log = logs.get(__name__)

_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class RetriedMessages:
    """What became of retried messages. Those stored or gone are no longer listed as bad."""

    stored: frozenset[str] = frozenset()
    """In the archive now, or parsed at last."""
    gone: frozenset[str] = frozenset()
    still_bad: frozenset[str] = frozenset()

    def __or__(self, other: RetriedMessages) -> RetriedMessages:
        return RetriedMessages(self.stored | other.stored, self.gone | other.gone, self.still_bad | other.still_bad)


def is_due(message: TroubledMessage, settings: SyncSettings, now: datetime, version: int = READER_VERSION) -> bool:
    """Whether the pause is over, or the last attempt was made by another version of the reader."""
    return message.reader_version != version or now - message.last_tried >= timedelta(hours=settings.bad_retry_hours)


class BadMessageRetry:
    """`fetcher` is None where the mailbox has no login; then only messages that the archive has are retried."""

    def __init__(
        self,
        database: Database,
        account_id: str,
        store: AccountStore,
        fetcher: MailFetcher | None,
        settings: SyncSettings,
        clock: Clock,
    ) -> None:
        self._database = database
        self._account_id = account_id
        self._store = store
        self._fetcher = fetcher
        self._settings = settings
        self._clock = clock

    async def retry_due(self) -> RetriedMessages:
        now = self._clock.now()
        return await self._retry([each for each in await self._bad() if is_due(each, self._settings, now)])

    async def retry(self, keys: Sequence[str] | None = None) -> RetriedMessages:
        """Retry these messages, or all, whether due or not."""
        listed = {each.key: each for each in await self._bad()}
        for key in keys or ():
            if key not in listed:
                raise NotFound("id", f"{key} is not among the bad messages; `postroom sync bad list` shows them")
        return await self._retry([listed[key] for key in (listed if keys is None else dict.fromkeys(keys))])

    async def _bad(self) -> list[TroubledMessage]:
        return await self._database.read(lambda tx: troubled_of(tx, self._account_id))

    async def _retry(self, messages: Sequence[TroubledMessage]) -> RetriedMessages:
        """In portions, each recorded before the next is requested."""
        retried = RetriedMessages()
        archived = [each.key for each in messages if each.kind is TroubleKind.READ]
        for start in range(0, len(archived), _AT_ONCE):
            retried |= await self._record(await self._reread(archived[start : start + _AT_ONCE]))
        # Messages that could not be ingested are retried by their connector; here only missing bytes are fetched.
        lacking = [each.key for each in messages if each.kind is TroubleKind.FETCH]
        if self._fetcher is not None:
            for start in range(0, len(lacking), _AT_ONCE):
                retried |= await self._record(await self._fetcher.fetch(lacking[start : start + _AT_ONCE]))
        if archived or lacking:
            sizes = {"stored": len(retried.stored), "gone": len(retried.gone), "still_bad": len(retried.still_bad)}
            log.info("sync.bad_retried", **sizes)
        return retried

    async def _reread(self, keys: Sequence[str]) -> FetchOutcome:
        """Parse the archive's own bytes again. A message that the archive no longer has counts as gone."""
        found = await self._store.reread(keys)
        unread = {key: reason for key, reason in found.items() if reason}
        return FetchOutcome(stored=frozenset(found), gone=frozenset(keys) - found.keys(), unread=unread)

    async def _record(self, outcome: FetchOutcome) -> RetriedMessages:
        await self._database.write(lambda tx: record_outcome(tx, self._account_id, outcome, self._clock.now()))
        still_bad = frozenset({*outcome.failed, *outcome.unread})
        return RetriedMessages((outcome.stored | outcome.duplicates) - still_bad, outcome.gone, still_bad)

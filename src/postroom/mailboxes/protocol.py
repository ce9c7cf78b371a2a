"""What every provider of a mailbox offers, in words that belong to no provider. `gmail.mailbox` and
`imap.mailbox` are its implementations.

Messages and labels are known by ids that the provider gives and that never change their meaning. A cursor is an
opaque place in the mailbox's history of changes. Errors are those of `mailboxes.errors`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Generic, Protocol, TypeAlias, TypeVar

from postroom.domain.errors import PostroomError
from postroom.mailboxes.errors import CallRefused, Gone
from postroom.mailboxes.limiter import Limiter
from postroom.mailboxes.ports import PriorityLane

MessageId: TypeAlias = str
LabelId: TypeAlias = str
Cursor: TypeAlias = str

PAGE_SIZE = 500
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """Mail received from `start` up to and without `end`, in seconds since 1970; without an end, all that comes
    after."""

    start: int
    end: int | None = None


@dataclass(frozen=True, slots=True)
class MailboxIdentity:
    """Whose mailbox it is, and where it stands now."""

    email: str
    cursor: Cursor
    messages_total: int
    """As the provider counts; it may list fewer."""


class Detail(StrEnum):
    """How much of a message to fetch. Labels, date and size come with each."""

    RAW = "raw"
    """With the bytes, exactly as the mailbox holds them."""
    HEADERS = "headers"
    FLAGS = "flags"
    """Neither headers nor bytes."""


@dataclass(frozen=True, slots=True)
class RemoteMessage:
    """A message as the mailbox holds it."""

    id: MessageId
    thread_id: str = ""
    """Empty where the provider has no threads."""
    label_ids: frozenset[LabelId] = frozenset()
    received_ms: int | None = None
    """When the mailbox received it, in milliseconds since 1970."""
    size: int | None = None
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Only of a message that was fetched with `Detail.HEADERS`."""
    raw: bytes | None = field(default=None, repr=False)

    @property
    def received(self) -> datetime | None:
        """None if it is outside the range of `datetime`."""
        if self.received_ms is None:
            return None
        try:
            return _EPOCH + timedelta(milliseconds=self.received_ms)
        except OverflowError:
            return None


class Identified(Protocol):
    @property
    def id(self) -> MessageId: ...


M = TypeVar("M", bound=Identified)


@dataclass(frozen=True, slots=True)
class Got(Generic[M]):
    message: M

    @property
    def id(self) -> MessageId:
        return self.message.id


@dataclass(frozen=True, slots=True)
class MissingMessage:
    """It is no longer in the mailbox."""

    id: MessageId


@dataclass(frozen=True, slots=True)
class Failed:
    """It could not be fetched, after all retries."""

    id: MessageId
    error: PostroomError


FetchResult: TypeAlias = Got[RemoteMessage] | MissingMessage | Failed


@dataclass(frozen=True, slots=True)
class ListedPage:
    ids: tuple[MessageId, ...]
    is_last: bool
    estimate: int
    """The provider's guess at the total, which is often wrong."""


@dataclass(frozen=True, slots=True)
class MailboxLabel:
    """Labels that every mailbox has are named as the archive names them: INBOX, SENT, TRASH and so on."""

    id: LabelId
    name: str
    is_system: bool = False
    """Every mailbox has it, and its owner can neither rename nor delete it."""


@dataclass(frozen=True, slots=True)
class LabelDelta:
    id: MessageId
    add: frozenset[LabelId] = frozenset()
    remove: frozenset[LabelId] = frozenset()
    now: frozenset[LabelId] | None = None
    """All labels after the change; None where the mailbox does not say."""
    sequence: int = 0
    """Grows with every change of the mailbox, so that changes of one message can be put in order."""


@dataclass(frozen=True, slots=True)
class ChangePage:
    """Some of the changes since a cursor. Pages may be empty and still not be the last."""

    added: tuple[MessageId, ...] = ()
    deleted: tuple[MessageId, ...] = ()
    """A deletion is final, wherever it stands in the page: ids are never reused."""
    relabelled: tuple[LabelDelta, ...] = ()
    """In the order in which it happened."""
    cursor: Cursor | None = None
    """Safe to continue from once this page is worked off; None: only from where it was before."""
    records: int = 0
    """How many changes the page held, for logs."""

    @property
    def wanted(self) -> tuple[MessageId, ...]:
        """Added or relabelled, and not deleted as far as the page tells: they should be in the archive."""
        ids = dict.fromkeys([*self.added, *(each.id for each in self.relabelled)])
        deleted = frozenset(self.deleted)
        return tuple(each for each in ids if each not in deleted)


class Move(StrEnum):
    TRASH = "trash"
    RESTORE = "restore"
    """Out of the trash."""
    DELETE = "delete"
    """For good, not to the trash."""


@dataclass(frozen=True, slots=True)
class MailboxChange:
    """Labels to add and remove, or a move; repeating it changes nothing more."""

    add: frozenset[LabelId] = frozenset()
    remove: frozenset[LabelId] = frozenset()
    move: Move | None = None


@dataclass(frozen=True, slots=True)
class NewMessage:
    """What `Mailbox.append` is given."""

    raw: bytes
    label_ids: frozenset[LabelId] = frozenset()
    thread_id: str | None = None
    received: datetime | None = None


AppendResult = MessageId | PostroomError | None
"""The id that a message got, or why it got none; None for one that was not begun, because another met a problem of the
whole mailbox."""
R = TypeVar("R")


class Mailbox(Protocol):
    """One account's mailbox. `lane` says how urgent its calls are; `at` gives the same mailbox in another lane."""

    @property
    def lane(self) -> PriorityLane: ...

    @property
    def limiter(self) -> Limiter:
        """The pace of all calls of this account."""

    @property
    def units_per_minute(self) -> int | None:
        """The allowance, where it is known."""

    @property
    def batch_size(self) -> int:
        """How many messages are best fetched together."""

    @property
    def listings_at_once(self) -> int:
        """How many listings are best asked for together."""

    def at(self, lane: PriorityLane) -> Mailbox: ...

    async def identity(self) -> MailboxIdentity: ...

    def list(
        self,
        span: Span | None = None,
        *,
        query: str = "",
        label_id: LabelId | None = None,
        everywhere: bool = True,
        page_size: int = PAGE_SIZE,
        max_age_s: float = 0.0,
    ) -> AsyncIterator[ListedPage]:
        """Ids, nearly newest first; perhaps a little more than the span, never less.

        `query` is in the search language of `mail.query`; without `everywhere`, spam and trash are left out. A caller
        that also reads the changes since an earlier cursor may take a listing that is up to `max_age_s` old: what
        happened since then is among the changes.
        """

    async def fetch(self, ids: Iterable[MessageId], detail: Detail = Detail.RAW) -> tuple[FetchResult, ...]:
        """One result for each different id, in the order given. An error of the account or the login is raised."""

    async def get(self, message_id: MessageId, detail: Detail = Detail.RAW) -> RemoteMessage:
        """One message, asked for once. Raises Gone where the mailbox no longer has it."""

    def changes(self, since: Cursor) -> AsyncIterator[ChangePage]:
        """Everything since the cursor, page by page, until now. Raises HistoryExpired where it is too old."""

    async def labels(self) -> tuple[MailboxLabel, ...]: ...

    async def create_label(self, name: str) -> MailboxLabel:
        """A label of this name: a new one, or the one that there is. Raises LabelGone for what can only be an id."""

    async def modify(self, ids: Collection[MessageId], change: MailboxChange) -> Mapping[MessageId, frozenset[LabelId]]:
        """Change up to a thousand messages. Returns the labels afterwards if there is a single message; of several the
        mailbox need not say them.

        Raises Gone if one no longer exists, unless the provider ignores that, and LabelGone if a label does not.
        """

    async def confirm(self, ids: Collection[MessageId]) -> frozenset[MessageId]:
        """Make sure that these are still what they are taken for, before one is certified. What was found again
        without its bytes, as after a server numbered a folder anew, is read; returns those that could not be."""

    async def append(
        self,
        raw: bytes,
        label_ids: Collection[LabelId] = (),
        thread_id: str | None = None,
        received: datetime | None = None,
    ) -> MessageId:
        """Put a message into the mailbox as it is; the id that it got.

        `received` is when it was received first. A provider that cannot set that comes as near as it can, and leaves
        out labels that only it gives; read the message back to see. Without it the message arrives now. Raises Gone or
        CallRefused where there is no such thread.
        """

    async def append_all(self, messages: Sequence[NewMessage]) -> Sequence[AppendResult]:
        """As `append`, for several: a result for each, in order. Raises only before the first of them is begun."""


async def append_each(
    messages: Sequence[NewMessage], append: Callable[[NewMessage], Awaitable[R]], at_once: int
) -> list[R | PostroomError | None]:
    """Append so many at a time. After the first problem that is not one message's own no more are begun."""
    results: list[R | PostroomError | None] = [None] * len(messages)
    left = iter(enumerate(messages))
    is_stopped = False

    async def work() -> None:
        nonlocal is_stopped
        for number, message in left:
            try:
                results[number] = await append(message)
            except PostroomError as error:
                results[number] = error
                is_stopped |= not isinstance(error, CallRefused | Gone)
            if is_stopped:
                return

    ended = await asyncio.gather(*(work() for _ in range(at_once)), return_exceptions=True)
    for raised in ended:
        if raised is not None:
            raise raised
    return results


@dataclass(frozen=True, slots=True)
class MailDraft:
    id: str
    message_id: MessageId
    """Of the draft itself; what is sent from it may have another."""
    thread_id: str


@dataclass(frozen=True, slots=True)
class HeaderMark:
    """A header by which a draft, and what was sent from it, is found again."""

    name: str
    value: str


class Outbox(Protocol):
    """Sends mail through drafts: a draft can be sent only once, and one that still exists was not sent."""

    async def create_draft(self, raw: bytes, thread_id: str | None = None) -> MailDraft:
        """Raises BadInput where there is no such conversation any more."""

    async def find_drafts(self, mark: HeaderMark, thread_id: str | None) -> list[MailDraft]:
        """Recent drafts with this mark; with a thread, only those within it."""

    async def delete_draft(self, draft_id: str) -> None:
        """Raises Gone where it no longer exists."""

    async def send_draft(self, draft_id: str) -> MessageId:
        """The id of the sent message. Raises Gone where the draft no longer exists, because it was sent, say."""

    async def find_sent(self, mark: HeaderMark, thread_id: str | None, since: datetime) -> MessageId | None:
        """The sent message with this mark: in the thread, else among what was sent since then."""

"""Gmail as a `Mailbox`."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Collection, Iterable, Mapping

from postroom.mailboxes.errors import CallRefused, LabelGone
from postroom.mailboxes.gmail.calls import search_query
from postroom.mailboxes.gmail.client import GmailClient
from postroom.mailboxes.gmail.history import HistoryFolder
from postroom.mailboxes.gmail.resources import GmailLabel, GmailMessage, MessageFormat
from postroom.mailboxes.limiter import Limiter
from postroom.mailboxes.ports import PriorityLane
from postroom.mailboxes.protocol import (
    PAGE_SIZE,
    ChangePage,
    Cursor,
    Detail,
    FetchResult,
    Got,
    LabelId,
    ListedPage,
    MailboxChange,
    MailboxIdentity,
    MailboxLabel,
    MessageId,
    Move,
    RemoteMessage,
    Span,
)

_FORMATS = {Detail.RAW: MessageFormat.RAW, Detail.HEADERS: MessageFormat.METADATA, Detail.FLAGS: MessageFormat.MINIMAL}
_LABEL_ID = re.compile(r"Label_\d+")
_CONFLICT = 409


class GmailMailbox:
    def __init__(self, client: GmailClient) -> None:
        self._client = client

    @property
    def lane(self) -> PriorityLane:
        return self._client.lane

    @property
    def limiter(self) -> Limiter:
        return self._client.limiter

    @property
    def units_per_minute(self) -> int | None:
        return None if self._client.profile is None else self._client.profile.units_per_minute

    @property
    def batch_size(self) -> int:
        return self._client.batch_size

    def at(self, lane: PriorityLane) -> GmailMailbox:
        return GmailMailbox(self._client.at(lane))

    async def identity(self) -> MailboxIdentity:
        profile = await self._client.get_profile()
        return MailboxIdentity(profile.email, profile.history_id, profile.messages_total)

    async def list(
        self,
        span: Span | None = None,
        *,
        query: str = "",
        label_id: LabelId | None = None,
        everywhere: bool = True,
        page_size: int = PAGE_SIZE,
    ) -> AsyncIterator[ListedPage]:
        async for page in self._client.list_messages(
            search_query(span, query),
            label_ids=() if label_id is None else (label_id,),
            include_spam_trash=everywhere,
            page_size=page_size,
        ):
            yield ListedPage(tuple(ref.id for ref in page.messages), page.next_token is None, page.estimate)

    async def fetch(self, ids: Iterable[MessageId], detail: Detail = Detail.RAW) -> tuple[FetchResult, ...]:
        found = await self._client.get_messages(ids, _FORMATS[detail])
        return tuple(Got(remote(each.message)) if isinstance(each, Got) else each for each in found)

    async def changes(self, since: Cursor) -> AsyncIterator[ChangePage]:
        folder = HistoryFolder(since)
        async for page in self._client.list_history(since):
            yield folder.fold(page)

    async def get(self, message_id: MessageId, detail: Detail = Detail.RAW) -> RemoteMessage:
        return remote(await self._client.get_message(message_id, _FORMATS[detail]))

    async def labels(self) -> tuple[MailboxLabel, ...]:
        return tuple(_label(each) for each in await self._client.list_labels())

    async def create_label(self, name: str) -> MailboxLabel:
        if _LABEL_ID.fullmatch(name):
            raise LabelGone(f"There is no label with the id {name} in the mailbox; it may have been deleted.")
        try:
            return _label(await self._client.create_label(name))
        except CallRefused as error:
            if error.status != _CONFLICT:
                raise
            same = [each for each in await self.labels() if each.name.lower() == name.lower()]
            if not same:
                raise
            return same[0]

    async def modify(self, ids: Collection[MessageId], change: MailboxChange) -> Mapping[MessageId, frozenset[LabelId]]:
        if len(ids) == 1:
            message_id = next(iter(ids))
            return {message_id: await self._modify_one(message_id, change)}
        if ids:
            await self._modify_all(ids, change)
        return {}

    async def _modify_all(self, ids: Collection[MessageId], change: MailboxChange) -> None:
        match change.move:
            case None:
                await self._client.modify_messages(ids, add=change.add, remove=change.remove)
            case Move.TRASH:
                await self._client.modify_messages(ids, add=["TRASH"], remove=["INBOX"])
            case Move.RESTORE:
                await self._client.modify_messages(ids, remove=["TRASH"])
            case Move.DELETE:
                await self._client.delete_messages(ids)

    async def _modify_one(self, message_id: MessageId, change: MailboxChange) -> frozenset[LabelId]:
        match change.move:
            case None:
                return await self._relabel(message_id, change)
            case Move.TRASH:
                return (await self._client.trash_message(message_id)).label_ids
            case Move.RESTORE:
                return (await self._client.untrash_message(message_id)).label_ids
            case Move.DELETE:
                await self._client.delete_message(message_id)
                return frozenset()

    async def _relabel(self, message_id: MessageId, change: MailboxChange) -> frozenset[LabelId]:
        try:
            return (await self._client.modify_message(message_id, add=change.add, remove=change.remove)).label_ids
        except CallRefused as error:
            if "label" in error.message.lower():
                names = ", ".join(sorted(change.add | change.remove))
                raise LabelGone(
                    f"Gmail does not know the label {names} (any more), or does not let it be set."
                ) from error
            raise

    async def append(self, raw: bytes, label_ids: Collection[LabelId] = (), thread_id: str | None = None) -> MessageId:
        return (await self._client.insert_message(raw, label_ids=label_ids, thread_id=thread_id)).id


def _label(label: GmailLabel) -> MailboxLabel:
    return MailboxLabel(label.id, label.id if label.is_system else label.name, label.is_system)


def remote(message: GmailMessage) -> RemoteMessage:
    """Gmail keeps the line breaks of folded headers."""
    return RemoteMessage(
        id=message.id,
        thread_id=message.thread_id,
        label_ids=message.label_ids,
        received_ms=message.internal_date_ms,
        size=message.size_estimate,
        headers=tuple((name, value.replace("\r", "").replace("\n", "")) for name, value in message.headers),
        raw=message.raw,
    )

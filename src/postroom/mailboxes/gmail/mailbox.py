"""Gmail as a `Mailbox` and as an `Outbox`.

History ids are numbers of any length, and text to all other code. Gmail replaces the Message-ID of what it sends, so
sent mail is found by a header of our own, in its thread or among the latest sent mail.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from postroom.domain.errors import BadInput
from postroom.mailboxes import protocol
from postroom.mailboxes.errors import CallRefused, Gone, LabelGone
from postroom.mailboxes.gmail import resources
from postroom.mailboxes.gmail.calls import search_query
from postroom.mailboxes.gmail.client import GmailClient
from postroom.mailboxes.limiter import Limiter
from postroom.mailboxes.ports import PriorityLane


class HistoryFolder:
    """Folds the pages of one reading, in their order, into pages of changes with a cursor each."""

    def __init__(self, since: protocol.Cursor) -> None:
        self._since = since
        self._reached: str | None = None

    def fold(self, page: resources.HistoryPage) -> protocol.ChangePage:
        # Where the mailbox stood when the first page was answered: what came later may be on no page.
        self._reached = latest([self._since, self._reached or page.history_id, *(each.id for each in page.records)])
        return fold(page.records, self._reached if page.next_token is None else resume_point(page.records))


def fold(records: Sequence[resources.HistoryRecord], cursor: protocol.Cursor | None = None) -> protocol.ChangePage:
    """Records may come in any order, and twice."""
    added: dict[str, None] = {}
    deleted: dict[str, None] = {}
    relabelled: list[protocol.LabelDelta] = []
    for record in sorted(records, key=lambda each: int(each.id)):
        number = int(record.id)
        added.update(dict.fromkeys(ref.id for ref in record.added))
        deleted.update(dict.fromkeys(ref.id for ref in record.deleted))
        for each in record.labels_added:
            now = each.message.label_ids if each.message.label_ids >= each.label_ids else None
            relabelled.append(protocol.LabelDelta(each.message.id, add=each.label_ids, now=now, sequence=number))
        for each in record.labels_removed:
            relabelled.append(_removal(each, number))
    kept = tuple(each for each in added if each not in deleted)
    return protocol.ChangePage(kept, tuple(deleted), tuple(relabelled), cursor, len(records))


def _removal(change: resources.LabelChange, number: int) -> protocol.LabelDelta:
    """A message without any label looks like one whose labels Gmail left out."""
    now = change.message.label_ids or None
    return protocol.LabelDelta(change.message.id, remove=change.label_ids, now=now, sequence=number)


def latest(history_ids: Iterable[str]) -> str | None:
    return max(history_ids, key=int, default=None)


def resume_point(records: Sequence[resources.HistoryRecord]) -> str | None:
    """Where to resume if the next page is never read; None: where this page began.

    Not the last id, because the next page may hold more records with that id.
    """
    last = latest(each.id for each in records)
    return latest(each.id for each in records if each.id != last)


_FORMATS = {
    protocol.Detail.RAW: resources.MessageFormat.RAW,
    protocol.Detail.HEADERS: resources.MessageFormat.METADATA,
    protocol.Detail.FLAGS: resources.MessageFormat.MINIMAL,
}
_LABEL_ID = re.compile(r"Label_\d+")
_CONFLICT = 409
_APPENDED_AT_ONCE = 6
_ONLY_BY_GMAIL = frozenset({"SENT", "DRAFT", "CHAT"})
"""Labels that Gmail gives and takes itself."""


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

    @property
    def listings_at_once(self) -> int:
        """As many as share a request: answers to several requests could come in any order."""
        return self._client.batch_size

    def at(self, lane: PriorityLane) -> GmailMailbox:
        return GmailMailbox(self._client.at(lane))

    async def identity(self) -> protocol.MailboxIdentity:
        profile = await self._client.get_profile()
        return protocol.MailboxIdentity(profile.email, profile.history_id, profile.messages_total)

    async def list(
        self,
        span: protocol.Span | None = None,
        *,
        query: str = "",
        label_id: protocol.LabelId | None = None,
        everywhere: bool = True,
        page_size: int = protocol.PAGE_SIZE,
        max_age_s: float = 0.0,
    ) -> AsyncIterator[protocol.ListedPage]:
        async for page in self._client.list_messages(
            search_query(span, query),
            label_ids=() if label_id is None else (label_id,),
            include_spam_trash=everywhere,
            page_size=page_size,
        ):
            yield protocol.ListedPage(tuple(ref.id for ref in page.messages), page.next_token is None, page.estimate)

    async def fetch(
        self, ids: Iterable[protocol.MessageId], detail: protocol.Detail = protocol.Detail.RAW
    ) -> tuple[protocol.FetchResult, ...]:
        found = await self._client.get_messages(ids, _FORMATS[detail])
        return tuple(protocol.Got(remote(each.message)) if isinstance(each, protocol.Got) else each for each in found)

    async def changes(self, since: protocol.Cursor) -> AsyncIterator[protocol.ChangePage]:
        folder = HistoryFolder(since)
        async for page in self._client.list_history(since):
            yield folder.fold(page)

    async def get(
        self, message_id: protocol.MessageId, detail: protocol.Detail = protocol.Detail.RAW
    ) -> protocol.RemoteMessage:
        return remote(await self._client.get_message(message_id, _FORMATS[detail]))

    async def labels(self) -> tuple[protocol.MailboxLabel, ...]:
        return tuple(_label(each) for each in await self._client.list_labels())

    async def create_label(self, name: str) -> protocol.MailboxLabel:
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

    async def modify(
        self, ids: Collection[protocol.MessageId], change: protocol.MailboxChange
    ) -> Mapping[protocol.MessageId, frozenset[protocol.LabelId]]:
        if len(ids) == 1:
            message_id = next(iter(ids))
            return {message_id: await self._modify_one(message_id, change)}
        if ids:
            await self._modify_all(ids, change)
        return {}

    async def _modify_all(self, ids: Collection[protocol.MessageId], change: protocol.MailboxChange) -> None:
        match change.move:
            case None:
                await self._client.modify_messages(ids, add=change.add, remove=change.remove)
            case protocol.Move.TRASH:
                await self._client.modify_messages(ids, add=["TRASH"], remove=["INBOX"])
            case protocol.Move.RESTORE:
                await self._client.modify_messages(ids, remove=["TRASH"])
            case protocol.Move.DELETE:
                await self._client.delete_messages(ids)

    async def _modify_one(
        self, message_id: protocol.MessageId, change: protocol.MailboxChange
    ) -> frozenset[protocol.LabelId]:
        match change.move:
            case None:
                return await self._relabel(message_id, change)
            case protocol.Move.TRASH:
                return (await self._client.trash_message(message_id)).label_ids
            case protocol.Move.RESTORE:
                return (await self._client.untrash_message(message_id)).label_ids
            case protocol.Move.DELETE:
                await self._client.delete_message(message_id)
                return frozenset()

    async def _relabel(
        self, message_id: protocol.MessageId, change: protocol.MailboxChange
    ) -> frozenset[protocol.LabelId]:
        try:
            return (await self._client.modify_message(message_id, add=change.add, remove=change.remove)).label_ids
        except CallRefused as error:
            if "label" in error.message.lower():
                names = ", ".join(sorted(change.add | change.remove))
                raise LabelGone(
                    f"Gmail does not know the label {names} (any more), or does not let it be set."
                ) from error
            raise

    async def confirm(self, ids: Collection[protocol.MessageId]) -> frozenset[protocol.MessageId]:
        """Gmail's ids never change their meaning."""
        return frozenset()

    async def append(
        self,
        raw: bytes,
        label_ids: Collection[protocol.LabelId] = (),
        thread_id: str | None = None,
        received: datetime | None = None,
    ) -> protocol.MessageId:
        """Gmail takes no date: with `received`, it reads the message's own Date header, and its clock where there is
        none. It gives SENT itself, to mail from the account's own address."""
        added = await self._client.insert_message(
            raw,
            label_ids=frozenset(label_ids) - _ONLY_BY_GMAIL,
            thread_id=thread_id,
            dated_by_header=received is not None,
        )
        return added.id

    async def append_all(self, messages: Sequence[protocol.NewMessage]) -> Sequence[protocol.AppendResult]:
        def append(each: protocol.NewMessage) -> Awaitable[protocol.MessageId]:
            return self.append(each.raw, each.label_ids, each.thread_id, each.received)

        return await protocol.append_each(messages, append, _APPENDED_AT_ONCE)


def _label(label: resources.GmailLabel) -> protocol.MailboxLabel:
    return protocol.MailboxLabel(label.id, label.id if label.is_system else label.name, label.is_system)


def remote(message: resources.GmailMessage) -> protocol.RemoteMessage:
    """Gmail keeps the line breaks of folded headers."""
    return protocol.RemoteMessage(
        id=message.id,
        thread_id=message.thread_id,
        label_ids=message.label_ids,
        received_ms=message.internal_date_ms,
        size=message.size_estimate,
        headers=tuple((name, value.replace("\r", "").replace("\n", "")) for name, value in message.headers),
        raw=message.raw,
    )


_MOST_LOOKED_AT = 50
_SKEW = timedelta(minutes=10)
"""Gmail's clock and ours need not agree."""


class GmailOutbox:
    def __init__(self, client: GmailClient) -> None:
        self._client = client

    async def create_draft(self, raw: bytes, thread_id: str | None = None) -> protocol.MailDraft:
        try:
            return _draft(await self._client.create_draft(raw, thread_id=thread_id))
        except Gone:
            raise BadInput("thread_id", "the conversation is no longer in the mailbox") from None

    async def find_drafts(self, mark: protocol.HeaderMark, thread_id: str | None) -> list[protocol.MailDraft]:
        drafts = [_draft(each) for each in await self._client.list_drafts(page_size=100)]
        near = [draft for draft in drafts if thread_id in (None, draft.thread_id)][:_MOST_LOOKED_AT]
        ours = {message.id for message in await self._marked([draft.message_id for draft in near], mark)}
        return [draft for draft in near if draft.message_id in ours]

    async def delete_draft(self, draft_id: str) -> None:
        await self._client.delete_draft(draft_id)

    async def send_draft(self, draft_id: str) -> protocol.MessageId:
        return (await self._client.send_draft(draft_id)).id

    async def find_sent(
        self, mark: protocol.HeaderMark, thread_id: str | None, since: datetime
    ) -> protocol.MessageId | None:
        found = await self._in_thread(mark, thread_id) if thread_id else None
        return found or await self._among_sent(mark, since)

    async def _in_thread(self, mark: protocol.HeaderMark, thread_id: str) -> protocol.MessageId | None:
        try:
            thread = await self._client.get_thread(thread_id, resources.MessageFormat.METADATA)
        except Gone:
            return None
        return next((each.id for each in thread.messages if "SENT" in each.label_ids and _bears(each, mark)), None)

    async def _among_sent(self, mark: protocol.HeaderMark, since: datetime) -> protocol.MessageId | None:
        query = search_query(protocol.Span(int((since - _SKEW).timestamp())))
        async for page in self._client.list_messages(
            query, label_ids=["SENT"], include_spam_trash=True, page_size=_MOST_LOOKED_AT
        ):
            found = await self._marked([ref.id for ref in page.messages], mark)
            return next((message.id for message in found if "SENT" in message.label_ids), None)
        return None

    async def _marked(self, ids: list[protocol.MessageId], mark: protocol.HeaderMark) -> list[resources.GmailMessage]:
        fetched = await self._client.get_messages(ids, resources.MessageFormat.METADATA, [mark.name]) if ids else ()
        if failed := next((each for each in fetched if isinstance(each, protocol.Failed)), None):
            raise failed.error
        return [each.message for each in fetched if isinstance(each, protocol.Got) and _bears(each.message, mark)]


def _draft(draft: resources.Draft) -> protocol.MailDraft:
    return protocol.MailDraft(draft.id, draft.message.id, draft.message.thread_id)


def _bears(message: resources.GmailMessage, mark: protocol.HeaderMark) -> bool:
    return any(name.lower() == mark.name.lower() and value.strip() == mark.value for name, value in message.headers)

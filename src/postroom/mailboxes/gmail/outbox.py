"""Gmail as an `Outbox`. Gmail replaces the Message-ID of what it sends, so sent mail is found by a header of our own,
in its thread or among the latest sent mail.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from postroom.domain.errors import BadInput
from postroom.mailboxes.errors import Gone
from postroom.mailboxes.gmail.calls import search_query
from postroom.mailboxes.gmail.client import GmailClient
from postroom.mailboxes.gmail.resources import Draft, GmailMessage, MessageFormat
from postroom.mailboxes.protocol import Failed, Got, HeaderMark, MailDraft, MessageId, Span

_MOST_LOOKED_AT = 50
_SKEW = timedelta(minutes=10)
"""Gmail's clock and ours need not agree."""


class GmailOutbox:
    def __init__(self, client: GmailClient) -> None:
        self._client = client

    async def create_draft(self, raw: bytes, thread_id: str | None = None) -> MailDraft:
        try:
            return _draft(await self._client.create_draft(raw, thread_id=thread_id))
        except Gone:
            raise BadInput("thread_id", "the conversation is no longer in the mailbox") from None

    async def find_drafts(self, mark: HeaderMark, thread_id: str | None) -> list[MailDraft]:
        drafts = [_draft(each) for each in await self._client.list_drafts(page_size=100)]
        near = [draft for draft in drafts if thread_id in (None, draft.thread_id)][:_MOST_LOOKED_AT]
        ours = {message.id for message in await self._marked([draft.message_id for draft in near], mark)}
        return [draft for draft in near if draft.message_id in ours]

    async def delete_draft(self, draft_id: str) -> None:
        await self._client.delete_draft(draft_id)

    async def send_draft(self, draft_id: str) -> MessageId:
        return (await self._client.send_draft(draft_id)).id

    async def find_sent(self, mark: HeaderMark, thread_id: str | None, since: datetime) -> MessageId | None:
        found = await self._in_thread(mark, thread_id) if thread_id else None
        return found or await self._among_sent(mark, since)

    async def _in_thread(self, mark: HeaderMark, thread_id: str) -> MessageId | None:
        try:
            thread = await self._client.get_thread(thread_id, MessageFormat.METADATA)
        except Gone:
            return None
        return next((each.id for each in thread.messages if "SENT" in each.label_ids and _bears(each, mark)), None)

    async def _among_sent(self, mark: HeaderMark, since: datetime) -> MessageId | None:
        query = search_query(Span(int((since - _SKEW).timestamp())))
        async for page in self._client.list_messages(
            query, label_ids=["SENT"], include_spam_trash=True, page_size=_MOST_LOOKED_AT
        ):
            found = await self._marked([ref.id for ref in page.messages], mark)
            return next((message.id for message in found if "SENT" in message.label_ids), None)
        return None

    async def _marked(self, ids: list[MessageId], mark: HeaderMark) -> list[GmailMessage]:
        fetched = await self._client.get_messages(ids, MessageFormat.METADATA, [mark.name]) if ids else ()
        if failed := next((each for each in fetched if isinstance(each, Failed)), None):
            raise failed.error
        return [each.message for each in fetched if isinstance(each, Got) and _bears(each.message, mark)]


def _draft(draft: Draft) -> MailDraft:
    return MailDraft(draft.id, draft.message.id, draft.message.thread_id)


def _bears(message: GmailMessage, mark: HeaderMark) -> bool:
    return any(name.lower() == mark.name.lower() and value.strip() == mark.value for name, value in message.headers)

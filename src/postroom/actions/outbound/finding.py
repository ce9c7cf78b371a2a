"""Looking for one's own mail in a mailbox: drafts left behind, and what was sent, known by the action's header."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from postroom.actions.outbound.loop_guard import ACTION_HEADER
from postroom.gmail.client import GmailClient
from postroom.gmail.errors import Gone
from postroom.gmail.fetching import Failed, Got
from postroom.gmail.resources import Draft, Format, Message

_MOST_LOOKED_AT = 50
_SKEW = timedelta(minutes=10)
"""Gmail's clock and ours need not agree."""


async def find_drafts(client: GmailClient, action_id: str, thread_id: str | None) -> list[Draft]:
    """Drafts of this action, made by an attempt that did not live to write them down. A reply's are in its thread."""
    drafts = await client.list_drafts(page_size=100)
    near = [draft for draft in drafts if thread_id is None or draft.message.thread_id == thread_id][:_MOST_LOOKED_AT]
    ours = {message.id for message in await _headed(client, [draft.message.id for draft in near], action_id)}
    return [draft for draft in near if draft.message.id in ours]


async def find_sent(client: GmailClient, action_id: str, thread_id: str | None, since: datetime) -> str | None:
    """The id of the message that this action sent: in the draft's thread, else among what was sent since."""
    found = await _in_thread(client, action_id, thread_id) if thread_id else None
    return found or await _among_sent(client, action_id, since)


async def _in_thread(client: GmailClient, action_id: str, thread_id: str) -> str | None:
    try:
        thread = await client.get_thread(thread_id, Format.METADATA)
    except Gone:
        return None
    return next((each.id for each in thread.messages if "SENT" in each.label_ids and _bears(each, action_id)), None)


async def _among_sent(client: GmailClient, action_id: str, since: datetime) -> str | None:
    query = f"after:{int((since - _SKEW).timestamp())}"
    async for page in client.list_messages(
        query, label_ids=["SENT"], include_spam_trash=True, page_size=_MOST_LOOKED_AT
    ):
        found = await _headed(client, [ref.id for ref in page.messages], action_id)
        return next((message.id for message in found if "SENT" in message.label_ids), None)
    return None


async def _headed(client: GmailClient, ids: list[str], action_id: str) -> list[Message]:
    fetched = await client.get_messages(ids, Format.METADATA, [ACTION_HEADER]) if ids else ()
    if failed := next((each for each in fetched if isinstance(each, Failed)), None):
        raise failed.error
    return [each.message for each in fetched if isinstance(each, Got) and _bears(each.message, action_id)]


def _bears(message: Message, action_id: str) -> bool:
    headers: Iterable[tuple[str, str]] = () if message.payload is None else message.payload.headers
    return any(name.lower() == ACTION_HEADER.lower() and value.strip() == action_id for name, value in headers)

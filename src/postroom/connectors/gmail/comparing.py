"""Mail that is known, looked at again: which labels it has by now, and whether it is still there.

For a time about which the history has nothing to say any more. Recent mail is where changes matter: what is older is
put right by the next sync.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta

from postroom.connectors.gmail.labels import LabelBook
from postroom.connectors.switchboard import Switchboard
from postroom.connectors.wire import ArchivedMail
from postroom.gmail.client import GmailClient
from postroom.gmail.fetching import Got, Missing
from postroom.gmail.resources import Format

LOOK_BACK = timedelta(days=30)
_PAGE = 200


class Comparison:
    def __init__(self, switchboard: Switchboard, client: GmailClient, labels: LabelBook) -> None:
        self._switchboard = switchboard
        self._client = client
        self._labels = labels

    async def run(self, now: datetime, renew: Callable[[], Awaitable[None]]) -> int:
        """Compare the mail of the last weeks; the number of messages that had changed."""
        first, last = (now - LOOK_BACK).date().isoformat(), (now + timedelta(days=1)).date().isoformat()
        changed, cursor = 0, None
        self._labels.forget()
        while True:
            page = await self._switchboard.archive_range(first, last, cursor, _PAGE, ())
            changed += await self._compare([mail for mail in page.messages if not mail.deleted_at_source])
            await renew()
            cursor = page.cursor
            if cursor is None:
                return changed

    async def _compare(self, mails: Sequence[ArchivedMail]) -> int:
        """A message that cannot be asked for now keeps what is known of it: it holds up nobody."""
        known = {mail.gmail_id: frozenset(mail.labels) for mail in mails}
        answers = await self._client.get_messages(list(known), Format.MINIMAL)
        deleted = [answer.id for answer in answers if isinstance(answer, Missing)]
        found = {each.id: await self._labels.names(each.message.label_ids) for each in answers if isinstance(each, Got)}
        labels = {gmail_id: names for gmail_id, names in found.items() if names != known[gmail_id]}
        if labels or deleted:
            await self._switchboard.archive_changes(labels, deleted)
        return len(labels) + len(deleted)

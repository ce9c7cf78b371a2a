"""Lists that come in pages end, whatever Gmail says of the next one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from itertools import cycle
from typing import Any

import pytest

from postroom.mailboxes.errors import MailboxUnavailable
from postroom.mailboxes.gmail.client import GmailClient
from postroom.mailboxes.gmail.resources import HistoryPage, MessagePage


class Circling(GmailClient):
    def __init__(self, pages: Sequence[object]) -> None:
        super().__init__(None, None)  # type: ignore[arg-type]
        self._pages = cycle(pages)

    async def _send(self, call: Any, make: Any) -> Any:
        return next(self._pages)

    _send_gathered = _send


@pytest.mark.parametrize("tokens", [("a",), ("a", "b", "c")])
async def test_pages_that_lead_back_to_one_another_are_an_error_and_no_endless_list(tokens: tuple[str, ...]) -> None:
    messages = Circling([MessagePage((), token, 0) for token in tokens]).list_messages()
    history = Circling([HistoryPage((), token, "7") for token in tokens]).list_history("5")
    for pages in (messages, history):
        with pytest.raises(MailboxUnavailable, match="in a circle"):
            await read(pages, at_most=len(tokens) + 1)


async def read(pages: AsyncIterator[object], at_most: int) -> None:
    for _ in range(at_most + 1):
        await anext(pages)

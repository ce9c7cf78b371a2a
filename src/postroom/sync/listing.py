"""A slice of time turned into the ids of its messages, page by page."""

from __future__ import annotations

from collections.abc import AsyncIterator

from postroom.gmail.client import GmailClient
from postroom.settings import SyncSettings
from postroom.sync.slices import Slice, split


class TooDeep(Exception):
    """The slice has more pages than one listing should take."""

    def __init__(self, halves: tuple[Slice, Slice]) -> None:
        super().__init__("the slice is listed in halves")
        self.halves = halves


def query_of(part: Slice) -> str:
    """The slice in Gmail's words.

    `before:` is exclusive. Whether `after:` includes its own second is not documented, so it names the second before:
    what is listed twice is found in the archive the second time, what is never listed is lost. The first slice has no
    beginning, for mail dated before 1970.
    """
    words = [] if part.start == 0 else [f"after:{part.start - 1}"]
    return " ".join(words if part.end is None else [*words, f"before:{part.end}"])


async def ids_of(client: GmailClient, part: Slice, settings: SyncSettings) -> AsyncIterator[list[str]]:
    """The ids, in portions that follow each other without an end in memory.

    Raises TooDeep, before any portion, for a slice that has too many pages and can be cut. One that cannot be cut is
    listed to its end, however long that is.
    """
    halves = split(part)
    listed: list[str] = []
    pages = 0
    async for page in client.list_messages(query_of(part), include_spam_trash=True, page_size=settings.page_size):
        pages += 1
        listed += [ref.id for ref in page.messages]
        if pages == settings.max_pages_per_slice and page.next_token is not None and halves:
            raise TooDeep(halves)
        if halves is None and listed:
            yield listed
            listed = []
    if listed:
        yield listed

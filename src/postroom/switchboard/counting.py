"""How many messages a backfill would bring: counted in the archive where it holds the days, else at the source."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Collection, Container, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from typing import Protocol

from postroom.archive.model import ArchivedMessage
from postroom.archive.place import ArchivePlace, MailReader
from postroom.domain.metering import MOST_TEXT_BYTES
from postroom.gmail.client import GmailClient
from postroom.gmail.fetching import Got
from postroom.gmail.resources import Format, Message
from postroom.mail.addresses import parse_addresses
from postroom.mail.categories import Categories, facts_of
from postroom.mail.headers import Headers
from postroom.reading.mail import read_headers
from postroom.switchboard.backfill.jobs import NewBackfill
from postroom.switchboard.backfill.model import Include

FULL, METADATA, SKIP = 1, 2, 3
Treat = Callable[[Headers, Collection[str]], int]
"""The tier policy: 1 full, 2 metadata only, 3 skip."""

_PAGE = 500
_MOST_PAGES = 40
SAMPLE = 150
_TEXTS_MEASURED = 500
_CHARS_A_TOKEN = 4
_LEFT_OUT = {
    "DRAFT": Include.DRAFTS,
    "SENT": Include.SENT,
    "SPAM": Include.SPAM,
    "TRASH": Include.TRASH,
}


class CountedIn(StrEnum):
    ARCHIVE = "archive"
    SOURCE = "source"


@dataclass(frozen=True, slots=True)
class Counts:
    source: CountedIn
    is_exact: bool
    listed: int
    """Messages that must be looked at."""
    full: int
    metadata: int
    left_out: int
    text_tokens: int | None = None
    """About what the text of a full message has, where some were measured."""
    margin: int = 0
    """By so many messages the truth may lie above or below, nineteen times in twenty."""

    @property
    def messages(self) -> int:
        """What would be taken in."""
        return self.full + self.metadata


@dataclass
class Tally:
    """Counts messages one by one, as the connector's backfill would treat them."""

    wanted: NewBackfill
    categories: Categories
    treat: Treat
    known: Container[str]
    listed: int = 0
    full: int = 0
    metadata: int = 0

    def add(self, headers: Headers, labels: Collection[str]) -> bool:
        """True if it would be taken in with its body."""
        self.listed += 1
        if any(label in labels and include not in self.wanted.includes for label, include in _LEFT_OUT.items()):
            return False
        if self.wanted.target_categories and not self._is_wanted(headers):
            return False
        treatment = self.treat(headers, labels)
        self.full += treatment == FULL
        self.metadata += treatment == METADATA
        return treatment == FULL

    def _is_wanted(self, headers: Headers) -> bool:
        senders = parse_addresses(*headers.get_all("From")[:1])
        is_known = bool(senders) and senders[0].canonical in self.known
        return bool(self.categories.matching(facts_of(headers, is_known=is_known), self.wanted.target_categories))


def count_archive(place: ArchivePlace, tally: Tally) -> Counts:
    """Exact: every message of the days is looked at. Takes its time, so call it from a thread."""
    sizes: list[int] = []
    with place.reader() as archive:
        for message in _walked(archive, tally.wanted):
            headers = read_headers(archive.raw_of(message))
            if tally.add(headers, message.labels) and len(sizes) < _TEXTS_MEASURED:
                sizes.append(min(len(archive.body_of(message)), MOST_TEXT_BYTES))
    tokens = sum(sizes) // len(sizes) // _CHARS_A_TOKEN if sizes else None
    taken = tally.full + tally.metadata
    return Counts(CountedIn.ARCHIVE, True, tally.listed, tally.full, tally.metadata, tally.listed - taken, tokens)


def _walked(archive: MailReader, wanted: NewBackfill) -> Iterator[ArchivedMessage]:
    cursor: str | None = None
    while True:
        found, cursor = archive.walk(wanted.endpoint_identity, wanted.date_from, wanted.date_to, cursor, _PAGE)
        yield from (message for message in found if message.deleted_at_source is None)
        if cursor is None:
            return


class Mailboxes(Protocol):
    def open(self, endpoint_identity: str) -> AbstractAsyncContextManager[GmailClient]:
        """A client for the mailbox."""


async def count_at_source(mailboxes: Mailboxes, tally: Tally, sample_size: int = SAMPLE) -> Counts:
    """Ids are listed with the categories' query, which is cheap; how many of them stay is judged from a sample."""
    wanted = tally.wanted
    query = source_query(wanted, tally.categories)
    spam_or_trash = Include.SPAM in wanted.includes or Include.TRASH in wanted.includes
    async with mailboxes.open(wanted.endpoint_identity) as client:
        ids, total, is_complete = await _listed(client, query, include_spam_trash=spam_or_trash)
        sample = ids[:: max(1, len(ids) // sample_size)][:sample_size]
        async for message in _metadata(client, sample):
            tally.add(_headers(message), message.label_ids)
    looked_at = max(tally.listed, 1)
    full, metadata = round(total * tally.full / looked_at), round(total * tally.metadata / looked_at)
    is_exact = is_complete and tally.listed == total
    margin = 0 if is_exact else _margin(tally.full + tally.metadata, looked_at, total)
    return Counts(CountedIn.SOURCE, is_exact, total, full, metadata, total - full - metadata, margin=margin)


def _margin(taken: int, looked_at: int, total: int) -> int:
    """Two standard errors of a share that was seen in a sample."""
    share = taken / looked_at
    return round(2 * total * math.sqrt(share * (1 - share) / looked_at))


def source_query(wanted: NewBackfill, categories: Categories) -> str:
    """What to ask the source for: the days by epoch seconds, the last one included, and the categories."""
    start, end = (_epoch(day) for day in (wanted.date_from, wanted.date_to + timedelta(days=1)))
    parts = [f"after:{start}", f"before:{end}"]
    parts += [f"-in:{place}" for place in (Include.DRAFTS, Include.SENT) if place not in wanted.includes]
    if wanted.target_categories:
        parts.append(f"({categories.query(wanted.target_categories)})")
    return " ".join(parts)


def _epoch(day: date) -> int:
    return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp())


async def _listed(client: GmailClient, query: str, *, include_spam_trash: bool) -> tuple[list[str], int, bool]:
    """The ids, how many there are in all, and whether that is known or Gmail's guess."""
    ids: list[str] = []
    pages = 0
    async for page in client.list_messages(query, include_spam_trash=include_spam_trash, page_size=_PAGE):
        ids += [ref.id for ref in page.messages]
        pages += 1
        if page.next_token is not None and pages == _MOST_PAGES:
            return ids, max(page.estimate, len(ids)), False
    return ids, len(ids), True


async def _metadata(client: GmailClient, ids: Sequence[str]) -> AsyncIterator[Message]:
    """With all headers: asking for fewer is no cheaper, and the tier policy may look at any."""
    for fetched in await client.get_messages(ids, Format.METADATA):
        if isinstance(fetched, Got):
            yield fetched.message


def _headers(message: Message) -> Headers:
    return Headers(message.payload.headers if message.payload is not None else ())


async def in_a_thread(place: ArchivePlace, tally: Tally) -> Counts:
    return await asyncio.to_thread(count_archive, place, tally)

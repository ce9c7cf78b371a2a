"""The way back through a mailbox: nothing missed and nothing twice, from any place, whatever the source lists first."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from datetime import date, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.connectors.source_mail import Position
from postroom.connectors.walking import ArchiveWalk, MailboxWalk, WalkScope, WalkWindow
from postroom.contract.mail import ArchivedMail, RangeReply
from postroom.domain.errors import BadInput
from postroom.mailboxes.protocol import FetchResult, Got, ListedPage, RemoteMessage, Span

WINDOW = WalkWindow.of(date(2026, 3, 1), date(2026, 3, 2))


class Mailbox:
    """A source that lists in any order it likes."""

    def __init__(self, mails: dict[str, int], seed: int) -> None:
        self.mails = mails
        self._dice = random.Random(seed)

    async def list(self, span: Span, *, page_size: int, **more: Any) -> AsyncIterator[ListedPage]:
        start, end = (span.start - 1) * 1_000, (span.end or 0) * 1_000
        ids = [key for key, received in self.mails.items() if start <= received < end]
        self._dice.shuffle(ids)
        pages = [ids[each : each + page_size] for each in range(0, len(ids), page_size)] or [[]]
        for number, page in enumerate(pages):
            yield ListedPage(tuple(page), number + 1 == len(pages), len(ids))

    async def fetch(self, ids: Sequence[str], *detail: Any) -> tuple[FetchResult, ...]:
        return tuple(Got(RemoteMessage(key, received_ms=self.mails[key])) for key in ids)


def mailboxes() -> st.SearchStrategy[dict[str, int]]:
    start, end = WINDOW.start * 1_000, WINDOW.end * 1_000
    edges = st.sampled_from([start - 1, start, start + 999, end - 1, end, end + 1_000])
    moments = st.one_of(edges, st.integers(start - 5_000, end + 5_000), st.integers(start, start + 1_500))
    return st.lists(moments, max_size=260).map(lambda dates: {f"{n:04x}": when for n, when in enumerate(dates)})


async def walked(box: Mailbox, place: Position | None, most: int = 10**9) -> list[Position]:
    found: list[Position] = []
    async for stretch in MailboxWalk(box, WalkScope(WINDOW)).stretches(place):  # type: ignore[arg-type]
        for mail in stretch.mails:
            found.append(mail.position)
            if len(found) == most:
                return found
    return found


@pytest.mark.req("BF-12", "BF-15")
@settings(max_examples=60, deadline=None)
@given(mailboxes(), st.integers(0, 2**32), st.integers(1, 300))
def test_stopping_anywhere_and_going_on_gives_the_same_walk(mails: dict[str, int], seed: int, most: int) -> None:
    box = Mailbox(mails, seed)
    expected = sorted(
        ((when, key) for key, when in mails.items() if WINDOW.start * 1_000 <= when < WINDOW.end * 1_000), reverse=True
    )
    first = asyncio.run(walked(box, None, most))
    assert first == expected[:most], "newest first, each once"
    if first and len(first) == most:
        mails["new"] = first[0][0] + 1  # arrives meanwhile, before the place
        assert asyncio.run(walked(box, first[-1])) == expected[most:]


class Archive:
    """Answers pages as the Switchboard does: newest first, messages of one moment in an order of its own."""

    def __init__(self, mails: dict[str, int], seed: int) -> None:
        dice = random.Random(seed)
        self._order = sorted(mails.items(), key=lambda item: (item[1], dice.random()), reverse=True)

    async def archive_range(self, first: date, last: date, cursor: str | None, limit: int, headers: Any) -> RangeReply:
        start, end = (datetime.fromisoformat(f"{day}T00:00:00+00:00").timestamp() * 1_000 for day in (first, last))
        inside = [(key, when) for key, when in self._order if start <= when < end + 86_400_000]
        begin = int(cursor or 0)
        more = str(begin + limit) if begin + limit < len(inside) else None
        found = [
            ArchivedMail(gmail_id=key, key=key, sha256="0", internal_date=when, headers=[])
            for key, when in inside[begin : begin + limit]
        ]
        return RangeReply(messages=found, cursor=more, complete=True)


async def walked_in(archive: Archive, place: Position | None, most: int = 10**9) -> list[Position]:
    found: list[Position] = []
    async for stretch in ArchiveWalk(archive, WalkScope(WINDOW)).stretches(place):  # type: ignore[arg-type]
        found += [mail.position for mail in stretch.mails]
    return found[:most]


@pytest.mark.req("BF-16", "BF-15")
@settings(max_examples=60, deadline=None)
@given(mailboxes(), st.integers(0, 2**32), st.integers(1, 300))
def test_the_archive_is_walked_in_the_same_way(mails: dict[str, int], seed: int, most: int) -> None:
    archive, expected = Archive(mails, seed), asyncio.run(walked(Mailbox(mails, seed), None))
    first = asyncio.run(walked_in(archive, None, most))
    assert first == expected[:most]
    if len(first) == most:
        assert asyncio.run(walked_in(archive, first[-1])) == expected[most:], "a place means the same in both"


def test_a_window_that_ends_before_it_begins_is_refused() -> None:
    with pytest.raises(BadInput, match="date_from"):
        WalkWindow.of(date(2026, 3, 2), date(2026, 3, 1))

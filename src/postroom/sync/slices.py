"""The mailbox cut into slices of time: planning and splitting them, the order in which they are walked, listing the ids
of one, and the frontier, which advances only over an unbroken row of finished slices.

The newest 30 days come first, newest day first, ahead of the frontier; then the rest from the oldest on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from postroom.domain.errors import first_error
from postroom.mailboxes.gmail.methods import SHORTEST_EPOCH
from postroom.mailboxes.protocol import Mailbox, MailboxIdentity, Span
from postroom.settings import SyncSettings

DAY_S = 86_400
_WEEK_S = 7 * DAY_S
_DAILY_ABOVE = 200_000
_MONTHLY_BELOW = 20_000
_NEWEST_S = 30 * DAY_S
LISTED_WITHIN_S = 30.0
"""How old a listing of the sync may be: what came or went since is among the changes, which it reads as well."""
EARLIEST_CUT = SHORTEST_EPOCH
"""No query can tell earlier times apart, so no slice is cut before."""


class Granularity(StrEnum):
    DAY = "day"
    WEEK = "week"
    MONTH = "month"


@dataclass(frozen=True, slots=True, order=True)
class Slice(Span):
    """A span that is listed, fetched and closed as one."""


def granularity_for(messages: int) -> Granularity:
    """The more messages, the shorter the slices, so that each stays a small piece of work."""
    if messages > _DAILY_ABOVE:
        return Granularity.DAY
    return Granularity.MONTH if messages < _MONTHLY_BELOW else Granularity.WEEK


def plan(oldest: int, until: int, granularity: Granularity) -> list[Slice]:
    """All of time in slices, those of the newest days a day each. The first begins at zero and reaches past `oldest`,
    before which no mail is known; the last has no end and holds what is dated `until` or later, in the last minutes or
    in the future."""
    slices: list[Slice] = []
    newest = newest_from(until)
    start, end = 0, _end_after(max(oldest, EARLIEST_CUT), newest, granularity)
    while end < until:
        slices.append(Slice(start, end))
        start, end = end, _end_after(end, newest, granularity)
    return [*slices, Slice(start, until), Slice(until, None)]


def newest_from(until: int) -> int:
    """Where the newest days begin, which are walked first."""
    return max((until - _NEWEST_S) // DAY_S * DAY_S, 0)


def in_walk_order(parts: Iterable[Slice], until: int) -> list[Slice]:
    """The newest days first, newest first; then the others, oldest first."""
    newest = newest_from(until)
    in_order = sorted(parts, key=lambda part: part.start)
    ahead = [part for part in reversed(in_order) if part.start >= newest]
    return [*ahead, *(part for part in in_order if part.start < newest)]


def _end_after(instant: int, newest: int, granularity: Granularity) -> int:
    if instant >= newest:
        return next_boundary(instant, Granularity.DAY)
    return min(next_boundary(instant, granularity), newest)


def next_boundary(instant: int, granularity: Granularity) -> int:
    """The first end of a day, week or month (in UTC) after the instant."""
    match granularity:
        case Granularity.DAY:
            return (instant // DAY_S + 1) * DAY_S
        case Granularity.WEEK:
            return (instant // _WEEK_S + 1) * _WEEK_S
        case Granularity.MONTH:
            date = datetime.fromtimestamp(instant, UTC)
            year, month = (date.year + 1, 1) if date.month == 12 else (date.year, date.month + 1)
            return int(datetime(year, month, 1, tzinfo=UTC).timestamp())


def split(whole: Slice) -> tuple[Slice, Slice] | None:
    """Two halves. None for what cannot be cut: a second, or a slice without an end, whose parts would have ends in the
    future and carry the frontier there."""
    if whole.end is None:
        return None
    middle = max((whole.start + whole.end) // 2, EARLIEST_CUT)
    if not whole.start < middle < whole.end:
        return None
    return Slice(whole.start, middle), Slice(middle, whole.end)


class SliceStanding(StrEnum):
    OPEN = "open"
    DONE = "done"
    DOUBTFUL = "doubtful"
    """Done, and what came or went since its listing may be unknown: it is to be listed again."""


def advance(frontier: int, slices: Mapping[Slice, SliceStanding]) -> int:
    """The largest end such that every slice ending at or before it is done, starting from the frontier so far.

    `slices` are those from the frontier on. A gap between two slices holds the frontier as an unfinished slice does:
    nothing listed it.
    """
    for part in sorted(slices, key=lambda each: each.start):
        if part.start > frontier or part.end is None or slices[part] is not SliceStanding.DONE:
            break
        frontier = max(frontier, part.end)
    return frontier


def to_list_again(frontier: int, slices: Mapping[Slice, SliceStanding]) -> list[Slice]:
    """All doubtful slices, once the frontier has come to one; until then the history may still vouch for them."""
    doubtful = [part for part, standing in slices.items() if standing is SliceStanding.DOUBTFUL]
    return sorted(doubtful) if any(part.start <= frontier for part in doubtful) else []


_CLOSE_ENOUGH_S = 60 * DAY_S
_FEWEST_PARTS = 4


@dataclass(frozen=True, slots=True)
class WalkPlan:
    identity: MailboxIdentity
    """Read before any slice was listed: what changes after its cursor is in the history."""
    granularity: Granularity
    until: int
    slices: Sequence[Slice]


async def plan_walk(mailbox: Mailbox, settings: SyncSettings, now: datetime) -> WalkPlan:
    until = newest_end(settings, now)
    with first_error():
        async with asyncio.TaskGroup() as tasks:  # for the oldest mail it does not matter what changes meanwhile
            asked = tasks.create_task(mailbox.identity())
            oldest = tasks.create_task(oldest_mail(mailbox, until))
    identity = asked.result()
    granularity = (
        granularity_for(identity.messages_total)
        if settings.granularity == "auto"
        else Granularity(settings.granularity)
    )
    return WalkPlan(identity, granularity, until, plan(oldest.result(), until, granularity))


def newest_end(settings: SyncSettings, now: datetime) -> int:
    """Where the newest slice ends: mail younger than that may still be on its way into the listing."""
    return max(int(now.timestamp() - settings.settle_s), 1)


async def oldest_mail(mailbox: Mailbox, until: int) -> int:
    """A time before which there is no mail, at most two months before the first: twenty empty years are one slice.

    Found by lists of one result, as many at a time as share a request, because no message is fetched before the answer:
    twenty find the month among fifty years in two round trips, where halves would take nine. A mistake here costs calls
    but loses no mail: the first slice begins at zero in any case.
    """
    empty, full = 0, until
    parts = max(mailbox.listings_at_once, _FEWEST_PARTS)
    instants = [*_between(empty, full, parts), until]
    while instants:
        for instant, has_mail in zip(instants, await _have_mail_before(mailbox, instants), strict=True):
            if has_mail:
                full = instant
                break
            empty = instant
        instants = _between(empty, full, parts)
    return empty


def _between(empty: int, full: int, parts: int) -> list[int]:
    """Instants that cut the time between into equal parts; none if it is short enough."""
    if full - empty <= _CLOSE_ENOUGH_S:
        return []
    cuts = (empty + (full - empty) * number // parts for number in range(1, parts))
    return [cut for cut in cuts if cut >= EARLIEST_CUT]


async def _have_mail_before(mailbox: Mailbox, instants: Sequence[int]) -> list[bool]:
    with first_error():
        async with asyncio.TaskGroup() as tasks:
            asked = [tasks.create_task(_has_mail_before(mailbox, instant)) for instant in instants]
    return [each.result() for each in asked]


async def _has_mail_before(mailbox: Mailbox, instant: int) -> bool:
    async for page in mailbox.list(Span(0, instant), page_size=1, max_age_s=LISTED_WITHIN_S):
        if page.ids:
            return True
    return False


class TooDeep(Exception):
    """The slice has more pages than one listing should take."""

    def __init__(self, halves: tuple[Slice, Slice]) -> None:
        super().__init__("the slice is listed in halves")
        self.halves = halves


async def ids_of(
    mailbox: Mailbox, part: Slice, settings: SyncSettings, *, may_split: bool = True
) -> AsyncIterator[list[str]]:
    """The ids of a slice, in portions.

    Raises TooDeep, before any portion, for a slice that has too many pages and can be cut. One that cannot or may not
    be cut is given page by page, and listed to its end, however long that is.
    """
    halves = split(part) if may_split else None
    listed: list[str] = []
    pages = 0
    async for page in mailbox.list(part, page_size=settings.page_size, max_age_s=LISTED_WITHIN_S):
        pages += 1
        listed += page.ids
        if pages == settings.max_pages_per_slice and not page.is_last and halves:
            raise TooDeep(halves)
        if halves is None and listed:
            yield listed
            listed = []
    if listed:
        yield listed

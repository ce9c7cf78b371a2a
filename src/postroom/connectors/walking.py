"""Walks back through a mailbox, newest first, between two days and from any position, without gaps or repeats; and the
first use of it, filling the index of sent mail (PQ-3).

A position is the time of receipt and the message id. It keeps its meaning whatever the order of listings and
whatever arrives in the meantime: new mail lies before it and is live mail.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from postroom.connectors import source_mail
from postroom.connectors.priority import SentIndex, message_id_of
from postroom.connectors.state_files import read_json, write_json
from postroom.connectors.switchboard_client import SwitchboardClient
from postroom.domain.clock import Clock
from postroom.domain.errors import BadInput, PostroomError
from postroom.mail.sender_kinds import KIND_HEADERS
from postroom.mailboxes.protocol import Detail, ListedPage, Mailbox, Span
from postroom.mailboxes.reader import sort_results

SLICE_MESSAGES = 100
"""How many messages are read together, and read again after a restart in between."""
_DAY_S = 86_400
_FIRST_SLICE_S = 7 * _DAY_S
_WIDEST_SLICE_S = 3_660 * _DAY_S
_LEFT_OUT = {
    "drafts": (source_mail.DRAFT, "-in:drafts"),
    "sent": (source_mail.SENT, "-in:sent"),
    "spam": (source_mail.SPAM, ""),
    "trash": (source_mail.TRASH, ""),
}
HEADERS = KIND_HEADERS
"""What priority and the envelope look at."""


@dataclass(frozen=True, slots=True)
class WalkWindow:
    """Both days included, in UTC; in seconds since 1970, half-open."""

    start: int
    end: int

    @classmethod
    def of(cls, first: date, last: date) -> WalkWindow:
        if first > last:
            raise BadInput("date_from", f"{first} is after date_to, {last}")
        return cls(_seconds(first), _seconds(last) + _DAY_S)

    def holds(self, mail: source_mail.SourceMail) -> bool:
        return self.start * 1_000 <= mail.received_ms < self.end * 1_000


@dataclass(frozen=True, slots=True)
class WalkScope:
    """What a walk looks for."""

    window: WalkWindow
    query: str = ""
    """In Gmail's search language; empty: everything."""
    includes: frozenset[str] = frozenset()
    """Of `drafts`, `sent`, `spam`, `trash`, those that are wanted."""

    def admits(self, mail: source_mail.SourceMail) -> bool:
        unwanted = {label for name, (label, _) in _LEFT_OUT.items() if name not in self.includes}
        return self.window.holds(mail) and mail.label_ids.isdisjoint(unwanted | {source_mail.CHAT})

    @property
    def source_query(self) -> str:
        """For the source; it may list more than is wanted, and `admits` decides."""
        left_out = [words for name, (_, words) in _LEFT_OUT.items() if words and name not in self.includes]
        return " ".join([*left_out, *([f"({self.query})"] if self.query else [])])

    @property
    def reaches_into_spam_and_trash(self) -> bool:
        return bool(self.includes & {"spam", "trash"})


@dataclass(frozen=True, slots=True)
class WalkBatch:
    """A part of the walk: its messages newest first, those that could not be read, and how far back it reaches."""

    mails: list[source_mail.SourceMail]
    failures: dict[str, PostroomError]
    reached: source_mail.Position
    """Everything at or after this place is among them, or was before."""


@dataclass(frozen=True)
class MailboxWalk:
    """From the source: ids by slices of time that grow and shrink with what they hold, then headers."""

    mailbox: Mailbox
    scope: WalkScope

    async def stretches(self, place: source_mail.Position | None) -> AsyncIterator[WalkBatch]:
        end = self.scope.window.end if place is None else min(self.scope.window.end, place[0] // 1_000 + 1)
        width = _FIRST_SLICE_S
        while end > self.scope.window.start:
            start = max(self.scope.window.start, end - width)
            ids, start = await self._listed(start, end)
            yield await self._read(ids, start, end, place)
            width = _next_width(end - start, len(ids))
            end = start

    async def _listed(self, start: int, end: int) -> tuple[list[str], int]:
        """The ids from `start` on, or from a later one that leaves few enough."""
        while True:
            ids: list[str] = []
            fits = True
            async for page in self._pages(start, end):
                ids += page.ids
                fits = page.is_last or end - start <= 1
                if not fits:
                    break
            if fits:
                return list(dict.fromkeys(ids)), start
            start = end - max(1, (end - start) // 4)

    def _pages(self, start: int, end: int) -> AsyncIterator[ListedPage]:
        """A second more than wanted, to be safe at the edges; `_read` decides."""
        return self.mailbox.list(
            Span(start, end + 1),
            query=self.scope.source_query,
            everywhere=self.scope.reaches_into_spam_and_trash,
            page_size=SLICE_MESSAGES,
        )

    async def _read(self, ids: list[str], start: int, end: int, place: source_mail.Position | None) -> WalkBatch:
        found = sort_results(await self.mailbox.fetch(ids, Detail.HEADERS))
        mails = [source_mail.from_mailbox(message) for message in found.got]
        inside = [mail for mail in mails if start * 1_000 <= mail.received_ms < end * 1_000]
        wanted = [mail for mail in inside if self.scope.admits(mail) and _is_beyond(mail, place)]
        return WalkBatch(source_mail.newest_first(wanted), found.failed, (start * 1_000, ""))


@dataclass(frozen=True)
class ArchiveWalk:
    """From the archive, where it holds all of the window: nothing is asked of the source."""

    switchboard: SwitchboardClient
    scope: WalkScope
    headers: Collection[str] = HEADERS

    async def stretches(self, place: source_mail.Position | None) -> AsyncIterator[WalkBatch]:
        first = _day(self.scope.window.start)
        last_moment = self.scope.window.end - 1 if place is None else min(self.scope.window.end - 1, place[0] // 1_000)
        cursor: str | None = None
        held: list[source_mail.SourceMail] = []
        while last_moment >= self.scope.window.start:
            page = await self.switchboard.archive_range(first, _day(last_moment), cursor, SLICE_MESSAGES, self.headers)
            held += [source_mail.from_archive(mail) for mail in page.messages if not mail.deleted_at_source]
            cursor = page.cursor
            ready, held = _cut(held, whole=cursor is None)
            wanted = [mail for mail in ready if self.scope.admits(mail) and _is_beyond(mail, place)]
            reached = ready[-1].position if ready and cursor else (self.scope.window.start * 1_000, "")
            if ready or cursor is None:
                yield WalkBatch(source_mail.newest_first(wanted), {}, reached)
            if cursor is None:
                return

    async def is_complete(self) -> bool:
        """Whether the archive says that it holds everything of these days."""
        window = self.scope.window
        page = await self.switchboard.archive_range(_day(window.start), _day(window.end - 1), None, 1, ("From",))
        return page.complete


def _cut(
    mails: list[source_mail.SourceMail], *, whole: bool
) -> tuple[list[source_mail.SourceMail], list[source_mail.SourceMail]]:
    """Messages of one moment stay together: the page may have ended in their midst."""
    if whole or not mails:
        return mails, []
    last = mails[-1].received_ms
    return [mail for mail in mails if mail.received_ms != last], [mail for mail in mails if mail.received_ms == last]


def _is_beyond(mail: source_mail.SourceMail, place: source_mail.Position | None) -> bool:
    return place is None or mail.position < place


def _next_width(width: int, found: int) -> int:
    if found < SLICE_MESSAGES // 4:
        return min(width * 4, _WIDEST_SLICE_S)
    return width if found < SLICE_MESSAGES * 3 // 4 else max(1, width // 2)


def _seconds(day: date) -> int:
    return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp())


def _day(seconds: int) -> date:
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=max(0, seconds))).date()


SENT_FILE = "sent.json"
_AT_ONCE = 200


class SentFilling:
    def __init__(self, mailbox: Mailbox, sent: SentIndex, folder: Path, clock: Clock, days: int) -> None:
        self._mailbox = mailbox
        self._sent = sent
        self._path = folder / SENT_FILE
        self._clock = clock
        self._days = days
        self._place, self.is_done = _read_progress(self._path)

    async def run(self, most: int = _AT_ONCE) -> bool:
        """Read some more; True once all that is wanted has been read."""
        if self.is_done:
            return True
        today = self._clock.now().date()
        window = WalkWindow.of(today - timedelta(days=self._days), today + timedelta(days=1))
        walk = MailboxWalk(self._mailbox, WalkScope(window, "in:sent", frozenset({"sent"})))
        read = 0
        async for stretch in walk.stretches(self._place):
            if stretch.failures:
                raise next(iter(stretch.failures.values()))
            await self._sent.add(found for mail in stretch.mails if (found := message_id_of(mail.headers)))
            self._reach(stretch.reached, done=False)
            read += len(stretch.mails)
            if read >= most:
                return False
        self._reach(self._place, done=True)
        return True

    def _reach(self, place: source_mail.Position | None, *, done: bool) -> None:
        self._place, self.is_done = place, done
        write_json(self._path, {"version": 1, "place": place, "done": done})


def _read_progress(path: Path) -> tuple[source_mail.Position | None, bool]:
    held = read_json(path)
    try:
        if held["version"] != 1:
            return None, False
        place = held["place"]
        return (None if place is None else (int(place[0]), str(place[1]))), bool(held["done"])
    except (KeyError, TypeError, ValueError, IndexError):
        return None, False

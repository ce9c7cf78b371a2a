"""Walks one endpoint: reads page after page and passes on what it finds, batch by batch.

Sentinel and backfill both walk this way; the `WalkLog` of a walk decides what becomes of the items. A walk with a
`ListMemory` asks only whether a page has changed since it was last read.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Protocol

from postroom.domain.clock import Backoff, Clock
from postroom.domain.errors import PostroomError, Retryable
from postroom.telemetry import logs
from postroom.web.extraction.web_reader import WebReader
from postroom.web.fetching.interface import Fetched, Fetching, Missing, NotYet, Purpose, UnknownHost, Validators
from postroom.web.strategies import FoundPage, ListReading, WalkPlace, WalkStrategy

log = logs.get(__name__)

BATCH = 50
"""Items that are recorded together; the progress in the database is never further behind than this."""

_MOST_REPORTED = 10
_ATTEMPTS = 3
_BACKOFF = Backoff(30, 600, longest_asked_s=600, asked_may_shorten=True)
PATIENCE = timedelta(minutes=10)
"""How long a walk waits for its turn at a domain. A site may ask for a pause of a day; no walk waits that long and
blocks others."""
UNSAID = timedelta(seconds=15)
"""A longer wait is reported."""


@dataclass(frozen=True, slots=True)
class WalkNote:
    """How many items of a batch were new to the walk, and if it must stop, why."""

    fresh: int
    stop: str | None = None
    is_partial: bool = False
    """Not everything on the page was taken, so it has to be read again in full."""


@dataclass(frozen=True, slots=True)
class WalkEnded:
    """Where a walk ended, and why, unless it reached the end of the list."""

    place: WalkPlace
    reason: str | None = None


class WalkLog(Protocol):
    """Records what a walk found and how far it is, in one transaction each time."""

    async def found(self, place: WalkPlace, items: list[FoundPage]) -> WalkNote:
        """Record items; the `url` of `place` is the last of them."""

    async def reached(self, place: WalkPlace) -> WalkNote:
        """Record that all pages before this place are done."""

    async def trouble(self, place: WalkPlace, url: str, problem: str, times: int = 1) -> None:
        """Record a problem that occurred so many times; the walk goes on from the place."""

    async def waiting(self, url: str, reason: str, seconds: float) -> None:
        """Record that the walk pauses for so long before it asks for this page again."""


@dataclass(frozen=True, slots=True)
class RememberedPage:
    """A page of a list as it was last read."""

    validators: Validators
    following: tuple[str, ...] = ()
    is_done: bool = False
    """A walk that goes on with an unfinished one has no need of it."""


class ListMemory(Protocol):
    """The pages of lists that earlier walks have read."""

    async def recall(self, url: str) -> RememberedPage | None: ...

    async def keep(self, url: str, page: Fetched, reading: ListReading) -> None:
        """Remember a page of which everything was taken."""


class NoMemory:
    """Reads every page anew: a backfill is asked for everything."""

    async def recall(self, url: str) -> RememberedPage | None:
        return None

    async def keep(self, url: str, page: Fetched, reading: ListReading) -> None:
        return


class WalkBroken(Retryable):
    """A page that the rest of the walk depends on could not be fetched; the run can be resumed there."""


@dataclass(frozen=True, slots=True)
class _PageRead:
    reading: ListReading
    page: Fetched | None = None
    """None where nothing was fetched, or the page is not there."""


@dataclass(frozen=True)
class Walker:
    fetching: Fetching
    clock: Clock
    max_pages: int
    pages_are_trouble: bool = True
    """Whether more pages than that are an error; the sentinel goes on with them the next time."""
    reader: WebReader = field(default_factory=WebReader)
    memory: ListMemory = field(default_factory=NoMemory)

    async def walk(self, strategy: WalkStrategy, place: WalkPlace, log_: WalkLog) -> WalkEnded:
        """Walk from the place to the end, a cap, or the limit of pages."""
        pages = 0
        while (url := strategy.page_url(place)) is not None:
            remembered = await self.memory.recall(url)
            if remembered is not None and remembered.is_done and pages:
                place = strategy.onward(place, ListReading(following=remembered.following), fresh=1)
                continue
            if pages >= self.max_pages:
                return await self._too_many_pages(place, url, log_)
            pages += 1
            read = await self._read(strategy, place, url, remembered, log_)
            if read is None:
                place = self._passed_over(strategy, place, url)
                noted = await log_.reached(place)
            else:
                noted, place = await self._take(strategy, place, url, read, log_)
            if noted.stop is not None:
                return WalkEnded(place, noted.stop)
        return WalkEnded(place)

    async def _too_many_pages(self, place: WalkPlace, url: str, log_: WalkLog) -> WalkEnded:
        reason = f"stopped after {self.max_pages:,} pages, and the list goes on"
        if self.pages_are_trouble:
            await log_.trouble(place, url, reason)
        return WalkEnded(place, reason)

    async def read_again(self, strategy: WalkStrategy, url: str, log_: WalkLog) -> None:
        """Read one page of a list that an earlier walk has read, and no further. Raises what fetching it raises."""
        remembered = await self.memory.recall(url)
        place = WalkPlace(pending=(url,))
        page = await self._get(url, remembered, log_)
        following = remembered.following if remembered else ()
        reading = ListReading(following=following)
        if not page.not_modified:
            reading = replace(await self.reader.read_list(strategy, place, page), following=following)
        await self._found(place, url, reading, log_)
        if not (await log_.reached(place)).is_partial:
            await self.memory.keep(url, page, reading)

    async def _read(
        self, strategy: WalkStrategy, place: WalkPlace, url: str, remembered: RememberedPage | None, log_: WalkLog
    ) -> _PageRead | None:
        """None for a page that could not be fetched now but may be later."""
        if (given := strategy.given()) is not None:
            return _PageRead(given)
        try:
            page = await self._get(url, remembered, log_)
            if page.not_modified and remembered is not None:
                return _PageRead(ListReading(following=remembered.following), page)
            return _PageRead(await self.reader.read_list(strategy, place, page), page)
        except PostroomError as error:
            if isinstance(error, Missing) and strategy.may_end_at(place):
                return _PageRead(ListReading())
            await log_.trouble(place, url, error.message)
            if strategy.hangs_on(place):
                raise WalkBroken(f"{url} cannot be read: {error.message}") from error
            return None if isinstance(error, Retryable) else _PageRead(ListReading())

    def _passed_over(self, strategy: WalkStrategy, place: WalkPlace, url: str) -> WalkPlace:
        onward = strategy.onward(place, ListReading(), fresh=1)
        return replace(onward, again=(*place.again, url))

    async def _get(self, url: str, remembered: RememberedPage | None, log_: WalkLog) -> Fetched:
        """The page, after waits of any kind; a wait that takes long is said before it begins."""
        attempt, waited_s = 1, 0.0
        conditional = remembered.validators if remembered else None
        while True:
            began = self.clock.monotonic()
            try:
                return await self.fetching.get(url, purpose=Purpose.DISCOVERY, conditional=conditional, patience=UNSAID)
            except UnknownHost:
                raise
            except NotYet as error:
                reason, pause_s = error.message, (error.retry_after or UNSAID).total_seconds()
                waited_s += self.clock.monotonic() - began + pause_s
                if waited_s > PATIENCE.total_seconds():
                    raise
            except Retryable as error:
                if attempt >= _ATTEMPTS:
                    raise
                reason, pause_s = error.message, _BACKOFF.delay_s(attempt, error.retry_after)
                attempt += 1
            log.info("web.page_again", url=url, in_s=pause_s, error=reason)
            if pause_s >= UNSAID.total_seconds():
                await log_.waiting(url, reason, pause_s)
            await self.clock.sleep(pause_s)

    async def _report(self, problems: tuple[str, ...], place: WalkPlace, url: str, log_: WalkLog) -> None:
        """A page can have tens of thousands of problems: the first are recorded, the rest are counted."""
        for problem in problems[:_MOST_REPORTED]:
            await log_.trouble(place, url, problem)
        if (rest := len(problems) - _MOST_REPORTED) > 0:
            await log_.trouble(place, url, f"{rest:,} more like these", rest)

    async def _take(
        self, strategy: WalkStrategy, place: WalkPlace, url: str, read: _PageRead, log_: WalkLog
    ) -> tuple[WalkNote, WalkPlace]:
        noted, place = await self._found(place, url, read.reading, log_)
        if noted.stop is not None:
            return noted, place
        place = strategy.onward(place, read.reading, noted.fresh)
        reached = await log_.reached(place)
        if read.page is not None and not reached.is_partial:
            await self.memory.keep(url, read.page, read.reading)
        return reached, place

    async def _found(
        self, place: WalkPlace, url: str, reading: ListReading, log_: WalkLog
    ) -> tuple[WalkNote, WalkPlace]:
        """Pass on what a page lists; the note is of all of it, or of the batch at which the walk must stop."""
        await self._report(reading.problems, place, url, log_)
        fresh = 0
        for batch in _batches(_after(reading.found, place.url)):
            place = replace(place, url=batch[-1].url)
            noted = await log_.found(place, batch)
            fresh += noted.fresh
            if noted.stop is not None:
                return noted, place
        return WalkNote(fresh), place


def _after(found: tuple[FoundPage, ...], url: str | None) -> tuple[FoundPage, ...]:
    """What a resumed walk still has to take from a page; all of it if the last item is no longer there."""
    places = [number for number, item in enumerate(found) if item.url == url]
    return found[places[0] + 1 :] if places else found


def _batches(found: tuple[FoundPage, ...]) -> list[list[FoundPage]]:
    return [list(found[start : start + BATCH]) for start in range(0, len(found), BATCH)]

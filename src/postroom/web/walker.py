"""Walks one endpoint: reads page after page and hands on what it finds, batch by batch.

Both lanes walk this way; the `WalkLog` that a walk writes into decides what becomes of the items.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Protocol

from postroom.domain.backoff import Backoff, retry
from postroom.domain.clock import Clock
from postroom.domain.errors import PostroomError, Retryable
from postroom.telemetry import logs
from postroom.web.extraction.web_reader import WebReader
from postroom.web.fetching.interface import Fetched, Fetching, Missing, Purpose
from postroom.web.strategies import FoundPage, ListReading, WalkPlace, WalkStrategy

log = logs.get(__name__)

BATCH = 50
"""Items that are written down together; the progress in the database is never further behind than this."""

_MOST_REPORTED = 10
_ATTEMPTS = 3
_BACKOFF = Backoff(30, 600, longest_asked_s=600, asked_may_shorten=True)
PATIENCE = timedelta(minutes=10)
"""How long a walk waits for its turn at a domain. A site may ask to be left alone for a day: no walk stands there, and
keeps others from theirs, for so long."""


@dataclass(frozen=True, slots=True)
class WalkNote:
    """What became of a batch: so many items were new to the walk, and why it must not go on, if so."""

    fresh: int
    stop: str | None = None


@dataclass(frozen=True, slots=True)
class WalkEnded:
    """Where a walk ended, and why there if not because that is the end of the way."""

    place: WalkPlace
    reason: str | None = None


class WalkLog(Protocol):
    """Where a walk writes down what it found and how far it is, in one transaction each time."""

    async def found(self, place: WalkPlace, items: list[FoundPage]) -> WalkNote:
        """These items are at this place, whose `url` is the last of them."""

    async def reached(self, place: WalkPlace) -> WalkNote:
        """All pages before this place are done."""

    async def trouble(self, place: WalkPlace, url: str, problem: str, times: int = 1) -> None:
        """This went wrong, so many times, and the walk goes on from the place."""


class WalkBroken(Retryable):
    """A page that the rest of the walk hangs on cannot be had; the run can be resumed there."""


@dataclass(frozen=True)
class Walker:
    fetching: Fetching
    clock: Clock
    max_pages: int
    pages_are_trouble: bool = True
    """Whether more pages than that are worth an error: the sentinel means to read the first few only."""
    reader: WebReader = field(default_factory=WebReader)

    async def walk(self, route: WalkStrategy, place: WalkPlace, log_: WalkLog) -> WalkEnded:
        """From the place to the end of the way, a cap, or the limit of pages."""
        first = place.page
        while (url := route.page_url(place)) is not None:
            if place.page - first >= self.max_pages:
                return await self._too_many_pages(place, url, log_)
            reading = await self._read(route, place, url, log_)
            if reading is None:
                place = self._passed_over(route, place, url)
                noted = await log_.reached(place)
            else:
                noted, place = await self._take(route, place, reading, log_)
            if noted.stop is not None:
                return WalkEnded(place, noted.stop)
        return WalkEnded(place)

    async def _too_many_pages(self, place: WalkPlace, url: str, log_: WalkLog) -> WalkEnded:
        reason = f"stopped after {self.max_pages:,} pages, and the list goes on"
        if self.pages_are_trouble:
            await log_.trouble(place, url, reason)
        return WalkEnded(place, reason)

    async def _read(self, route: WalkStrategy, place: WalkPlace, url: str, log_: WalkLog) -> ListReading | None:
        """None for a page that cannot be had now, but may be later."""
        try:
            page = await self._get(url)
            return await self.reader.read_list(route, place, page)
        except PostroomError as error:
            if isinstance(error, Missing) and route.may_end_at(place):
                return ListReading()
            await log_.trouble(place, url, error.message)
            if route.hangs_on(place):
                raise WalkBroken(f"{url} cannot be read: {error.message}") from error
            return None if isinstance(error, Retryable) else ListReading()

    def _passed_over(self, route: WalkStrategy, place: WalkPlace, url: str) -> WalkPlace:
        onward = route.onward(place, ListReading(), fresh=1)
        return replace(onward, again=(*place.again, url))

    async def _get(self, url: str) -> Fetched:
        def on_wait(error: Retryable, delay_s: float) -> None:
            log.info("web.page_again", url=url, in_s=delay_s, error=error.message)

        def get() -> Awaitable[Fetched]:
            return self.fetching.get(url, purpose=Purpose.DISCOVERY, patience=PATIENCE)

        return await retry(get, _BACKOFF, self.clock, attempts=_ATTEMPTS, on_wait=on_wait)

    async def _tell(self, problems: tuple[str, ...], place: WalkPlace, url: str, log_: WalkLog) -> None:
        """A page can be wrong in fifty thousand places: the first are listed, the rest are counted."""
        for problem in problems[:_MOST_REPORTED]:
            await log_.trouble(place, url, problem)
        if (rest := len(problems) - _MOST_REPORTED) > 0:
            await log_.trouble(place, url, f"{rest:,} more like these", rest)

    async def _take(
        self, route: WalkStrategy, place: WalkPlace, reading: ListReading, log_: WalkLog
    ) -> tuple[WalkNote, WalkPlace]:
        await self._tell(reading.problems, place, route.page_url(place) or "", log_)
        fresh = 0
        for batch in _batches(_after(reading.found, place.url)):
            place = replace(place, url=batch[-1].url)
            noted = await log_.found(place, batch)
            fresh += noted.fresh
            if noted.stop is not None:
                return noted, place
        place = route.onward(place, reading, fresh)
        return await log_.reached(place), place


def _after(found: tuple[FoundPage, ...], url: str | None) -> tuple[FoundPage, ...]:
    """What a resumed walk has still to take from a page; all of it where the page has changed meanwhile."""
    places = [number for number, item in enumerate(found) if item.url == url]
    return found[places[0] + 1 :] if places else found


def _batches(found: tuple[FoundPage, ...]) -> list[list[FoundPage]]:
    return [list(found[start : start + BATCH]) for start in range(0, len(found), BATCH)]

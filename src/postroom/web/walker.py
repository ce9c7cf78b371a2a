"""Walks one endpoint: reads page after page and passes on what it finds, batch by batch.

Sentinel and backfill both walk this way; the `WalkLog` of a walk decides what becomes of the items.
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
"""Items that are recorded together; the progress in the database is never further behind than this."""

_MOST_REPORTED = 10
_ATTEMPTS = 3
_BACKOFF = Backoff(30, 600, longest_asked_s=600, asked_may_shorten=True)
PATIENCE = timedelta(minutes=10)
"""How long a walk waits for its turn at a domain. A site may ask for a pause of a day; no walk waits that long and
blocks others."""


@dataclass(frozen=True, slots=True)
class WalkNote:
    """How many items of a batch were new to the walk, and if it must stop, why."""

    fresh: int
    stop: str | None = None


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


class WalkBroken(Retryable):
    """A page that the rest of the walk depends on could not be fetched; the run can be resumed there."""


@dataclass(frozen=True)
class Walker:
    fetching: Fetching
    clock: Clock
    max_pages: int
    pages_are_trouble: bool = True
    """Whether more pages than that are an error; the sentinel reads the first few on purpose."""
    reader: WebReader = field(default_factory=WebReader)

    async def walk(self, strategy: WalkStrategy, place: WalkPlace, log_: WalkLog) -> WalkEnded:
        """Walk from the place to the end, a cap, or the limit of pages."""
        first = place.page
        while (url := strategy.page_url(place)) is not None:
            if place.page - first >= self.max_pages:
                return await self._too_many_pages(place, url, log_)
            reading = await self._read(strategy, place, url, log_)
            if reading is None:
                place = self._passed_over(strategy, place, url)
                noted = await log_.reached(place)
            else:
                noted, place = await self._take(strategy, place, reading, log_)
            if noted.stop is not None:
                return WalkEnded(place, noted.stop)
        return WalkEnded(place)

    async def _too_many_pages(self, place: WalkPlace, url: str, log_: WalkLog) -> WalkEnded:
        reason = f"stopped after {self.max_pages:,} pages, and the list goes on"
        if self.pages_are_trouble:
            await log_.trouble(place, url, reason)
        return WalkEnded(place, reason)

    async def _read(self, strategy: WalkStrategy, place: WalkPlace, url: str, log_: WalkLog) -> ListReading | None:
        """None for a page that could not be fetched now but may be later."""
        try:
            page = await self._get(url)
            return await self.reader.read_list(strategy, place, page)
        except PostroomError as error:
            if isinstance(error, Missing) and strategy.may_end_at(place):
                return ListReading()
            await log_.trouble(place, url, error.message)
            if strategy.hangs_on(place):
                raise WalkBroken(f"{url} cannot be read: {error.message}") from error
            return None if isinstance(error, Retryable) else ListReading()

    def _passed_over(self, strategy: WalkStrategy, place: WalkPlace, url: str) -> WalkPlace:
        onward = strategy.onward(place, ListReading(), fresh=1)
        return replace(onward, again=(*place.again, url))

    async def _get(self, url: str) -> Fetched:
        def on_wait(error: Retryable, delay_s: float) -> None:
            log.info("web.page_again", url=url, in_s=delay_s, error=error.message)

        def get() -> Awaitable[Fetched]:
            return self.fetching.get(url, purpose=Purpose.DISCOVERY, patience=PATIENCE)

        return await retry(get, _BACKOFF, self.clock, attempts=_ATTEMPTS, on_wait=on_wait)

    async def _report(self, problems: tuple[str, ...], place: WalkPlace, url: str, log_: WalkLog) -> None:
        """A page can have tens of thousands of problems: the first are recorded, the rest are counted."""
        for problem in problems[:_MOST_REPORTED]:
            await log_.trouble(place, url, problem)
        if (rest := len(problems) - _MOST_REPORTED) > 0:
            await log_.trouble(place, url, f"{rest:,} more like these", rest)

    async def _take(
        self, strategy: WalkStrategy, place: WalkPlace, reading: ListReading, log_: WalkLog
    ) -> tuple[WalkNote, WalkPlace]:
        await self._report(reading.problems, place, strategy.page_url(place) or "", log_)
        fresh = 0
        for batch in _batches(_after(reading.found, place.url)):
            place = replace(place, url=batch[-1].url)
            noted = await log_.found(place, batch)
            fresh += noted.fresh
            if noted.stop is not None:
                return noted, place
        place = strategy.onward(place, reading, fresh)
        return await log_.reached(place), place


def _after(found: tuple[FoundPage, ...], url: str | None) -> tuple[FoundPage, ...]:
    """What a resumed walk still has to take from a page; all of it if the last item is no longer there."""
    places = [number for number, item in enumerate(found) if item.url == url]
    return found[places[0] + 1 :] if places else found


def _batches(found: tuple[FoundPage, ...]) -> list[list[FoundPage]]:
    return [list(found[start : start + BATCH]) for start in range(0, len(found), BATCH)]

"""The daily look at every source for new pages. Live work: it needs no run and obeys no kill switch, but writes the
same items and jobs as a backfill.

A look finds everything that a source lists and that was not listed when it was last looked at, however long ago that
was. It takes no more new pages than a backfill run may, of all sources and of each; what is beyond a cap is reported,
and the next look goes on with it. Known pages are checked again when they are due (`revisits.py`). An endpoint that
cannot be read does not stop the others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum, auto

from postroom.db import Tx
from postroom.domain.errors import PostroomError
from postroom.domain.jobs import WEB_SENTINEL, sentinel_schedule
from postroom.queue import JobQueue, NewJob
from postroom.settings import WebSettings
from postroom.telemetry import logs
from postroom.web import discovery, revisits
from postroom.web.discovery import Discovered, DiscoveryMethod, Finder, FollowState
from postroom.web.fetching.interface import Fetching, Missing
from postroom.web.listings import DateWindow
from postroom.web.revisits import DuePages, Intervals, ListPages
from postroom.web.sources import ConfiguredSources, Endpoint, EndpointMode, WebSource
from postroom.web.strategies import FoundPage, WalkPlace, WalkStrategy, strategy_of
from postroom.web.walker import NoMemory, Walker, WalkNote

log = logs.get(__name__)

_MOST_PROBLEMS = 20
_MOST_LISTS_AGAIN = 20
"""Older pages of an archive or list that one look reads again."""

_SECOND = 2
_NEVER = datetime.min.replace(tzinfo=UTC)

OnWait = Callable[[str, str, float], None]
"""Called before a long wait: the page, the reason, and the seconds."""


@dataclass
class SentinelReport:
    """What a look at one endpoint did."""

    source: str
    endpoint: str
    found: int = 0
    """Pages that the source lists now, or that changed lists list."""
    new: int = 0
    known: int = 0
    older: int = 0
    """Pages from before the source was followed; a backfill brings them."""
    changed: int = 0
    """Known pages that have changed according to the site; they are checked again."""
    due: int = 0
    """Known pages that are checked again because it is their turn."""
    not_reached: int = 0
    """New pages beyond the cap; the next look goes on with them."""
    due_left: int = 0
    """Pages that are due as well, and left to the next look."""
    lists_left: int = 0
    """Pages of lists that were not read; the next look goes on with them."""
    problems: list[str] = field(default_factory=list)

    def trouble(self, problem: str) -> None:
        if len(self.problems) < _MOST_PROBLEMS:
            self.problems.append(problem[:500])


class _Room:
    """How many new pages a look may still take, of all sources together and of each (INV-5)."""

    def __init__(self, web: WebSettings) -> None:
        self._left = web.max_urls_per_run
        self._most = web.max_urls_per_source
        self._of_source: dict[str, int] = {}
        self.counted: dict[str, set[str]] = defaultdict(set)
        """What a dry run has counted, by source; a look that is none has it in the database."""

    def of(self, source: WebSource) -> int:
        most = min(self._most, source.max_urls or self._most)
        return max(min(self._left, most - self._of_source.get(source.slug, 0)), 0)

    def use(self, source: WebSource, pages: int) -> None:
        self._left -= pages
        self._of_source[source.slug] = self._of_source.get(source.slug, 0) + pages


_NEWEST_FIRST = frozenset({EndpointMode.PAGINATION, EndpointMode.FEED})


class _WalkEnd(Enum):
    COMPLETE = auto()
    FAILED_PAGES = auto()
    """Some lists could not be read now."""
    CAPPED = auto()
    BROKEN = auto()
    """A list on which all others depend could not be read."""


@dataclass(frozen=True, slots=True)
class _Batch:
    """What became of some pages of a list."""

    added: Discovered
    older: int
    changed: int
    left: int
    """New ones beyond the cap."""
    owed: int


class _SentinelLog:
    """The `WalkLog` of a look at one endpoint."""

    def __init__(
        self, sentinel: Sentinel, source: WebSource, endpoint: Endpoint, state: FollowState, room: _Room
    ) -> None:
        self.report = SentinelReport(source.slug, endpoint.name)
        self.is_at_end = False
        """The rest of the list is known."""
        self.is_past_news = endpoint.mode not in _NEWEST_FIRST
        """From here on, what a capped look has read needs no second reading: nothing new has moved it further down."""
        self._sentinel = sentinel
        self._source = source
        self._endpoint = endpoint
        self._state = state
        self._room = room
        self._seen: set[str] = set()
        self._new_here = self._left_here = self._owed_here = 0

    async def found(self, place: WalkPlace, items: list[FoundPage]) -> WalkNote:
        """Past the cap, new pages are only counted, up to the end of the page that lists them."""
        database = self._sentinel.queue.database
        run = database.read if self._sentinel.dry_run else database.write
        batch = await run(lambda tx: self._add(tx, items))
        report, added = self.report, batch.added
        self._room.use(self._source, added.queued)
        report.found += len(items)
        report.new += added.queued
        report.known += added.skipped
        report.older += batch.older
        report.changed += batch.changed
        report.not_reached += batch.left
        self._new_here += added.queued + batch.left
        self._left_here += batch.left
        self._owed_here += batch.owed
        for url, problem in added.problems:
            report.trouble(f"{url}: {problem}")
        return WalkNote(added.queued + batch.owed)

    def _add(self, tx: Tx, items: list[FoundPage]) -> _Batch:
        sentinel, slug, state = self._sentinel, self._source.slug, self._state
        known = discovery.known_urls(tx, slug, self._endpoint.name, [item.url for item in items])
        owed = self._owed(tx, [item.url for item in items])
        again = [item for item in items if item.url in known]
        if sentinel.dry_run:
            known |= self._room.counted[slug]
        unknown = [item for item in items if item.url not in known]
        older = discovery.older_urls(tx, state, unknown)
        new = [item for item in unknown if item.url not in older]
        jobless = discovery.without_job(tx, slug, new)
        taken = discovery.up_to(new, jobless, self._room.of(self._source))
        left, before = len(new) - len(taken), len(items) - len(unknown)
        most = sentinel.web.recheck_pages - self.report.changed
        if sentinel.dry_run:
            self._room.counted[slug].update(item.url for item in taken)
            queued = sum(item.url in jobless for item in taken)
            changed = len(discovery.changed_items(tx, state.endpoint_id, again)[:most])
            return _Batch(Discovered(queued, before + len(taken) - queued), len(older), changed, left, owed)
        now = sentinel.queue.clock.now()
        discovery.note_older(tx, state, unknown)
        added = discovery.add(tx, sentinel.queue, Finder(slug, state.endpoint_id, DiscoveryMethod.SENTINEL), taken, now)
        changed = discovery.verify_changed(tx, sentinel.queue, state.endpoint_id, again, most, now)
        before += added.skipped
        return _Batch(Discovered(added.queued, before, added.problems), len(older), changed, left, owed)

    def _owed(self, tx: Tx, urls: list[str]) -> int:
        """How many of these were found since looks are behind: what is owed comes after them. What stands on an earlier
        page as well, such as the latest headlines beside a list, says nothing."""
        if self._endpoint.mode not in _NEWEST_FIRST or self._state.behind_since is None:
            return 0
        here = [url for url in urls if url not in self._seen]
        self._seen.update(here)
        return discovery.count_found_since(tx, self._state.endpoint_id, here, self._state.behind_since)

    async def reached(self, place: WalkPlace) -> WalkNote:
        new_here, owed_here, is_partial = self._new_here, self._owed_here, self._left_here > 0
        self._new_here = self._left_here = self._owed_here = 0
        self.is_past_news = self.is_past_news or not new_here
        if self._room.of(self._source) == 0:
            return WalkNote(0, f"{self.report.new:,} new pages in one look", is_partial)
        self.is_at_end = self._is_at_end(place, new_here, owed_here)
        return WalkNote(0, "the rest is known" if self.is_at_end else None, is_partial)

    def _is_at_end(self, place: WalkPlace, new_here: int, owed_here: int) -> bool:
        """Lists and feeds have the newest first: after a page without anything new, the rest is known. The first look
        takes what is current."""
        match self._endpoint.mode:
            case EndpointMode.PAGINATION:
                least = self._sentinel.web.sentinel_pages
            case EndpointMode.FEED:
                least = 1
            case EndpointMode.SITEMAP | EndpointMode.ARCHIVE | EndpointMode.PAGE:
                return False
        if self._state.behind_since is not None and (owed_here or place.page == _SECOND):
            return False  # what is owed comes after this page
        is_first_look = self._state.sentinel_at is None
        return place.page > least and (is_first_look or not new_here)

    async def trouble(self, place: WalkPlace, url: str, problem: str, times: int = 1) -> None:
        log.warning("sentinel.trouble", source=self._source.slug, endpoint=self._endpoint.name, problem=problem)
        self.report.trouble(problem)

    async def waiting(self, url: str, reason: str, seconds: float) -> None:
        self._sentinel.on_wait(url, reason, seconds)


@dataclass(frozen=True)
class Sentinel:
    queue: JobQueue
    sources: ConfiguredSources
    fetching: Fetching
    web: WebSettings
    dry_run: bool = False
    on_wait: OnWait = lambda url, reason, seconds: None

    async def look(self, slugs: list[str] | None = None) -> list[SentinelReport]:
        """Look at every endpoint with `sentinel` set, of these sources or of all that are not paused."""
        if slugs is None:
            chosen = [source for source in self.sources if source.slug not in self.sources.paused]
        else:
            chosen = [self.sources.require_active(slug) for slug in slugs]
        room, served = _Room(self.web), await self.queue.database.read(discovery.last_found)
        # The source that has had nothing for the longest time comes first: a cap must not keep the same ones waiting.
        in_turn = sorted(chosen, key=lambda source: served.get(source.slug, _NEVER))
        reports = {
            source.slug: [await self._look(source, each, room) for each in source.endpoint if each.sentinel]
            for source in in_turn
        }
        return [report for source in chosen for report in reports[source.slug]]

    async def _look(self, source: WebSource, endpoint: Endpoint, room: _Room) -> SentinelReport:
        began = self.queue.clock.now()
        state = await self._state(source, endpoint, began)
        log_ = _SentinelLog(self, source, endpoint, state, room)
        strategy = self._strategy(source, endpoint, state, began)
        if self.dry_run:
            await self._walk(strategy, NoMemory(), log_)
            due = await self.queue.database.read(lambda tx: self._due(tx, state, log_.report, began))
        else:
            due = await self._look_and_record(strategy, log_, state, began)
        log_.report.due, log_.report.due_left = len(due.ids), due.left
        log.info("sentinel.looked", **{**asdict(log_.report), "problems": len(log_.report.problems)})
        return log_.report

    def _due(self, tx: Tx, state: FollowState, report: SentinelReport, began: datetime) -> DuePages:
        return revisits.due_pages(tx, state.endpoint_id, began, max(self.web.recheck_pages - report.changed, 0))

    async def _state(self, source: WebSource, endpoint: Endpoint, now: datetime) -> FollowState:
        overlap, database = timedelta(days=self.web.sentinel_days), self.queue.database
        if self.dry_run:
            return await database.read(lambda tx: discovery.read_state(tx, source, endpoint, overlap, now))
        return await database.write(lambda tx: discovery.begin_look(tx, source, endpoint, overlap, now))

    async def _look_and_record(
        self, strategy: WalkStrategy, log_: _SentinelLog, state: FollowState, began: datetime
    ) -> DuePages:
        queue = self.queue
        lists = ListPages(
            queue.database,
            queue.clock,
            Intervals.of(self.web),
            state.endpoint_id,
            state.behind_since,
            lambda: log_.is_past_news,
        )
        ended = await self._walk(strategy, lists, log_)
        if ended is _WalkEnd.COMPLETE:
            await self._read_lists_again(strategy, lists, log_, began)
        behind = {_WalkEnd.CAPPED: state.behind_since or began, _WalkEnd.BROKEN: state.behind_since}.get(ended)

        def end(tx: Tx) -> DuePages:
            discovery.end_look(tx, state, began, complete=ended is _WalkEnd.COMPLETE, behind_since=behind)
            due = self._due(tx, state, log_.report, began)
            queue.add(tx, *(discovery.verify_job(item_id) for item_id in due.ids))
            return due

        return await queue.database.write(end)

    async def _walk(self, strategy: WalkStrategy, lists: ListPages | NoMemory, log_: _SentinelLog) -> _WalkEnd:
        try:
            ended = await self._walker(lists).walk(strategy, strategy.start(), log_)
        except PostroomError as error:
            log_.report.trouble(error.message)
            return _WalkEnd.BROKEN
        if not log_.is_at_end and strategy.page_url(ended.place) is not None:
            log_.report.lists_left = max(len(ended.place.pending), 1)
        if log_.report.lists_left or log_.report.not_reached:
            return _WalkEnd.CAPPED
        return _WalkEnd.FAILED_PAGES if ended.place.again else _WalkEnd.COMPLETE

    async def _read_lists_again(
        self, strategy: WalkStrategy, lists: ListPages, log_: _SentinelLog, began: datetime
    ) -> None:
        """Pages of lists that the look had no need of, in case something was added to them later."""
        walker = self._walker(lists)
        for url in await lists.due(began, _MOST_LISTS_AGAIN):
            try:
                await walker.read_again(strategy, url, log_)
            except Missing:
                await lists.forget(url)
            except PostroomError as error:
                log_.report.trouble(f"{url}: {error.message}")
                await lists.postpone(url)

    def _walker(self, memory: ListPages | NoMemory) -> Walker:
        return Walker(self.fetching, self.queue.clock, self.web.max_pages, pages_are_trouble=False, memory=memory)

    def _strategy(self, source: WebSource, endpoint: Endpoint, state: FollowState, now: datetime) -> WalkStrategy:
        """Dates choose the pages of an archive; of other lists everything is read, since dates can be wrong."""
        window = DateWindow()
        if endpoint.mode is EndpointMode.ARCHIVE:
            window = DateWindow((state.sentinel_at or now) - timedelta(days=self.web.sentinel_days))
        return strategy_of(source, endpoint, window, now.date(), self.web.max_page_bytes)


def due_job(slugs: list[str]) -> NewJob:
    """A look at sources that do not wait for the sentinel's time."""
    return NewJob(WEB_SENTINEL.name, {"sources": slugs}, key=f"{WEB_SENTINEL.name}:due")


def sentinel_job() -> NewJob:
    """A look outside the schedule. It has the schedule's key, so that only one look runs at a time."""
    return NewJob(WEB_SENTINEL.name, {}, key=sentinel_schedule("").job_key)

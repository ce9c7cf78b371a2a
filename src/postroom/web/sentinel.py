"""The daily look at every source for new pages. Live work: it needs no run and obeys no kill switch, but writes the
same items and jobs as a backfill.

An endpoint that cannot be read does not stop the others.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta

from sqlalchemy import update

from postroom.db import Tx
from postroom.db.tables.web import web_endpoints
from postroom.domain.errors import PostroomError
from postroom.domain.jobs import WEB_SENTINEL, sentinel_schedule
from postroom.queue import JobQueue, NewJob
from postroom.settings import WebSettings
from postroom.telemetry import logs
from postroom.web import discovery
from postroom.web.discovery import Discovered, DiscoveryMethod, Finder
from postroom.web.fetching.interface import Fetching
from postroom.web.listings import DateWindow
from postroom.web.sources import ConfiguredSources, Endpoint, EndpointMode, WebSource
from postroom.web.strategies import FoundPage, WalkPlace, WalkStrategy, strategy_of
from postroom.web.walker import Walker, WalkNote

log = logs.get(__name__)

_MOST_PROBLEMS = 20


@dataclass
class SentinelReport:
    """What a look at one endpoint found."""

    source: str
    endpoint: str
    new: int = 0
    known: int = 0
    changed: int = 0
    problems: list[str] = field(default_factory=list)

    def trouble(self, problem: str) -> None:
        if len(self.problems) < _MOST_PROBLEMS:
            self.problems.append(problem[:500])


class _SentinelLog:
    """The `WalkLog` of a look at one endpoint."""

    def __init__(
        self, queue: JobQueue, source: WebSource, endpoint: Endpoint, cap: int, look: SentinelReport, *, dry_run: bool
    ) -> None:
        self._queue = queue
        self._source = source
        self._endpoint = endpoint
        self._cap = cap
        self._look = look
        self._dry_run = dry_run

    async def found(self, place: WalkPlace, items: list[FoundPage]) -> WalkNote:
        database = self._queue.database
        if self._dry_run:
            added, changed = await database.read(lambda tx: self._would_add(tx, items))
        else:
            added, changed = await database.write(lambda tx: self._add(tx, items))
        self._look.new += added.queued
        self._look.known += added.skipped
        self._look.changed += changed
        for url, problem in added.problems:
            self._look.trouble(f"{url}: {problem}")
        is_full = self._look.new >= self._cap
        return WalkNote(added.queued, f"{self._cap:,} new addresses in one look" if is_full else None)

    def _add(self, tx: Tx, items: list[FoundPage]) -> tuple[Discovered, int]:
        now = self._queue.clock.now()
        endpoint_id = discovery.endpoint_row(tx, self._source, self._endpoint, now)
        known = discovery.known_urls(tx, self._source.slug, self._endpoint.name, [item.url for item in items])
        room = self._cap - self._look.new
        new = [item for item in items if item.url not in known][:room]
        finder = Finder(self._source.slug, endpoint_id, DiscoveryMethod.SENTINEL)
        added = discovery.add(tx, self._queue, finder, new, now)
        changed = discovery.verify_changed(tx, self._queue, endpoint_id, [item for item in items if item.url in known])
        return Discovered(added.queued, added.skipped + len(known), added.problems), changed

    def _would_add(self, tx: Tx, items: list[FoundPage]) -> tuple[Discovered, int]:
        known = discovery.known_urls(tx, self._source.slug, self._endpoint.name, [item.url for item in items])
        new = [item for item in items if item.url not in known][: self._cap - self._look.new]
        queued = discovery.would_queue(tx, self._source.slug, new)
        return Discovered(queued, len(new) - queued + len(known)), 0

    async def reached(self, place: WalkPlace) -> WalkNote:
        return WalkNote(0)

    async def trouble(self, place: WalkPlace, url: str, problem: str, times: int = 1) -> None:
        log.warning("sentinel.trouble", source=self._source.slug, endpoint=self._endpoint.name, problem=problem)
        self._look.trouble(problem)


@dataclass(frozen=True)
class Sentinel:
    queue: JobQueue
    sources: ConfiguredSources
    fetching: Fetching
    web: WebSettings
    dry_run: bool = False

    async def look(self, slugs: list[str] | None = None) -> list[SentinelReport]:
        """Look at every endpoint with `sentinel` set, of these sources or of all."""
        chosen = list(self.sources) if slugs is None else [self.sources[slug] for slug in slugs]
        return [
            await self._look(source, endpoint) for source in chosen for endpoint in source.endpoint if endpoint.sentinel
        ]

    async def _look(self, source: WebSource, endpoint: Endpoint) -> SentinelReport:
        look = SentinelReport(source.slug, endpoint.name)
        now = self.queue.clock.now()
        pages = self.web.max_pages if endpoint.mode is EndpointMode.SITEMAP else self.web.sentinel_pages
        walker = Walker(self.fetching, self.queue.clock, pages, pages_are_trouble=False)
        strategy = self._strategy(source, endpoint, now)
        log_ = _SentinelLog(self.queue, source, endpoint, self.web.max_urls_per_source, look, dry_run=self.dry_run)
        try:
            ended = await walker.walk(strategy, strategy.start(), log_)
        except PostroomError as error:
            look.trouble(error.message)
        else:
            if not ended.place.again and not self.dry_run:
                await self.queue.database.write(lambda tx: _looked_at(tx, source, endpoint, now))
        log.info("sentinel.looked", **{**asdict(look), "problems": len(look.problems)})
        return look

    def _strategy(self, source: WebSource, endpoint: Endpoint, now: datetime) -> WalkStrategy:
        window = DateWindow(now - timedelta(days=self.web.sentinel_days))
        return strategy_of(source, endpoint, window, now.date(), self.web.max_page_bytes)


def _looked_at(tx: Tx, source: WebSource, endpoint: Endpoint, now: datetime) -> None:
    endpoint_id = discovery.endpoint_row(tx, source, endpoint, now)
    tx.execute(update(web_endpoints).where(web_endpoints.c.id == endpoint_id).values(sentinel_at=now))


def sentinel_job() -> NewJob:
    """A look outside the schedule. It has the schedule's key, so that only one look runs at a time."""
    return NewJob(WEB_SENTINEL.name, {}, key=sentinel_schedule("").job_key)

"""The one pipeline of both lanes: a discovered page is fetched, read, and kept as evidence, by the job `web.fetch`.

`web.verify` fetches a page again; an unchanged page is only marked as verified. Pages that backfill found stand
behind the kill switch and the lane's rate; everything else is live work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from types import MappingProxyType

from sqlalchemy import func, select, update

from postroom import kill_switch
from postroom.db import Tx
from postroom.db.tables.web import discovered_items, web_endpoints
from postroom.domain.errors import BadInput, Fatal, NotAllowed, NotFound, PostroomError, Retryable
from postroom.domain.jobs import WEB_FETCH, WEB_NOTIFY
from postroom.queue import JobContext, JobQueue, NewJob, Postponed
from postroom.queue.job import Json, storable
from postroom.settings import BackfillSettings, WebSettings
from postroom.telemetry.metrics import meter
from postroom.web import evidence, revisits
from postroom.web.discovery import DiscoveryMethod, ItemStatus
from postroom.web.evidence import Evidence
from postroom.web.extraction.web_reader import DocumentReader, Extracted, WebDocument
from postroom.web.fetching import interface
from postroom.web.fetching.politeness import DatabasePace, place_in_line
from postroom.web.fetching.targets import read_target
from postroom.web.revisits import Intervals
from postroom.web.sources import ConfiguredSources, EndpointMode, NoticeWay

_pages = meter.create_counter("postroom.web.pages", unit="{page}", description="pages asked for, by lane and outcome")


def record(method: str, outcome: str) -> None:
    _pages.add(1, {"lane": method.lower(), "outcome": outcome})


PATIENCE = timedelta(seconds=2)
"""The handler waits for a turn that comes within this time; otherwise the job is postponed."""
WHILE_SWITCHED_OFF = timedelta(minutes=1)
"""How soon the first job checks the switch again; the others follow at the pace of fetching."""
WHILE_PAUSED = timedelta(hours=1)
REPORTED_AFTER = timedelta(minutes=10)
"""News of one source is gathered for so long, so that a busy morning is one message."""
_WHILE_FAILING_H = 24
_NO_PATIENCE = timedelta()
_BACKFILL_LANE = "lane:backfill"
_SHORTEST_LINE, _LONGEST_LINE = 20, 10_000


@dataclass(frozen=True, slots=True)
class _Item:
    id: str
    url: str
    fetch_url: str
    status: ItemStatus
    method: DiscoveryMethod
    source_slug: str
    known: Evidence | None
    mode: EndpointMode
    evidence_id: str | None
    check_every_h: int | None

    @property
    def is_news(self) -> bool:
        """Whether its first content is worth telling: not that of a backfill, which brings what is old."""
        return self.method is DiscoveryMethod.SENTINEL and self.evidence_id is None


class PagePipeline:
    """The handler of `web.fetch` and `web.verify`."""

    def __init__(
        self,
        fetching: interface.Fetching,
        pace: DatabasePace,
        limits_of: interface.LimitsOf,
        reader: DocumentReader,
        settings: WebSettings,
        backfill: BackfillSettings,
        sources: ConfiguredSources | None = None,
    ) -> None:
        """`sources` are those that are followed; None follows all."""
        self._fetching = fetching
        self._pace = pace
        self._limits_of = limits_of
        self._reader = reader
        self._interval = timedelta(seconds=60.0 / settings.fetches_per_minute)
        self._backfill = backfill
        self._sources = sources
        self._intervals = Intervals.of(settings)

    async def __call__(self, context: JobContext) -> Json:
        item = await context.queue.database.read(partial(_read, item_id=str(context.job.payload.get("item"))))
        if context.job.type == WEB_FETCH.name and item.status is ItemStatus.FETCHED:
            return {"skipped": "fetched already"}
        try:
            self._require_source(item)
            await self._wait_for_turn(context, item)
            return await self._fetch(context, item)
        except Postponed:
            raise
        except interface.NotYet as error:
            limits = self._limits_of(_host(item))
            raise await self._later(context, item, limits, error.retry_after or _NO_PATIENCE) from error
        except interface.Disallowed as error:
            return await self._skip(context, item, error)
        except PostroomError as error:
            record(item.method, type(error).__name__)
            if context.job.is_last_attempt or isinstance(error, Fatal | BadInput | NotAllowed):
                mark = partial(_mark, item=item, status=ItemStatus.FAILED, error=error, context=context)
                await context.write(partial(mark, again=self._again(item, error, context)))
            raise

    def _require_source(self, item: _Item) -> None:
        if self._sources is None:
            return
        if item.source_slug not in self._sources.by_slug:
            raise Fatal(f"The source {item.source_slug} is no longer followed.")
        if item.source_slug in self._sources.paused:
            raise Postponed(WHILE_PAUSED, f"The source {item.source_slug} is paused")

    async def _wait_for_turn(self, context: JobContext, item: _Item) -> None:
        """Raises Postponed unless the page may be fetched now."""
        limits = self._limits_of(_host(item))
        is_backfill = item.method is DiscoveryMethod.BACKFILL and item.status is not ItemStatus.FETCHED
        interval = self._interval.total_seconds()
        lane = interface.DomainLimits(_BACKFILL_LANE, interval, interval, max_concurrent=1_000)
        if is_backfill and not await self._is_switched_on(context):
            raise await self._later(context, item, lane, WHILE_SWITCHED_OFF)
        if (wait := await self._pace.wait_of(limits)) > PATIENCE:
            raise await self._later(context, item, limits, wait)
        if not is_backfill:
            return
        try:
            async with self._pace.turn(lane, patience=_NO_PATIENCE):
                return
        except interface.NotYet as error:
            raise await self._later(context, item, lane, error.retry_after or self._interval) from error

    async def _is_switched_on(self, context: JobContext) -> bool:
        state = await context.queue.database.read(partial(kill_switch.state, settings=self._backfill))
        return state.in_force

    async def _later(
        self, context: JobContext, item: _Item, limits: interface.DomainLimits, wait: timedelta
    ) -> Postponed:
        """Each lane has its own line, so that what the sentinel found does not wait behind a whole backfill."""
        line = f"{item.method.lower()}:{limits.domain}"
        interval = timedelta(seconds=(limits.min_delay_s + limits.max_delay_s) / 2)

        def place(tx: Tx) -> timedelta:
            return place_in_line(tx, line, wait, interval, context.queue.clock.now(), longest=_pending(tx))

        return Postponed(await context.queue.database.write(place), f"It is not the turn of {limits.domain} yet")

    async def _fetch(self, context: JobContext, item: _Item) -> Json:
        async with context.step("fetch") as step:
            fetched = await self._fetching.get(
                item.fetch_url,
                purpose=interface.Purpose.EVIDENCE,
                conditional=item.known.validators if item.known else None,
                patience=PATIENCE,
            )
            step.result = {"status": fetched.status, "bytes": len(fetched.body)}
        if fetched.not_modified:
            record(item.method, "not_modified")
            await context.complete(partial(self._verified, item=item, fetched=fetched))
            return None
        async with context.step("extract") as step:
            extracted = await self._reader.extract(_document(fetched))
            step.result = {"extractor": extracted.extractor, "problem": extracted.problem}
        record(item.method, "fetched")
        await context.complete(partial(self._kept, item=item, fetched=fetched, extracted=extracted, context=context))
        return None

    async def _skip(self, context: JobContext, item: _Item, error: interface.Disallowed) -> Json:
        record(item.method, "disallowed")
        await context.write(partial(_mark, item=item, status=ItemStatus.SKIPPED, error=error, context=context))
        return {"skipped": error.message}

    def _again(self, item: _Item, error: PostroomError, context: JobContext) -> dict[str, object]:
        """When a look tries once more to fetch what the sentinel found. Of a backfill's pages, a person decides."""
        if item.evidence_id is not None or item.method is DiscoveryMethod.BACKFILL or not isinstance(error, Retryable):
            return {}
        return revisits.failed_again(self._intervals, item.check_every_h, context.queue.clock.now())

    def _verified(self, tx: Tx, item: _Item, fetched: interface.Fetched) -> Json:
        if item.known is None:
            raise Fatal("the web site says that nothing has changed, but was not asked")
        evidence.verify(tx, item.known.id, fetched)
        self._point(tx, item, item.known.id, fetched)
        return {"evidence": item.known.id, "new": False}

    def _kept(self, tx: Tx, item: _Item, fetched: interface.Fetched, extracted: Extracted, context: JobContext) -> Json:
        stored = evidence.keep(tx, item.url, item.source_slug, fetched)
        evidence.write_text(tx, stored.id, extracted, context.queue.clock.now())
        if self._point(tx, item, stored.id, fetched) or item.is_news:
            self._tell(tx, context.queue, item.source_slug)
        result: dict[str, Json] = {"evidence": stored.id, "new": stored.is_new}
        return result | ({"note": extracted.problem} if extracted.problem else {})

    def _tell(self, tx: Tx, queue: JobQueue, slug: str) -> None:
        """have it reported, together with what else is new within some minutes, unless the overview alone shows it."""
        source = self._sources.by_slug.get(slug) if self._sources else None
        if source is not None and set(source.notify) - {NoticeWay.OVERVIEW}:
            at = queue.clock.now() + REPORTED_AFTER
            queue.add(tx, NewJob(WEB_NOTIFY.name, {"source": slug}, key=f"web.notify:{slug}", not_before=at))

    def _point(self, tx: Tx, item: _Item, evidence_id: str, fetched: interface.Fetched) -> bool:
        """Record what the page was found to hold, and when it is due again; whether that is a change."""
        now = fetched.fetched_at
        changed = item.evidence_id is not None and item.evidence_id != evidence_id
        hours = item.check_every_h if item.evidence_id is not None else None
        due = revisits.checked(self._intervals, item.mode, item.method, hours, changed=changed, now=now)
        values = {"status": ItemStatus.FETCHED, "evidence_id": evidence_id, "error": None, "updated_at": now, **due}
        tx.execute(update(discovered_items).where(discovered_items.c.id == item.id).values(**values))
        return changed


def _host(item: _Item) -> str:
    return read_target(item.fetch_url).host


def _document(fetched: interface.Fetched) -> WebDocument:
    return WebDocument(fetched.body, fetched.content_type, fetched.charset, fetched.final_url)


def _read(tx: Tx, item_id: str) -> _Item:
    query = (
        select(discovered_items, web_endpoints.c.source_slug, web_endpoints.c.mode)
        .join(web_endpoints, web_endpoints.c.id == discovered_items.c.endpoint_id)
        .where(discovered_items.c.id == item_id)
    )
    row = tx.execute(query).one_or_none()
    if row is None:
        raise NotFound("item", f"there is no discovered item {item_id}")
    known = evidence.newest(tx, row.url)
    if known is not None and known.validators == interface.Validators():
        known = None
    return _Item(
        row.id,
        row.url,
        row.fetch_url,
        ItemStatus(row.status),
        DiscoveryMethod(row.discovery_method),
        row.source_slug,
        known,
        EndpointMode(row.mode),
        row.evidence_id,
        row.check_every_h,
    )


def _pending(tx: Tx) -> int:
    """How many pages wait, within bounds; pages that are verified again are not counted, hence the lower bound."""
    some = select(discovered_items.c.id).where(discovered_items.c.status == ItemStatus.PENDING).limit(_LONGEST_LINE)
    waiting_items = tx.execute(select(func.count()).select_from(some.subquery())).scalar_one()
    return max(int(waiting_items), _SHORTEST_LINE)


def _mark(
    tx: Tx,
    item: _Item,
    status: ItemStatus,
    error: PostroomError,
    context: JobContext,
    again: Mapping[str, object] = MappingProxyType({}),
) -> None:
    """A page that was fetched once stays FETCHED, whatever happens when it is verified again."""
    now = context.queue.clock.now()
    values: dict[str, object] = {"error": storable(error.message), "updated_at": now, **again}
    if item.status is not ItemStatus.FETCHED:
        values["status"] = status
    else:
        values["check_at"] = now + timedelta(hours=item.check_every_h or _WHILE_FAILING_H)
    tx.execute(update(discovered_items).where(discovered_items.c.id == item.id).values(**values))

"""Web sources as commands, jobs and the dashboard call them; every change names its actor."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Any, TypeVar

from postroom import audit, kill_switch
from postroom.audit import SYSTEM, Actor
from postroom.db import Database, Tx
from postroom.domain.clock import Clock
from postroom.domain.errors import BadInput, NotAllowed, Retryable
from postroom.domain.extras import Extra, ExtraMissing, is_installed, require
from postroom.domain.jobs import WEB_BACKFILL, WEB_FETCH, WEB_SENTINEL, WEB_UPKEEP, WEB_VERIFY
from postroom.queue import Handler, JobContext, JobQueue, Postponed
from postroom.queue.job import Json
from postroom.queue.retention import prune_surplus
from postroom.settings import OFF, Settings, SettingsSource, WebSettings
from postroom.web import discovery, runs, source_store
from postroom.web import runs as run_upkeep
from postroom.web.discovery import DiscoveryMethod, EndpointView, RetriedItems
from postroom.web.extraction.web_reader import DocumentReader
from postroom.web.fetching.fetcher import PinnedTransport, WebFetcher
from postroom.web.fetching.interface import FetchLimits, LimitsOf, MayLead
from postroom.web.fetching.politeness import DatabasePace, limits_of, private_hosts
from postroom.web.fetching.robots import Robots
from postroom.web.fetching.targets import AddressGuard, Resolver, SystemResolver
from postroom.web.page_pipeline import PagePipeline
from postroom.web.probing import FoundSource, NewSource, Prober, first_free, hosts_of, without_placeholders
from postroom.web.run_driver import Progress, RunDriver
from postroom.web.runs import NewRun, Run, RunStatus, backfill_job
from postroom.web.sentinel import OnWait, Sentinel, SentinelReport, due_job, sentinel_job
from postroom.web.sources import (
    CheckCadence,
    ConfiguredSources,
    EndpointMode,
    NoticeWay,
    is_due_by_itself,
    is_due_with_sentinel,
    load_sources,
    source_of,
)

ROBOTS_TOKEN = "postroom"  # noqa: S105 (a name, which robots.txt files may speak to)


@dataclass(frozen=True, slots=True)
class WebClient:
    fetcher: WebFetcher
    pace: DatabasePace


@asynccontextmanager
async def open_web_client(
    database: Database,
    clock: Clock,
    settings: WebSettings,
    limits_of: LimitsOf,
    *,
    may_lead: MayLead = lambda here, there: True,
    private_hosts: Collection[str] = (),
    resolver: Resolver | None = None,
    tls: ssl.SSLContext | None = None,
    dice: random.Random | None = None,
) -> AsyncIterator[WebClient]:
    """The fetcher of an installation, with robots.txt, pacing and the address check, until the block ends.

    `private_hosts` are hosts that sources allow beside the settings. The arguments after it are for tests.
    """
    limits = FetchLimits(
        largest_body=settings.max_page_bytes,
        total_s=settings.timeout_s,
        connect_s=min(10.0, settings.timeout_s),
        read_s=min(20.0, settings.timeout_s),
        most_redirects=settings.max_redirects,
    )
    guard = AddressGuard(resolver or SystemResolver(), {*settings.private_hosts, *private_hosts})
    wire = PinnedTransport(guard, limits, settings.user_agent, tls)
    pace = DatabasePace(database, clock, timedelta(seconds=limits.total_s), dice)
    robots = Robots(database, clock, ROBOTS_TOKEN, timedelta(hours=settings.robots_hours))
    try:
        yield WebClient(WebFetcher(wire, pace, robots, limits_of, limits, clock, may_lead), pace)
    finally:
        await wire.close()


T = TypeVar("T")

FOLLOWING = "Following web sources"
_NOT_HERE = timedelta(hours=1)
"""How long a page waits where the web extra is missing; another worker may have it."""
_A_FEW_REQUESTS = {"min_delay_ms": 500, "max_delay_ms": 1_000}
"""A person waits while an address is probed, and it takes no more requests than a visit does."""


@dataclass(frozen=True)
class WebService:
    source_of_settings: SettingsSource
    queue: JobQueue

    @property
    def settings(self) -> Settings:
        return self.source_of_settings.now

    async def sources(self) -> ConfiguredSources:
        """Read at every call, so that a change needs no restart."""
        of_file = await asyncio.to_thread(load_sources, self.settings.home)
        return await self.queue.database.read(lambda tx: source_store.with_added(tx, of_file))

    async def add(self, who: Actor, wanted: NewSource, *, dry_run: bool = False) -> FoundSource:
        """Find out what an address is, and follow it."""
        found = await self._probed(wanted)
        sources = await self.sources()
        if wanted.slug is None:
            free = first_free(found.source.slug, sources.by_slug)
            found = replace(found, source=found.source.model_copy(update={"slug": free}))
        if not dry_run:
            await self._write(lambda tx, now: source_store.add(tx, sources, found.source, who, now))
        return found

    async def _probed(self, wanted: NewSource) -> FoundSource:
        """Fetched as a source of its own would be, with its domains and nothing else."""
        require(Extra.WEB, FOLLOWING)
        endpoint = {"name": "new", "mode": EndpointMode.PAGE, "url": without_placeholders(wanted.url)}
        domains = {"domains": hosts_of(wanted), "allow_private": wanted.allow_private}
        alone = ConfiguredSources({"new": source_of({"slug": "new", "endpoint": [endpoint], **domains})})
        async with self.open_client(alone, delays=_A_FEW_REQUESTS) as client:
            return await Prober(client.fetcher, wanted, self.queue.clock.now().date()).probe()

    async def remove(self, who: Actor, slug: str) -> None:
        sources = await self.sources()
        await self._write(lambda tx, now: source_store.remove(tx, sources, slug, who, now))

    async def pause(self, who: Actor, slug: str, *, paused: bool) -> None:
        sources = await self.sources()
        await self._write(lambda tx, now: source_store.pause(tx, sources, slug, who, now, paused=paused))

    async def set_notify(self, who: Actor, slug: str, ways: list[NoticeWay]) -> None:
        sources = await self.sources()
        await self._write(lambda tx, now: source_store.set_notify(tx, sources, slug, ways, who, now))

    async def set_schedule(self, who: Actor, slug: str, every: CheckCadence) -> None:
        sources = await self.sources()
        await self._write(lambda tx, now: source_store.set_schedule(tx, sources, slug, every, who, now))

    async def next_checks(self) -> dict[str, datetime | None]:
        """When each source that is checked by itself will be."""
        sources, cadence, now = await self.sources(), self.settings.recurring.sentinel, self.queue.clock.now()
        return await self.queue.database.read(lambda tx: discovery.next_checks(tx, sources, cadence, now))

    @asynccontextmanager
    async def open_client(
        self, sources: ConfiguredSources, *, delays: dict[str, int] | None = None
    ) -> AsyncIterator[WebClient]:
        """The fetcher for these sources, with other `delays` than those of the settings if they are given."""
        require(Extra.WEB, FOLLOWING)
        web, clock = self.settings.web.model_copy(update=delays or {}), self.queue.clock
        limits, allowed = limits_of(sources, web), private_hosts(sources)
        async with open_web_client(
            self.queue.database, clock, web, limits, may_lead=sources.may_lead, private_hosts=allowed
        ) as client:
            yield client

    async def create(self, who: Actor, new: NewRun) -> Run:
        """A run that waits to be started."""
        require(Extra.WEB, FOLLOWING)
        sources, web, backfill = await self.sources(), self.settings.web, self.settings.backfill
        return await self._write(lambda tx, now: runs.create(tx, sources, web, backfill, new, who, now))

    async def begin(self, who: Actor, new: NewRun) -> Run:
        """Start a run for `drive` in one transaction, so that no run without a driver is left behind."""
        require(Extra.WEB, FOLLOWING)
        sources, web, backfill = await self.sources(), self.settings.web, self.settings.backfill

        def create_and_start(tx: Tx, now: datetime) -> Run:
            created = runs.create(tx, sources, web, backfill, new, who, now)
            return runs.start(tx, sources, backfill, created.id, who, now)

        return await self._write(create_and_start)

    async def hand_over(self, who: Actor, new: NewRun) -> Run:
        """A run that a worker will drive; run and job are made together."""
        require(Extra.WEB, FOLLOWING)
        sources, web, backfill = await self.sources(), self.settings.web, self.settings.backfill

        def create_and_queue(tx: Tx, now: datetime) -> Run:
            run = runs.create(tx, sources, web, backfill, new, who, now)
            self.queue.add(tx, backfill_job(run.id))
            return run

        return await self._write(create_and_queue)

    async def start(self, who: Actor, run_id: str) -> Run:
        require(Extra.WEB, FOLLOWING)
        sources, backfill = await self.sources(), self.settings.backfill
        return await self._write(lambda tx, now: runs.start(tx, sources, backfill, run_id, who, now))

    async def resume(self, who: Actor, run_id: str) -> Run:
        require(Extra.WEB, FOLLOWING)
        sources, backfill = await self.sources(), self.settings.backfill
        return await self._write(lambda tx, now: runs.resume(tx, sources, backfill, run_id, who, now))

    async def resume_later(self, who: Actor, run_id: str) -> Run:
        """Queue a FAILED run to be resumed by a worker; it stays FAILED until one takes it."""
        require(Extra.WEB, FOLLOWING)
        sources, backfill = await self.sources(), self.settings.backfill

        def check_and_queue(tx: Tx, now: datetime) -> Run:
            run = runs.resumable(tx, sources, backfill, run_id, now)
            self.queue.add(tx, backfill_job(run.id))
            audit.record(tx, who, f"{runs.SUBJECT}.resume_later", (runs.SUBJECT, run.id), now)
            return run

        return await self._write(check_and_queue)

    async def refuse(self, run_id: str, reason: str) -> Run:
        """Fail a run that is waiting for a worker, with the reason; it can be resumed. A run that another process has
        started meanwhile is left alone."""

        def refuse_waiting(tx: Tx, now: datetime) -> Run:
            run = runs.find(tx, run_id, lock=True)
            return runs.fail(tx, run, reason, SYSTEM, now) if run.status is RunStatus.PENDING else run

        return await self._write(refuse_waiting)

    async def cancel(self, who: Actor, run_id: str) -> Run:
        return await self._write(lambda tx, now: runs.cancel(tx, run_id, who, now))

    async def drive(self, run: Run, on_progress: Progress = lambda run: None, stop: asyncio.Event | None = None) -> Run:
        """Take a run that was started or resumed to its end, in this process."""
        sources = await self.sources()
        async with self.open_client(sources) as client:
            settings = self.settings
            driver = RunDriver(self.queue, sources, client.fetcher, settings.web, settings.backfill, on_progress)
            return await driver.drive(run, stop)

    async def show(self, run_id: str) -> Run:
        await self._write(run_upkeep.fail_silent)
        return await self.queue.database.read(lambda tx: runs.find(tx, run_id))

    async def list_runs(self, *, status: str | None = None, limit: int = 50) -> list[Run]:
        """Newest first. Runs whose process is gone are failed first, in case no worker has done so."""
        await self._write(run_upkeep.fail_silent)
        return await self.queue.database.read(lambda tx: runs.list_runs(tx, status=status, limit=limit))

    async def look(
        self,
        slugs: list[str] | None = None,
        *,
        dry_run: bool = False,
        on_wait: OnWait = lambda url, reason, seconds: None,
    ) -> list[SentinelReport]:
        """Look for new pages of these sources, or of all that are not paused."""
        sources = await self.sources()
        async with self.open_client(sources) as client:
            sentinel = Sentinel(self.queue, sources, client.fetcher, self.settings.web, dry_run, on_wait)
            return await sentinel.look(slugs)

    async def overview(self) -> list[EndpointView]:
        """All endpoints, with what is known of each."""
        sources, cadence, now = await self.sources(), self.settings.recurring.sentinel, self.queue.clock.now()
        return await self.queue.database.read(lambda tx: discovery.overview(tx, sources, cadence, now))

    async def chosen_by(self, payload: Mapping[str, Any]) -> list[str] | None:
        """The sources that a job of a look is for, without those that were paused or removed since; None: all."""
        sources, now = await self.sources(), self.queue.clock.now()
        checked = await self.queue.database.read(lambda tx: discovery.last_checks(tx, sources))
        if payload.get("scheduled"):
            return [slug for slug, at in checked.items() if is_due_with_sentinel(sources[slug].every, at, now)]
        chosen = payload.get("sources")
        return None if chosen is None else [slug for slug in chosen if slug in checked]

    async def queue_due(self) -> int:
        """Queue a look at the sources that do not wait for the sentinel's time and are due; how many those are.

        A sentinel that is off stops these as well. An error in the file is reported where the sources are shown.
        """
        if self.settings.recurring.sentinel == OFF or not is_installed(Extra.WEB):
            return 0
        try:
            sources = await self.sources()
        except BadInput:
            return 0
        now = self.queue.clock.now()
        checked = await self.queue.database.read(lambda tx: discovery.last_checks(tx, sources))
        due = [slug for slug, at in checked.items() if is_due_by_itself(sources[slug].every, at, now)]
        if due:
            await self.queue.database.write(lambda tx: self.queue.add(tx, due_job(due)))
        return len(due)

    async def look_later(self, who: Actor) -> str:
        """Queue a look at all sources. Returns the id of its job, which may be waiting or running already."""
        require(Extra.WEB, FOLLOWING)

        def queue(tx: Tx, now: datetime) -> str:
            (queued,) = self.queue.add(tx, sentinel_job())
            audit.record(tx, who, "web.look_later", ("job", queued.job_id), now)
            return queued.job_id

        return await self._write(queue)

    async def retry(self, who: Actor, slugs: list[str] | None = None, *, dry_run: bool = False) -> list[RetriedItems]:
        """Queue failed pages again, at most as many as may wait at once."""
        require(Extra.WEB, FOLLOWING)
        sources, most = await self.sources(), self.settings.web.queue_depth
        chosen = list(sources.by_slug) if slugs is None else [sources[slug].slug for slug in slugs]

        def ask_again(tx: Tx, now: datetime) -> list[RetriedItems]:
            retried = discovery.retry_failed(tx, self.queue, chosen, most, dry_run=dry_run)
            if any(item.method is DiscoveryMethod.BACKFILL for item in retried):
                kill_switch.require_on(tx, self.settings.backfill)
            if retried and not dry_run:
                audit.record(tx, who, "web.retry", ("web", "pages"), now, after={"pages": len(retried)})
            return retried

        return await self._write(ask_again)

    async def upkeep(self) -> dict[str, int]:
        """Fail runs that nothing drives, settle items whose jobs have ended, and prune surplus fetch jobs."""
        silent = await self._write(run_upkeep.fail_silent)
        abandoned = await self._write(run_upkeep.fail_abandoned)
        stopped = await self._write(lambda tx, now: run_upkeep.fail_switched_off(tx, self.settings.backfill, now))
        settled = await self._write(discovery.reconcile)
        pruned = await prune_surplus(self.queue.database, (WEB_FETCH, WEB_VERIFY))
        due = await self.queue_due()
        failed = {"silent": len(silent), "abandoned": len(abandoned), "switched_off": len(stopped)}
        return {**failed, "items_settled": settled, "jobs_pruned": pruned, "checks_due": due}

    async def _write(self, change: Callable[[Tx, datetime], T]) -> T:
        return await self.queue.database.write(lambda tx: change(tx, self.queue.clock.now()))


def missing_extra() -> str | None:
    """What this installation lacks for following web sources, and the command that adds it."""
    return None if is_installed(Extra.WEB) else ExtraMissing(Extra.WEB, FOLLOWING).message


async def started(web: WebService, run: Run) -> Run:
    """Start a run. If that is refused, the run is failed, since its job ends with the error."""
    try:
        return await web.start(SYSTEM, run.id)
    except (BadInput, NotAllowed) as error:
        await web.refuse(run.id, error.message)
        raise


def handlers(web: WebService, reader: DocumentReader) -> dict[str, Handler]:
    """Handlers by job type. Each job reads the sources again, so a change needs no restart."""

    async def fetch(context: JobContext) -> Json:
        sources, settings = await web.sources(), web.settings
        async with web.open_client(sources) as client:
            limits = limits_of(sources, settings.web)
            pipeline = PagePipeline(
                client.fetcher, client.pace, limits, reader, settings.web, settings.backfill, sources
            )
            return await pipeline(context)

    async def look(context: JobContext) -> Json:
        return [asdict(look) for look in await web.look(await web.chosen_by(context.job.payload))]

    async def backfill(context: JobContext) -> Json:
        run = await web.show(str(context.job.payload["run"]))
        if run.status is RunStatus.RUNNING:  # the worker that began it went silent, and may be at it still
            wait = runs.until_silent(run, web.queue.clock.now())
            raise Retryable(f"The run {run.id} is RUNNING.", retry_after=max(wait, timedelta()))
        if run.status not in (RunStatus.PENDING, RunStatus.FAILED):
            return {"skipped": f"the run is {run.status}"}
        if run.status is RunStatus.FAILED:
            begun = await web.resume(SYSTEM, run.id)
        else:
            begun = await started(web, run)
        ended = await web.drive(begun)
        return {"status": ended.status, "reason": ended.status_reason, **asdict(ended.counters)}

    async def upkeep(context: JobContext) -> Json:
        return await web.upkeep()

    if not is_installed(Extra.WEB):
        return {**_without_extra(), WEB_UPKEEP.name: upkeep}
    return {
        WEB_FETCH.name: fetch,
        WEB_VERIFY.name: fetch,
        WEB_SENTINEL.name: look,
        WEB_BACKFILL.name: backfill,
        WEB_UPKEEP.name: upkeep,
    }


def _without_extra() -> dict[str, Handler]:
    """Without the web extra: recurring jobs end and say why, requested ones wait for a worker that has it."""
    missing = missing_extra() or ""

    async def skip(context: JobContext) -> Json:
        return {"skipped": missing}

    async def wait(context: JobContext) -> Json:
        raise Postponed(_NOT_HERE, missing)

    return {WEB_SENTINEL.name: skip, **dict.fromkeys((WEB_FETCH.name, WEB_VERIFY.name, WEB_BACKFILL.name), wait)}

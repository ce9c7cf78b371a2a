"""The only place that wires the parts together: settings in, a working installation out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from postroom.accounts.access import GmailAccess
from postroom.archive.sharing import SharedArchive
from postroom.db import Database, connect
from postroom.domain.clock import Clock, SystemClock
from postroom.gmail.grants import GrantStore
from postroom.mail.categories import shipped
from postroom.queue import Catalogue, Handler, JobQueue, Worker
from postroom.queue.retention import PRUNE, PRUNE_DAILY, Retention, prune_handler
from postroom.settings import Settings
from postroom.switchboard import retention
from postroom.switchboard.backfill.service import UPKEEP, UPKEEP_EVERY_MINUTE, Backfill, upkeep_handler
from postroom.switchboard.jobs import CLASSIFY
from postroom.sync import jobs
from postroom.sync.archiver.service import ArchiverService
from postroom.sync.service import SyncService
from postroom.vault import Vault

if TYPE_CHECKING:
    from postroom.switchboard.estimate import Estimator
    from postroom.switchboard.toolbox import Toolbox

CATALOGUE = Catalogue([PRUNE, CLASSIFY, UPKEEP, retention.PRUNE, *jobs.JOB_TYPES])


@dataclass(frozen=True)
class App:
    settings: Settings
    database: Database
    queue: JobQueue
    handlers: Mapping[str, Handler]
    grants: GrantStore
    gmail: GmailAccess
    sync: SyncService
    archiver: ArchiverService
    backfill: Backfill
    clock: Clock

    async def worker(self, *, until_idle: bool = False) -> Worker:
        """A worker for every job type, with the recurring schedules declared."""
        await self.declare_schedules()
        return Worker(self.queue, self.handlers, self.settings.worker, self.settings.queue, until_idle=until_idle)

    async def declare_schedules(self) -> None:
        own = (PRUNE_DAILY, UPKEEP_EVERY_MINUTE, retention.PRUNE_DAILY)
        await self.queue.declare_schedules(*own, *jobs.schedules(self.settings))

    def estimator(self) -> Estimator:
        """Says what a backfill will bring, cost and take. Imported here because prices and models are slow to load."""
        from postroom.switchboard.estimate import Estimator, GmailMailboxes
        from postroom.triage.model import meter_for

        mailboxes, meter = GmailMailboxes(self.database, self.gmail), meter_for(self.settings.model)
        archive = self.settings.home / "archive"
        return Estimator(self.database, archive, mailboxes, shipped(), meter, self.settings.backfill, self.clock)


@dataclass(frozen=True)
class RunningSwitchboard:
    url: str
    toolbox: Toolbox


def open_vault(settings: Settings) -> Vault:
    key = settings.vault_key
    return Vault(settings.home, None if key is None else key.get_secret_value())


@asynccontextmanager
async def open_app(settings: Settings, clock: Clock | None = None) -> AsyncIterator[App]:
    """Open the database and build what stands on it; everything is closed when the block ends."""
    database = await connect(settings.database_url, settings.database)
    try:
        clock = clock or SystemClock()
        queue = JobQueue(database, CATALOGUE, clock)
        backfill = Backfill(database, settings.backfill, shipped().selectable, clock)
        grants = GrantStore(open_vault(settings))
        gmail = GmailAccess(database, grants, clock, settings.sync)
        archive = SharedArchive(settings.home / "archive", settings.archive)
        sync = SyncService(database, gmail, archive, settings, clock)
        archiver = ArchiverService(database, gmail, archive, settings, clock)
        handlers = {
            **jobs.handlers(sync, archiver),
            PRUNE.name: prune_handler(Retention.from_settings(settings.queue)),
            UPKEEP.name: upkeep_handler(backfill),
            retention.PRUNE.name: retention.prune_handler(retention.RetentionRule.from_settings(settings.retention)),
        }
        yield App(settings, database, queue, handlers, grants, gmail, sync, archiver, backfill, clock)
    finally:
        await database.close()


@asynccontextmanager
async def open_switchboard(app: App) -> AsyncIterator[RunningSwitchboard]:
    """Own the archive, serve the tools, and declare what recurs; ends with everything that was begun on disk."""
    # The MCP SDK and a web server take a second to import; only this command pays for them.
    from postroom.archive.search import Search
    from postroom.archive.service import owned_archive
    from postroom.switchboard.assembly import Services, build_toolbox
    from postroom.switchboard.http import SwitchboardHttp
    from postroom.switchboard.ingest import NO_METER
    from postroom.switchboard.serving import is_loopback, serving

    settings, token = app.settings.switchboard, app.settings.telemetry.metrics_token
    async with AsyncExitStack() as stack:
        root = app.settings.home / "archive"
        archive = await stack.enter_async_context(owned_archive(root, app.settings.archive, "postroom switchboard"))
        search = stack.enter_context(Search(root, app.clock))
        toolbox = build_toolbox(Services(app.queue, archive, search, app.backfill, NO_METER))
        http = SwitchboardHttp(
            toolbox,
            app.database,
            app.clock,
            request_bytes=settings.request_bytes,
            is_loopback=is_loopback(settings.host),
            metrics_token=None if token is None else token.get_secret_value(),
        )
        await app.declare_schedules()
        await stack.enter_async_context(http.running())
        url = await stack.enter_async_context(serving(http, settings.host, settings.port))
        yield RunningSwitchboard(url, toolbox)

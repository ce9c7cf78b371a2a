"""The only place that wires the parts together: settings in, a working installation out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from postroom.accounts.access import GmailAccess
from postroom.db import Database, connect
from postroom.domain.clock import Clock, SystemClock
from postroom.gmail.grants import GrantStore
from postroom.queue import Catalogue, Handler, JobQueue, Worker
from postroom.queue.retention import PRUNE, PRUNE_DAILY, Retention, prune_handler
from postroom.settings import Settings
from postroom.sync import jobs
from postroom.sync.archiver.service import ArchiverService
from postroom.sync.service import SyncService
from postroom.sync.sharing import SharedArchive
from postroom.vault import Vault

CATALOGUE = Catalogue([PRUNE, *jobs.JOB_TYPES])


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
    clock: Clock

    async def worker(self, *, until_idle: bool = False) -> Worker:
        """A worker for every job type, with the recurring schedules declared."""
        await self.queue.declare_schedules(PRUNE_DAILY, *jobs.schedules(self.settings))
        return Worker(self.queue, self.handlers, self.settings.worker, self.settings.queue, until_idle=until_idle)


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
        grants = GrantStore(open_vault(settings))
        gmail = GmailAccess(database, grants, clock, settings.sync)
        archive = SharedArchive(settings.home / "archive", settings.archive)
        sync = SyncService(database, gmail, archive, settings, clock)
        archiver = ArchiverService(database, gmail, archive, settings, clock)
        handlers = jobs.handlers(sync, archiver)
        handlers[PRUNE.name] = prune_handler(Retention.from_settings(settings.queue))
        yield App(settings, database, queue, handlers, grants, gmail, sync, archiver, clock)
    finally:
        await database.close()

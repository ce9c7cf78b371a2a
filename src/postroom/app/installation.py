"""An installation: its database, and the services that stand on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from postroom import audit
from postroom.accounts.access import GmailAccess
from postroom.accounts.enrolment import Enrolment
from postroom.accounts.store import Account
from postroom.actions.source import SourceWatch
from postroom.app.jobs import CATALOGUE, first_jobs, schedules
from postroom.app.patience import patiently
from postroom.archive.opening import open_place
from postroom.archive.sharing import SharedArchive
from postroom.audit import Actor
from postroom.db import Database, Tx, connect
from postroom.domain.clock import Clock, SystemClock
from postroom.gmail.grants import GrantStore, StoredGrant
from postroom.gmail.quota import ProfileName
from postroom.mail.categories import shipped
from postroom.queue import JobQueue
from postroom.reading.limited import shared_readers
from postroom.settings import Settings
from postroom.switchboard.backfill.service import Backfill
from postroom.sync.archiver.service import ArchiverService
from postroom.sync.service import SyncService
from postroom.vault import Vault

if TYPE_CHECKING:
    from postroom.switchboard.estimate import Estimator
    from postroom.websources.service import WebSources


@dataclass(frozen=True)
class App:
    settings: Settings
    database: Database
    queue: JobQueue
    vault: Vault
    grants: GrantStore
    gmail: GmailAccess
    archive: SharedArchive
    sync: SyncService
    archiver: ArchiverService
    backfill: Backfill
    clock: Clock
    patience_s: float = 0.0

    async def declare_schedules(self) -> None:
        declared = schedules(self.settings)
        await patiently(lambda: self.queue.declare_schedules(*declared), self.patience_s, self.clock)

    async def take_in(
        self, grant: StoredGrant, who: Actor, quota: ProfileName | None = None
    ) -> tuple[Account, list[str]]:
        """Add an account once its login has proved good, and begin with it; also returns what is odd about it."""
        account, oddities = await Enrolment(self.database, self.grants, self.clock).add(grant, quota)

        def begin(tx: Tx) -> None:
            self.queue.add(tx, *first_jobs(account, self.settings))
            told = {"email": account.email, "api_base": account.api_base}
            audit.record(tx, who, "account.add", ("account", account.id), self.clock.now(), after=told)

        await self.database.write(begin)
        return account, oddities

    @property
    def web(self) -> WebSources:
        """Imported here because readers of pages are slow to load, and few commands need them."""
        from postroom.websources.service import WebSources

        return WebSources(self.settings, self.queue)

    def estimator(self) -> Estimator:
        """Says what a backfill will bring, cost and take. Imported here because prices and models are slow to load."""
        from postroom.switchboard.estimate import Estimator, GmailMailboxes
        from postroom.triage.model import meter_for

        mailboxes, meter = GmailMailboxes(self.database, self.gmail), meter_for(self.settings.model)
        return Estimator(
            self.database, self.archive.place, mailboxes, shipped(), meter, self.settings.backfill, self.clock
        )


def open_vault(settings: Settings) -> Vault:
    key = settings.vault_key
    return Vault(settings.home, None if key is None else key.get_secret_value())


@asynccontextmanager
async def open_app(settings: Settings, clock: Clock | None = None, *, patience_s: float = 0.0) -> AsyncIterator[App]:
    """Open the database and build what stands on it; everything is closed when the block ends."""
    clock = clock or SystemClock()
    async with AsyncExitStack() as stack:
        stack.enter_context(shared_readers())
        database = await patiently(lambda: connect(settings.database_url, settings.database), patience_s, clock)
        stack.push_async_callback(database.close)
        # In a thread: the archive may be in a database, and that far away.
        place = await patiently(lambda: asyncio.to_thread(open_place, settings), patience_s, clock)
        stack.enter_context(place)
        vault = open_vault(settings)
        grants = GrantStore(vault)
        gmail = GmailAccess(database, grants, clock, settings.sync)
        archive = SharedArchive(place)
        queue = JobQueue(database, CATALOGUE, clock)
        yield App(
            settings=settings,
            database=database,
            queue=queue,
            vault=vault,
            grants=grants,
            gmail=gmail,
            archive=archive,
            sync=SyncService(database, gmail, archive, settings, clock, SourceWatch(queue)),
            archiver=ArchiverService(database, gmail, archive, settings, clock),
            backfill=Backfill(database, settings.backfill, shipped().selectable, clock),
            clock=clock,
            patience_s=patience_s,
        )

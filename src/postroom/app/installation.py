"""An installation: its database and the services that use it.

A service that starts while its database is unavailable waits for it; a command fails at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from postroom import audit
from postroom.accounts.access import GmailAccess
from postroom.accounts.account import Account
from postroom.accounts.enrolment import Enrolment
from postroom.actions.mailbox_changes import ActionsMailboxObserver
from postroom.app.job_types import first_jobs, schedules
from postroom.archive.service import SharedArchive, open_archive
from postroom.audit import Actor
from postroom.db import Database, Tx, connect
from postroom.domain.backoff import Backoff, retry
from postroom.domain.clock import Clock, SystemClock
from postroom.domain.errors import Retryable
from postroom.domain.jobs import CATALOGUE
from postroom.mail.categories import shipped
from postroom.mailboxes.gmail.credentials import GrantStore, StoredGrant
from postroom.mailboxes.gmail.quota import ProfileName
from postroom.queue import JobQueue
from postroom.reading.limited import shared_readers
from postroom.settings import Settings
from postroom.switchboard.backfill.operations import Backfill
from postroom.sync.service import ArchiverService, SyncService
from postroom.telemetry import logs
from postroom.vault import Vault

if TYPE_CHECKING:
    from postroom.switchboard.estimate import Estimator
    from postroom.web.web_service import WebService


T = TypeVar("T")

DATABASE_WAIT_S = 60.0
"""Longer than a restart of PostgreSQL takes. After it the service ends and logs why."""
_DATABASE_BACKOFF = Backoff(1.0, 1.0)

log = logs.get(__name__)


async def retry_while_unavailable(work: Callable[[], Awaitable[T]], patience_s: float, clock: Clock) -> T:
    def on_wait(error: Retryable, delay_s: float) -> None:
        log.warning("service.waiting", problem=error.message)

    return await retry(work, _DATABASE_BACKOFF, clock, patience_s=patience_s, on_wait=on_wait)


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
        await retry_while_unavailable(lambda: self.queue.declare_schedules(*declared), self.patience_s, self.clock)

    async def take_in(
        self, grant: StoredGrant, who: Actor, quota: ProfileName | None = None
    ) -> tuple[Account, list[str]]:
        """Add an account once its login has proved good, and begin with it; also returns what is odd about it."""
        account, oddities = await Enrolment(self.database, self.grants, self.clock).add(grant, quota)

        def begin(tx: Tx) -> None:
            self.queue.add(tx, *first_jobs(account, self.settings))
            details = {"email": account.email, "api_base": account.api_base}
            audit.record(tx, who, "account.add", ("account", account.id), self.clock.now(), after=details)

        await self.database.write(begin)
        return account, oddities

    @property
    def web(self) -> WebService:
        """Imported here because readers of pages are slow to load, and few commands need them."""
        from postroom.web.web_service import WebService

        return WebService(self.settings, self.queue)

    def estimator(self) -> Estimator:
        """Says what a backfill will bring, cost and take. Imported here because prices and models are slow to load."""
        from postroom.switchboard.estimate import Estimator, GmailMailboxes
        from postroom.triage.model import meter_for

        mailboxes, meter = GmailMailboxes(self.database, self.gmail), meter_for(self.settings.model)
        return Estimator(
            self.database, self.archive.backend, mailboxes, shipped(), meter, self.settings.backfill, self.clock
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
        database = await retry_while_unavailable(
            lambda: connect(settings.database_url, settings.database), patience_s, clock
        )
        stack.push_async_callback(database.close)
        # In a thread: the archive may be in a database, and that far away.
        place = await retry_while_unavailable(lambda: asyncio.to_thread(open_archive, settings), patience_s, clock)
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
            sync=SyncService(database, gmail, archive, settings, clock, ActionsMailboxObserver(queue)),
            archiver=ArchiverService(database, gmail, archive, settings, clock),
            backfill=Backfill(database, settings.backfill, shipped().selectable, clock),
            clock=clock,
            patience_s=patience_s,
        )

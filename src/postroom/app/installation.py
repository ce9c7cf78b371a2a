"""An installation: its database, and the services on it, each imported and built when it is first used.

A service process that starts while its database is unavailable waits for it; a command fails at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from postroom.db import Database, Tx, connect
from postroom.domain.backoff import Backoff, retry
from postroom.domain.clock import Clock, SystemClock
from postroom.domain.errors import Retryable
from postroom.domain.jobs import CATALOGUE
from postroom.queue import JobQueue
from postroom.reading.limited import shared_readers
from postroom.settings import Settings
from postroom.telemetry import logs

if TYPE_CHECKING:
    from postroom.accounts.access import GmailAccess
    from postroom.accounts.account import Account
    from postroom.archive.service import SharedArchive
    from postroom.audit import Actor
    from postroom.mailboxes.gmail.credentials import GrantStore, StoredGrant
    from postroom.mailboxes.gmail.quota import ProfileName
    from postroom.switchboard.backfill.operations import Backfill
    from postroom.switchboard.estimate import Estimator
    from postroom.sync.service import ArchiverService, SyncService
    from postroom.vault import Vault
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
    clock: Clock
    resources: ExitStack
    """Closed with the installation: the archive, once it was opened."""
    patience_s: float = 0.0

    @cached_property
    def vault(self) -> Vault:
        return open_vault(self.settings)

    @cached_property
    def grants(self) -> GrantStore:
        from postroom.mailboxes.gmail.credentials import GrantStore

        return GrantStore(self.vault)

    @cached_property
    def gmail(self) -> GmailAccess:
        from postroom.accounts.access import GmailAccess

        return GmailAccess(self.database, self.grants, self.clock, self.settings.sync)

    @cached_property
    def archive(self) -> SharedArchive:
        """Opened by its first use; that connects to PostgreSQL if the archive is there."""
        from postroom.archive.service import SharedArchive, open_archive

        return SharedArchive(self.resources.enter_context(open_archive(self.settings)))

    @cached_property
    def sync(self) -> SyncService:
        from postroom.actions.mailbox_changes import ActionsMailboxObserver
        from postroom.sync.service import SyncService

        observer = ActionsMailboxObserver(self.queue)
        return SyncService(self.database, self.gmail, self.archive, self.settings, self.clock, observer)

    @cached_property
    def archiver(self) -> ArchiverService:
        from postroom.sync.service import ArchiverService

        return ArchiverService(self.database, self.gmail, self.archive, self.settings, self.clock)

    @cached_property
    def backfill(self) -> Backfill:
        from postroom.mail.categories import shipped
        from postroom.switchboard.backfill.operations import Backfill

        return Backfill(self.database, self.settings.backfill, shipped().selectable, self.clock)

    @cached_property
    def web(self) -> WebService:
        from postroom.web.web_service import WebService

        return WebService(self.settings, self.queue)

    def estimator(self) -> Estimator:
        """Estimates the messages, cost and duration of a backfill."""
        from postroom.mail.categories import shipped
        from postroom.switchboard.estimate import AccountsToCount, Estimator
        from postroom.triage.model import meter_for

        mailboxes, meter = AccountsToCount(self.database, self.gmail), meter_for(self.settings.model)
        return Estimator(
            self.database, self.archive.backend, mailboxes, shipped(), meter, self.settings.backfill, self.clock
        )

    async def declare_schedules(self) -> None:
        from postroom.app.schedules import schedules

        declared = schedules(self.settings)
        await retry_while_unavailable(lambda: self.queue.declare_schedules(*declared), self.patience_s, self.clock)

    async def take_in(
        self, grant: StoredGrant, who: Actor, quota: ProfileName | None = None
    ) -> tuple[Account, list[str]]:
        """Verify the login, add the account and enqueue its first jobs; also returns warnings about it."""
        from postroom import audit
        from postroom.accounts.enrolment import Enrolment
        from postroom.app.schedules import first_jobs

        account, oddities = await Enrolment(self.database, self.grants, self.clock).add(grant, quota)

        def begin(tx: Tx) -> None:
            self.queue.add(tx, *first_jobs(account, self.settings))
            details = {"email": account.email, "api_base": account.api_base}
            audit.record(tx, who, "account.add", ("account", account.id), self.clock.now(), after=details)

        await self.database.write(begin)
        return account, oddities


def open_vault(settings: Settings) -> Vault:
    from postroom.vault import Vault

    key = settings.vault_key
    return Vault(settings.home, None if key is None else key.get_secret_value())


@asynccontextmanager
async def open_app(settings: Settings, clock: Clock | None = None, *, patience_s: float = 0.0) -> AsyncIterator[App]:
    """Open the database; everything that is opened later is closed with it when the block ends.

    A service, which has `patience_s`, also opens the archive at once: both may be unavailable when it starts.
    """
    clock = clock or SystemClock()
    database = await retry_while_unavailable(
        lambda: connect(settings.database_url, settings.database), patience_s, clock
    )
    try:
        with shared_readers(), ExitStack() as resources:
            app = App(settings, database, JobQueue(database, CATALOGUE, clock), clock, resources, patience_s)
            if patience_s:
                # In a thread: the archive may be in a database, and that far away.
                await retry_while_unavailable(lambda: asyncio.to_thread(lambda: app.archive), patience_s, clock)
            yield app
    finally:
        await database.close()

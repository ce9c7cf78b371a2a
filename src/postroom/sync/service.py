"""Starts syncs, for the command line and for the recurring jobs, which also retry bad messages and run the archiver.

A job handles one account. If another process writes to the archive or reads the account's changes, the job ends
successfully and its result says so.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from postroom.accounts.access import MailboxAccess
from postroom.accounts.account import Account, ArchivedMailbox
from postroom.accounts.account_jobs import account_of, mailbox_of
from postroom.accounts.history import HistoryLeaseLost, ReaderElsewhere
from postroom.accounts.observers import MailboxObserver, NoObserver
from postroom.archive.service import SharedArchive
from postroom.archive.status import OwnedElsewhere
from postroom.db import Database
from postroom.domain.clock import Clock
from postroom.domain.jobs import ARCHIVE, SYNC, SYNC_BAD
from postroom.mailboxes.labels import LabelNames
from postroom.mailboxes.ports import PriorityLane
from postroom.queue.job import Json
from postroom.settings import Settings, SettingsSource
from postroom.sync.alerts import recheck_bad
from postroom.sync.engine import SyncEngine, build_engine
from postroom.sync.fetch import BadMessageRetry, MailFetcher, RetriedMessages
from postroom.sync.labels import LabelFollower
from postroom.sync.status import SyncEstimate, SyncProgress, estimate_sync

if TYPE_CHECKING:
    from postroom.queue import Handler, JobContext
    from postroom.sync.archiver import ArchiverService


@dataclass(frozen=True)
class AccountSync:
    """One account's sync, ready to run."""

    account: Account
    engine: SyncEngine

    def progress(self) -> SyncProgress:
        return self.engine.progress()

    def result(self) -> dict[str, Any]:
        """What it has done so far, as a job keeps it."""
        done = self.progress()
        return {"stored": done.stored, "known": done.known, "bad": done.bad, "watermark": done.watermark}


@dataclass(frozen=True)
class SyncService:
    database: Database
    mailboxes: MailboxAccess
    archive: SharedArchive
    source_of_settings: SettingsSource
    clock: Clock
    watch: MailboxObserver = NoObserver()  # noqa: RUF009 - holds nothing

    @property
    def settings(self) -> Settings:
        """As they hold now; a sync keeps those that it began with."""
        return self.source_of_settings.now

    @asynccontextmanager
    async def opened(
        self, accounts: Sequence[Account], purpose: str, *, beside_live: bool = False
    ) -> AsyncIterator[list[AccountSync]]:
        """The syncs of these accounts. This process owns the archive until the block ends.

        `beside_live`: new mail is taken in elsewhere, for instance by a connector.
        """
        async with AsyncExitStack() as stack:
            syncs = []
            for account in accounts:
                store = await stack.enter_async_context(self.archive.store(account.email, purpose))
                mailbox = await stack.enter_async_context(self.mailboxes.mailbox(account, PriorityLane.SYNC))
                engine = build_engine(
                    self.database,
                    account,
                    mailbox,
                    store,
                    self.settings.sync,
                    self.clock,
                    follows=not beside_live,
                    watch=self.watch,
                )
                syncs.append(AccountSync(account, engine))
            yield syncs

    async def estimate(self, account: Account) -> SyncEstimate:
        """What a sync would take; no message is fetched."""
        async with self.mailboxes.mailbox(account, PriorityLane.USER_ACTION) as mailbox:
            return await estimate_sync(
                self.database, account, mailbox, self.settings.sync, self.archive.backend, self.clock.now()
            )

    async def retry_bad(
        self, owner: Account | ArchivedMailbox, keys: Sequence[str] | None, purpose: str, *, only_due: bool = False
    ) -> RetriedMessages:
        """Retry these bad messages, or all of them, or with `only_due` those that are due."""
        async with AsyncExitStack() as stack:
            store = await stack.enter_async_context(self.archive.store(owner.email, purpose))
            fetcher = None
            if isinstance(owner, Account):
                mailbox = await stack.enter_async_context(self.mailboxes.mailbox(owner, PriorityLane.SYNC))
                names = LabelNames(mailbox, LabelFollower(self.database, owner.id, mailbox, store))
                fetcher = MailFetcher(mailbox, store, names)
            retry = BadMessageRetry(self.database, owner.id, store, fetcher, self.settings.sync, self.clock)
            retried = await (retry.retry_due() if only_due else retry.retry(keys))
        now = self.clock.now()
        await self.database.write(lambda tx: recheck_bad(tx, owner.id, self.settings.sync, now))
        return retried


T = TypeVar("T")
ARCHIVE_OWNER = "archive_owner"
"""In the result of a job that was skipped: the process that alone may write to the archive."""


def sync_handlers(sync: SyncService, archiver: ArchiverService, *, beside_live: bool) -> dict[str, Handler]:
    """Handlers by job type; `beside_live` says that other jobs take in new mail."""

    async def sync_account(account: Account) -> Json:
        async with sync.opened([account], "a sync job", beside_live=beside_live) as [one]:
            await one.engine.run(once=True)
        return one.result()

    async def retry(owner: Account | ArchivedMailbox) -> Json:
        retried = await sync.retry_bad(owner, None, "a job that retries bad messages", only_due=True)
        counts = (len(retried.stored), len(retried.gone), len(retried.still_bad))
        return dict(zip(("stored", "gone", "still_bad"), counts, strict=True))

    async def archive(account: Account) -> Json:
        if not archiver.settings.archiver.enabled:
            return {"skipped": "archiver.enabled is not set."}
        async with archiver.opened(account, archiver.policy()) as one:
            report = await one.run()
        return {"removed": report.removed, "stays": {str(why): count for why, count in report.stays.items()}}

    return {
        SYNC.name: _for_one("sync", account_of, sync_account),
        SYNC_BAD.name: _for_one("retry", mailbox_of, retry),
        ARCHIVE.name: _for_one("archive", account_of, archive),
    }


def _for_one(
    name: str, named_by: Callable[[JobContext], Awaitable[T]], work: Callable[[T], Awaitable[Json]]
) -> Handler:
    async def handle(context: JobContext) -> Json:
        one = await named_by(context)
        async with context.step(name) as step:
            step.result = await _unless_elsewhere(work(one))
        return step.result

    return handle


async def _unless_elsewhere(work: Awaitable[Json]) -> Json:
    try:
        return await work
    except OwnedElsewhere as error:
        return {"skipped": error.message, ARCHIVE_OWNER: error.writer}
    except (ReaderElsewhere, HistoryLeaseLost) as error:
        return {"skipped": error.message}

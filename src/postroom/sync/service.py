"""Syncs for the command line and for the recurring jobs (sync, retry of bad messages, archiver), one job an account.

A job that finds the archive or the account's changes in the hands of another process ends successfully and says so.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

from postroom.accounts.access import GmailAccess
from postroom.accounts.account import Account, ArchivedMailbox
from postroom.accounts.account_jobs import account_of, mailbox_of
from postroom.accounts.history_cursor import HistoryLeaseLost, ReaderElsewhere
from postroom.accounts.mailbox_state import MailboxObserver, NoObserver
from postroom.archive.service import SharedArchive
from postroom.archive.status import OwnedElsewhere
from postroom.db import Database
from postroom.domain.clock import Clock
from postroom.domain.jobs import ARCHIVE, SYNC, SYNC_BAD
from postroom.mailboxes.labels import LabelNames
from postroom.mailboxes.ports import PriorityLane
from postroom.queue import Handler, JobContext
from postroom.queue.job import Json
from postroom.settings import Settings
from postroom.sync.archiver import ArchiverService
from postroom.sync.bad_messages import BadMessageRetry, RetriedMessages
from postroom.sync.engine import SyncEngine, build_engine
from postroom.sync.estimate import SyncEstimate, estimate
from postroom.sync.fetch import MailFetcher
from postroom.sync.labels import LabelFollower
from postroom.sync.status import SyncProgress


@dataclass(frozen=True)
class AccountSync:
    """One account's sync, ready to run."""

    account: Account
    engine: SyncEngine

    def progress(self) -> SyncProgress:
        return self.engine.progress()


@dataclass(frozen=True)
class SyncService:
    database: Database
    gmail: GmailAccess
    archive: SharedArchive
    settings: Settings
    clock: Clock
    watch: MailboxObserver = NoObserver()  # noqa: RUF009 - holds nothing

    @asynccontextmanager
    async def opened(
        self, accounts: Sequence[Account], purpose: str, *, beside_live: bool = False
    ) -> AsyncIterator[list[AccountSync]]:
        """The syncs of these accounts, with the archive in this process's hands until the block ends.

        `beside_live`: new mail is taken in by others, as it is where a connector serves the mailbox.
        """
        async with AsyncExitStack() as stack:
            syncs = []
            for account in accounts:
                store = await stack.enter_async_context(self.archive.store(account.email, purpose))
                mailbox = await stack.enter_async_context(self.gmail.mailbox(account, PriorityLane.SYNC))
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
        """What a sync would cost, before a message is fetched."""
        async with self.gmail.mailbox(account, PriorityLane.USER_ACTION) as mailbox:
            return await estimate(
                self.database, account, mailbox, self.settings.sync, self.archive.place, self.clock.now()
            )

    async def retry_bad(
        self, owner: Account | ArchivedMailbox, keys: Sequence[str] | None, purpose: str, *, only_due: bool = False
    ) -> RetriedMessages:
        """Retry messages that could not be fetched or read: these, all, or those that are due."""
        async with AsyncExitStack() as stack:
            store = await stack.enter_async_context(self.archive.store(owner.email, purpose))
            fetcher = None
            if isinstance(owner, Account):
                mailbox = await stack.enter_async_context(self.gmail.mailbox(owner, PriorityLane.SYNC))
                names = LabelNames(mailbox, LabelFollower(self.database, owner.id, mailbox, store))
                fetcher = MailFetcher(mailbox, store, names)
            retry = BadMessageRetry(self.database, owner.id, store, fetcher, self.settings.sync, self.clock)
            return await (retry.retry_due() if only_due else retry.retry(keys))


T = TypeVar("T")


def sync_handlers(sync: SyncService, archiver: ArchiverService, *, beside_live: bool) -> dict[str, Handler]:
    """What this process needs to run these jobs; `beside_live`, where other jobs take in new mail."""

    async def bring(account: Account) -> Json:
        async with sync.opened([account], "a sync job", beside_live=beside_live) as [one]:
            await one.engine.run(once=True)
            done = one.progress()
        return {"stored": done.stored, "known": done.known, "bad": done.bad, "watermark": done.watermark}

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
        SYNC.name: _for_one(account_of, bring),
        SYNC_BAD.name: _for_one(mailbox_of, retry),
        ARCHIVE.name: _for_one(account_of, archive),
    }


def _for_one(named_by: Callable[[JobContext], Awaitable[T]], work: Callable[[T], Awaitable[Json]]) -> Handler:
    async def handle(context: JobContext) -> Json:
        one = await named_by(context)
        try:
            return await work(one)
        except (OwnedElsewhere, ReaderElsewhere, HistoryLeaseLost) as error:
            return {"skipped": error.message}

    return handle

"""Syncs as those see them who start them: the command line and the recurring jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from postroom.accounts.access import GmailAccess
from postroom.accounts.mailstate import NobodyWatches, SourceWatch
from postroom.accounts.store import Account
from postroom.archive.sharing import SharedArchive
from postroom.db import Database
from postroom.domain.clock import Clock
from postroom.gmail.ports import Lane
from postroom.settings import Settings
from postroom.sync.account_sync import account_sync
from postroom.sync.bad import BadRetry, Retried
from postroom.sync.bringing import Bringer
from postroom.sync.engine import SyncEngine
from postroom.sync.estimate import SyncEstimate, estimate
from postroom.sync.label_following import LabelFollower
from postroom.sync.labels import LabelNames
from postroom.sync.progress import SyncProgress


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
    watch: SourceWatch = NobodyWatches()  # noqa: RUF009 - holds nothing

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
                client = await stack.enter_async_context(self.gmail.client(account, Lane.SYNC))
                engine = account_sync(
                    self.database,
                    account,
                    client,
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
        async with self.gmail.client(account, Lane.USER_ACTION) as client:
            return await estimate(
                self.database, account, client, self.settings.sync, self.archive.place, self.clock.now()
            )

    async def retry_bad(
        self, account: Account, gmail_ids: Sequence[str] | None, purpose: str, *, only_due: bool = False
    ) -> Retried:
        """Try messages again that could not be had: these, all, or those whose time has come."""
        async with (
            self.archive.store(account.email, purpose) as store,
            self.gmail.client(account, Lane.SYNC) as client,
        ):
            names = LabelNames(client, LabelFollower(self.database, account.id, client, store))
            bringer = Bringer(client, store, names)
            retry = BadRetry(self.database, account.id, bringer, self.settings.sync, self.clock)
            return await (retry.retry_due() if only_due else retry.retry(gmail_ids))

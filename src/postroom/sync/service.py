"""Syncs as those see them who start them: the command line and the recurring jobs. Here an engine gets its parts."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from postroom.accounts.access import GmailAccess
from postroom.accounts.history import Reader
from postroom.accounts.store import Account
from postroom.db import Database
from postroom.domain.clock import Clock
from postroom.gmail.client import GmailClient
from postroom.gmail.ports import Lane
from postroom.settings import Settings
from postroom.sync.alarm import Alarm
from postroom.sync.bad import BadRetry, Retried
from postroom.sync.bringing import Bringer
from postroom.sync.deltas import DeltaReader
from postroom.sync.engine import Chore, SyncEngine
from postroom.sync.estimate import SyncEstimate, estimate
from postroom.sync.label_following import LabelFollower
from postroom.sync.labels import LabelNames
from postroom.sync.progress import Phase, SyncProgress
from postroom.sync.reconcile import Reconciliation
from postroom.sync.sharing import SharedArchive
from postroom.sync.store import ArchiveStore
from postroom.sync.tasks import first_error

_CHECK_EVERY_S = 30.0


class AccountSync:
    """One account's sync, ready to run, with somebody who watches over it."""

    def __init__(self, account: Account, engine: SyncEngine, alarm: Alarm, clock: Clock) -> None:
        self.account = account
        self._engine = engine
        self._alarm = alarm
        self._clock = clock
        self._noted = engine.progress()

    def progress(self) -> SyncProgress:
        return self._engine.progress()

    async def run(self, *, once: bool) -> None:
        """Until cancelled, or with `once` until everything that is there now has been taken in."""
        with first_error():
            async with asyncio.TaskGroup() as tasks:
                watch = tasks.create_task(self._watch(), name="sync alarm")
                await self._engine.run(once=once)
                watch.cancel()
        await self._check()

    async def _watch(self) -> None:
        while True:
            await self._clock.sleep(_CHECK_EVERY_S)
            if self.progress().phase is not Phase.PLANNING:
                await self._check()

    async def _check(self) -> None:
        now, before = self.progress(), self._noted
        self._alarm.note(now.settled - before.settled, now.bad - before.bad)
        self._noted = now
        await self._alarm.check()


@dataclass(frozen=True)
class SyncService:
    database: Database
    gmail: GmailAccess
    archive: SharedArchive
    settings: Settings
    clock: Clock

    @asynccontextmanager
    async def opened(self, accounts: Sequence[Account], purpose: str) -> AsyncIterator[list[AccountSync]]:
        """The syncs of these accounts, with the archive in this process's hands until the block ends."""
        async with AsyncExitStack() as stack:
            syncs = []
            for account in accounts:
                store = await stack.enter_async_context(self.archive.store(account.email, purpose))
                client = await stack.enter_async_context(self.gmail.client(account, Lane.SYNC))
                syncs.append(self._sync(account, client, store))
            yield syncs

    async def estimate(self, account: Account) -> SyncEstimate:
        """What a sync would cost, before a message is fetched."""
        async with self.gmail.client(account, Lane.USER_ACTION) as client:
            return await estimate(
                self.database, account, client, self.settings.sync, self.archive.root, self.clock.now()
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
            retry = self._retry(account.id, Bringer(client, store, names))
            return await (retry.retry_due() if only_due else retry.retry(gmail_ids))

    def _sync(self, account: Account, client: GmailClient, store: ArchiveStore) -> AccountSync:
        settings, clock = self.settings.sync, self.clock

        def deltas(reader: Reader, bringer: Bringer) -> DeltaReader:
            return DeltaReader(self.database, reader, bringer, clock)

        def chores(reader: Reader, bringer: Bringer) -> Sequence[Chore]:
            retry = self._retry(account.id, bringer)

            async def retry_due() -> None:
                await retry.retry_due()

            return Reconciliation(self.database, account.id, bringer, self.archive.root, clock), retry_due

        engine = SyncEngine(
            self.database,
            account,
            client,
            store,
            settings,
            clock,
            holder=self.holder,
            deltas=deltas,
            chores=chores,
        )
        cuts = client.limiter.gate.tuner
        alarm = Alarm(self.database, account, settings, clock, client=client, cuts=lambda: cuts.cuts)
        return AccountSync(account, engine, alarm, clock)

    @property
    def holder(self) -> str:
        """Who reads an account's changes. The archive has one owner, so this name is never borne by two at once."""
        return f"`postroom sync` on {socket.gethostname()} ({self.settings.home})"

    def _retry(self, account_id: str, bringer: Bringer) -> BadRetry:
        return BadRetry(self.database, account_id, bringer, self.settings.sync, self.clock)

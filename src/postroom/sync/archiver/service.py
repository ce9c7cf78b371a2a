"""The archiver for those who command it: the command line and the recurring job."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from postroom.accounts.access import GmailAccess
from postroom.accounts.store import Account
from postroom.accounts.troubled import troubled_of
from postroom.archive.certificates import Action
from postroom.archive.sharing import SharedArchive
from postroom.db import Database
from postroom.domain.clock import Clock
from postroom.gmail.ports import Lane
from postroom.settings import Settings
from postroom.sync.archiver.plan import ArchivePlan, make_plan
from postroom.sync.archiver.policy import policy_of, require_enabled
from postroom.sync.archiver.run import Archiver, Site, archiving
from postroom.sync.archiver.selection import Policy
from postroom.sync.state import get_state


@dataclass(frozen=True)
class ArchiverService:
    database: Database
    gmail: GmailAccess
    archive: SharedArchive
    settings: Settings
    clock: Clock

    def require_enabled(self, *, enabled_now: bool = False) -> None:
        """Refused while nobody has turned it on."""
        require_enabled(self.settings.archiver, enabled_now=enabled_now)

    def policy(self, action: Action | None = None, label: str | None = None) -> Policy:
        """What was asked for, else what the settings say."""
        return policy_of(self.settings.archiver, self.clock.now(), action=action, label=label)

    async def plan(
        self,
        account: Account,
        policy: Policy,
        *,
        verify: bool = False,
        progress: Callable[[int], None] = lambda done: None,
    ) -> ArchivePlan:
        """What a run would do. Nothing is asked of the source, and nothing is changed."""
        watermark, bad = await self.database.read(
            lambda tx: (get_state(tx, account.id).watermark, {each.key for each in troubled_of(tx, account.id)})
        )
        return await asyncio.to_thread(
            make_plan, self.archive.place, account.email, policy, watermark, bad, verify=verify, progress=progress
        )

    @asynccontextmanager
    async def opened(self, account: Account, policy: Policy) -> AsyncIterator[Archiver]:
        """The archiver of an account that has been synced, for whoever has made sure that it may run."""
        await self.database.read(lambda tx: get_state(tx, account.id))
        site = Site(self.database, self.clock, self.archive, self.settings.archiver.batch_size)
        async with (
            self.gmail.client(account, Lane.SYNC) as client,
            archiving(site, account, policy, client) as archiver,
        ):
            yield archiver

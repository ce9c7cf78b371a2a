"""A Gmail client for an account: its login from the vault, its allowance shared with every other process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from postroom.accounts.budget import DatabaseBudget
from postroom.accounts.store import Account
from postroom.db import Database
from postroom.domain.clock import Clock
from postroom.gmail.client import GmailClient, connected
from postroom.gmail.gate import tuner_limits_for
from postroom.gmail.grants import GrantStore
from postroom.gmail.limiter import Limiter, limiter_for
from postroom.gmail.oauth import CurrentCredentials
from postroom.gmail.ports import Lane
from postroom.gmail.quota import PROFILES, QuotaProfile
from postroom.gmail.transport import TransportConfig
from postroom.gmail.tuner import TunerLimits
from postroom.settings import SyncSettings


class GmailAccess:
    """One per process: all clients of an account go through the same door."""

    def __init__(
        self, database: Database, grants: GrantStore, clock: Clock, settings: SyncSettings | None = None
    ) -> None:
        self._database = database
        self._grants = grants
        self._clock = clock
        self._tuning = _tuning(settings or SyncSettings())
        self._limiters: dict[str, Limiter] = {}

    @asynccontextmanager
    async def client(self, account: Account, lane: Lane) -> AsyncIterator[GmailClient]:
        """Connected for as long as the block lasts."""
        async with connected(
            CurrentCredentials(self._grants, account.email, self._clock),
            self._limiter(account),
            self._clock,
            profile=_profile(account),
            config=TransportConfig(api_base=account.api_base),
            lane=lane,
        ) as client:
            yield client

    def _limiter(self, account: Account) -> Limiter:
        if account.id not in self._limiters:
            profile = _profile(account)
            budget = DatabaseBudget(self._database, account.id, profile, self._clock) if profile else None
            tuning = tuner_limits_for(profile, self._tuning)
            self._limiters[account.id] = limiter_for(profile, self._clock, budget=budget, tuning=tuning)
        return self._limiters[account.id]


class AccountClients:
    """Clients that stay connected until the stack is closed: one for each account, made when it is first needed."""

    def __init__(self, access: GmailAccess, lane: Lane, stack: AsyncExitStack) -> None:
        self._access = access
        self._lane = lane
        self._stack = stack
        self._made: dict[str, GmailClient] = {}
        self._one_at_a_time = asyncio.Lock()

    async def of(self, account: Account) -> GmailClient:
        async with self._one_at_a_time:
            if account.id not in self._made:
                client = await self._stack.enter_async_context(self._access.client(account, self._lane))
                self._made[account.id] = client
            return self._made[account.id]


def _profile(account: Account) -> QuotaProfile | None:
    """None where nobody said which price list applies: the pace is found by trying then."""
    return None if account.quota is None else PROFILES[account.quota]


def _tuning(settings: SyncSettings) -> TunerLimits:
    return TunerLimits(
        start_workers=settings.workers_start,
        max_workers=settings.workers_max,
        start_rps=settings.rps_start,
        max_rps=settings.rps_max,
    )

"""How much of each quota a first sync uses, from its first second on: virtual time, real archive and database.

The units come from the allowance that all processes share through the database, as in the product.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tests.support import virtual_time
from tests.support.archives import opened_store
from tests.support.in_process_sim import in_process_sim
from tests.support.sync_world import letters
from tests.support.virtual_time import VirtualClock

from postroom.accounts.budget import DatabaseBudget
from postroom.accounts.store import NewAccount, add_account
from postroom.db import connect
from postroom.gmail.limiter import limiter_for
from postroom.gmail.quota import PROFILES, Method, ProfileName
from postroom.settings import SyncSettings
from postroom.sync.account_sync import account_sync

_LAST_MAIL = datetime(2025, 12, 30, tzinfo=UTC)
_BEYOND = 1.2
"""More mail than the quota can fetch in the time, so that there is always something to do."""


@dataclass(frozen=True, slots=True)
class SyncQuotaUse:
    profile: str
    minutes: int
    share_used: float
    share_throttled: float
    messages_per_second: float


def sync_quota_use(name: ProfileName, minutes: int) -> SyncQuotaUse:
    return virtual_time.run(_measured(name, minutes))


async def _measured(name: ProfileName, minutes: int) -> SyncQuotaUse:
    profile, clock = PROFILES[name], VirtualClock()
    fetchable = profile.units_per_minute // profile.cost(Method.MESSAGES_GET) * minutes
    source = letters(int(fetchable * _BEYOND), apart_s=600, until=_LAST_MAIL)
    sim = in_process_sim(source, profile, clock)
    with tempfile.TemporaryDirectory() as folder:
        database = await connect(f"sqlite:///{folder}/postroom.db")
        new = NewAccount(source.email, "http://127.0.0.1", name)
        account = await database.write(lambda tx: add_account(tx, new, clock.now()))
        budget = DatabaseBudget(database, account.id, profile, clock)
        limiter = limiter_for(profile, clock, budget=budget, dice=random.Random(1))
        async with (
            sim.client(limiter, profile) as client,
            opened_store(Path(folder) / "archive", source.email) as store,
        ):
            engine = account_sync(database, account, client, store, SyncSettings(), clock)
            running = asyncio.create_task(engine.run())
            await asyncio.sleep(minutes * 60)
            state, stored = sim.control.state(), engine.progress().stored
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        await database.close()
    return SyncQuotaUse(
        profile=name,
        minutes=minutes,
        share_used=state.units / (profile.units_per_minute * minutes),
        share_throttled=state.throttled / sum(state.calls.values()),
        messages_per_second=stored / (minutes * 60),
    )

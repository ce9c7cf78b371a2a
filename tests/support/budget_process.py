"""A process that leases quota units as fast as it can until none are left, and prints what it got."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace

from postroom.accounts.access import DatabaseBudget
from postroom.db import connect
from postroom.domain.clock import SystemClock
from postroom.mailboxes.gmail.quota import PROFILES, ProfileName
from postroom.mailboxes.ports import PriorityLane

ALLOWANCE = 500
SMALL = replace(PROFILES[ProfileName.LEGACY], units_per_minute=ALLOWANCE)


async def spend(url: str, account_id: str) -> int:
    database = await connect(url)
    budget = DatabaseBudget(database, account_id, SMALL, SystemClock())
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    spent = 0
    while granted := (await budget.lease(5, PriorityLane.USER_ACTION)).units:
        spent += granted
    await database.close()
    return spent


if __name__ == "__main__":
    print(asyncio.run(spend(*sys.argv[1:])), flush=True)

"""All accounts with what the archive holds of each: files are looked at on a thread, the rest in one transaction."""

from __future__ import annotations

import asyncio

from postroom.dashboard.reading.archive import Holdings, accounts, files_of, holdings
from postroom.dashboard.visit import Visit


async def all_holdings(here: Visit) -> list[Holdings]:
    place = here.app.archive.place
    known = await here.read(accounts)
    files = await asyncio.to_thread(lambda: [files_of(place, account.email) for account in known])
    return await here.read(
        lambda tx: [holdings(tx, account, each, here.now) for account, each in zip(known, files, strict=True)]
    )

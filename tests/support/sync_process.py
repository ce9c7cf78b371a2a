"""A sync as a process of its own, to be killed: `python -m tests.support.sync_process` and one JSON object.

Its log, at level info, goes to standard error; it ends with 0 when everything is there.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from pathlib import Path

from postroom.accounts.store import NewAccount, add_account
from postroom.db import connect
from postroom.domain.clock import SystemClock
from postroom.gmail.client import connected
from postroom.gmail.limiter import limiter_for
from postroom.gmail.transport import TransportConfig
from postroom.sync.account_sync import account_sync
from postroom.telemetry import logs
from tests.support.archives import opened_store
from tests.support.gmail_client import UNHURRIED, FixedToken
from tests.support.sync_world import settings_with


async def sync(folder: Path, url: str, token: str, email: str, settings: dict[str, object]) -> None:
    clock = SystemClock()
    database = await connect(f"sqlite:///{folder / 'postroom.db'}")
    try:
        account = await database.write(lambda tx: add_account(tx, NewAccount(email, url), clock.now()))
        limiter = limiter_for(None, clock, tuning=UNHURRIED, dice=random.Random(1))
        async with (
            connected(FixedToken(token), limiter, clock, config=TransportConfig(api_base=url, read_s=20)) as client,
            opened_store(folder / "archive", email) as store,
        ):
            engine = account_sync(database, account, client, store, settings_with(**settings), clock)
            await engine.run(once=True)
    finally:
        await database.close()


if __name__ == "__main__":
    task = json.loads(sys.argv[1])
    logs.configure(level="info", format="json")
    asyncio.run(sync(Path(task["folder"]), task["url"], task["token"], task["email"], task["settings"]))

"""A process that records what it found for one source of a run: `python -m tests.support.finder_process ARGUMENTS`.

It says when it is ready and begins when it is told to, so that several begin together.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from postroom.db import connect
from postroom.settings import DatabaseSettings
from postroom.telemetry import logs
from postroom.websources import runs
from postroom.websources.recording import RunLog, Seen
from postroom.websources.routes import Found, Place
from tests.support.web_sources import make_web


async def find(url: str, home: Path, run_id: str, slug: str, many: int) -> None:
    database = await connect(url, DatabaseSettings(synchronous="normal"))
    web = make_web(database, home)
    run = await database.read(lambda tx: runs.find(tx, run_id))
    source = web.sources()[slug]
    settings = web.settings
    log = RunLog(web.queue, settings.web, settings.backfill, run, source, source.endpoint[0], Seen(), lambda run: None)
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    fresh = 0
    for start in range(0, many, 7):
        items = [Found(f"http://127.0.0.1/{n}", f"http://127.0.0.1/{n}") for n in range(start, min(start + 7, many))]
        noted = await log.found(Place(page=start + 1, url=items[-1].url), items)
        fresh += noted.fresh
        if noted.stop is not None:
            break
    print(fresh, flush=True)
    await database.close()


if __name__ == "__main__":
    logs.configure(level="error")
    asyncio.run(find(sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4], int(sys.argv[5])))

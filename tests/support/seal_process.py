"""A sealer in a process of its own, for tests that kill it: `python -m tests.support.seal_process URL HOME`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from postroom.audit.chain import KeyRing
from postroom.audit.heads import HeadsFile
from postroom.audit.sealing import Sealer
from postroom.db import connect
from postroom.domain.clock import SystemClock
from postroom.vault import Vault


async def main(url: str, home: Path) -> None:
    database = await connect(url)
    sealer = Sealer(database, KeyRing(Vault(home)), HeadsFile(home / "archive"), SystemClock())
    async with sealer.running():
        print("sealing", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))

"""A process that opens a database, which upgrades it, and kills itself at a given step of that.

`python -m tests.support.killed_upgrade URL STEP`: a step is a statement or a commit. Without reaching STEP it ends well
and prints how many steps there were.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import Engine

from postroom.db import connect


def main(url: str, last: int) -> None:
    steps = 0

    def count(*arguments: Any) -> None:
        nonlocal steps
        steps += 1
        if steps == last:
            os.kill(os.getpid(), signal.SIGKILL)

    event.listen(Engine, "before_cursor_execute", count)
    event.listen(Engine, "commit", count)

    async def upgrade() -> None:
        database = await connect(url)
        await database.close()

    asyncio.run(upgrade())
    print(steps)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

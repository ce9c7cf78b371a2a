"""Orders for a worker that dies where it is told to (`mortal_worker.py`), and what came of them."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.processes import environment

LATER_S = 3_600.0
"""Longer than any lease and any pause before another attempt."""
_MOST_LINES = 1 << 20


@dataclass(frozen=True)
class Life:
    """One run of the worker: all its steps, and whether it died at the last of them."""

    killed: bool
    steps: tuple[str, ...]


class MortalWorker:
    def __init__(self, process: asyncio.subprocess.Process, folder: Path) -> None:
        self._process = process
        self._log = folder / "mortal.log"

    async def live(self, variables: Mapping[str, str], *, die_at: int | None = None, ahead_s: float = 0.0) -> Life:
        """Work until nothing is left to do, or until the step of that number, counted from one."""
        order = {"variables": dict(variables), "die_at": die_at, "ahead_s": ahead_s, "log": str(self._log)}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        await self._process.stdin.drain()
        told = json.loads(await self._process.stdout.readline())
        assert not told["failed"], self._log.read_text("utf-8")[-4_000:]
        return Life(told["killed"], tuple(told["steps"]))

    async def recover(self, variables: Mapping[str, str], times: int = 3) -> None:
        """Work on as long as it takes, each time later than before, as others would after a crash."""
        for number in range(1, times + 1):
            await self.live(variables, ahead_s=number * LATER_S)


@asynccontextmanager
async def mortal_worker(folder: Path) -> AsyncIterator[MortalWorker]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.support.mortal_worker",
        env=environment(folder, {"PYTHONPATH": os.pathsep.join(sys.path)}),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=_MOST_LINES,
    )
    try:
        yield MortalWorker(process, folder)
    finally:
        process.kill()
        await process.wait()

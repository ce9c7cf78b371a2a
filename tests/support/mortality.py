"""Orders for a worker that dies where it is told to (`mortal_worker.py`), and what came of them."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.processes import environment


@dataclass(frozen=True)
class Life:
    """One run of the worker: all its steps, and whether it died at the last of them."""

    killed: bool
    steps: tuple[str, ...]


class MortalWorker:
    """Serves tests of any event loop, one after the other."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path) -> None:
        self._process = process
        self._log = folder / "mortal.log"

    async def live(self, variables: Mapping[str, str], *, die_at: int | None = None, ahead_s: float = 0.0) -> Life:
        """Work until nothing is left to do, or until the step of that number, counted from one."""
        order = {"variables": dict(variables), "die_at": die_at, "ahead_s": ahead_s, "log": str(self._log)}
        told = await asyncio.to_thread(self._ask, order)
        assert not told["failed"], self._log.read_text("utf-8")[-4_000:]
        return Life(told["killed"], tuple(told["steps"]))

    def _ask(self, order: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        told: dict[str, Any] = json.loads(self._process.stdout.readline())
        return told


@contextmanager
def mortal_worker(folder: Path) -> Iterator[MortalWorker]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.mortal_worker"],
        env=environment(folder, {"PYTHONPATH": os.pathsep.join(sys.path)}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        yield MortalWorker(process, folder)
    finally:
        process.kill()
        process.communicate()

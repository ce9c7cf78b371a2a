"""The event loop that every Postroom process runs on: uvloop where it exists; it halves what a job costs the loop."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_YOUNG_OBJECTS = 10_000
"""Python looks for dead cycles after so many new objects. Its own default, 700, comes several times in every batch of
work: up to a third of what a job costs went there, for nothing, because what a job leaves behind frees itself."""


def run(main: Coroutine[Any, Any, T]) -> T:
    gc.set_threshold(_YOUNG_OBJECTS, 10, 10)
    if sys.platform == "win32":
        return asyncio.run(main)
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)

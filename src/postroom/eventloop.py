"""The event loop that every Postroom process runs on: uvloop where it exists; it halves what a job costs the loop.

A process that runs on it leaves no core dump.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_YOUNG_OBJECTS = 10_000
"""Python looks for dead cycles after so many new objects. Its own default, 700, comes several times in every batch of
work: up to a third of what a job costs went there, for nothing, because what a job leaves behind frees itself."""


_PR_SET_DUMPABLE = 4


def forbid_core_dumps() -> None:
    """Mail and keys in memory stay there: no core file, and no other process of this user may look in."""
    if sys.platform == "win32":
        return
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


_M_ARENA_MAX = -8
_ARENAS = 2


def share_heaps() -> None:
    """Let all threads allocate from the same two heaps. By default glibc gives each a heap of its own, up to eight for
    each processor, and what one has freed is of no use to the others: that took 140 MB of a large first sync's 470."""
    if sys.platform == "linux" and (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)):
        mallopt(_M_ARENA_MAX, _ARENAS)


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run to the end, in a process that is protected first."""
    forbid_core_dumps()
    share_heaps()
    gc.freeze()  # what was imported stays, and need not be looked through
    gc.set_threshold(_YOUNG_OBJECTS, 10, 10)
    if sys.platform == "win32":
        return asyncio.run(main)
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)

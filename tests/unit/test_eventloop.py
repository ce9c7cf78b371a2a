"""What all processes have in common: their loop, and how seldom Python interrupts their work."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from postroom import eventloop


async def collections_in_a_batch() -> int:
    """So many jobs at once as a large worker has make a few thousand objects, which are all gone soon after."""
    gc.collect()
    before = collections()
    batch = [[number] for number in range(5_000)]
    del batch
    return collections() - before


def collections() -> int:
    return sum(int(generation["collections"]) for generation in gc.get_stats())


def test_a_batch_of_work_is_over_before_python_looks_for_dead_cycles() -> None:
    thresholds = gc.get_threshold()
    try:
        assert eventloop.run(collections_in_a_batch()) == 0
    finally:
        gc.set_threshold(*thresholds)


@pytest.mark.req("HW-3")
@pytest.mark.skipif(sys.platform != "linux", reason="what the kernel would dump is asked of Linux")
def test_a_process_of_ours_leaves_no_core_dump() -> None:
    ask = """
import ctypes, resource
from postroom import eventloop
async def main(): return resource.getrlimit(resource.RLIMIT_CORE), ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)
print(eventloop.run(main()))
"""
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "((0, 0), 0)"

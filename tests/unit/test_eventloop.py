"""What all processes have in common: their loop, and how seldom Python interrupts their work."""

from __future__ import annotations

import gc
import platform
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


async def frozen() -> int:
    return gc.get_freeze_count()


def test_what_is_there_before_a_loop_runs_is_not_looked_through_again() -> None:
    thresholds = gc.get_threshold()
    imported = [[number] for number in range(5_000)]
    before = gc.get_freeze_count()
    try:
        assert eventloop.run(frozen()) >= before + len(imported)
    finally:
        gc.set_threshold(*thresholds)


def test_a_batch_of_work_is_over_before_python_looks_for_dead_cycles() -> None:
    thresholds = gc.get_threshold()
    try:
        assert eventloop.run(collections_in_a_batch()) == 0
    finally:
        gc.set_threshold(*thresholds)


def test_a_command_ends_without_looking_through_all_that_it_imported() -> None:
    """Python looks for dead cycles once more before it ends, in whatever is not frozen by then."""
    look = """
import atexit, gc, sys
atexit.register(lambda: print(len(gc.get_objects()), gc.get_freeze_count()))  # the last to run
from postroom.cli.main import run
sys.argv = ["postroom", "--version"]
run()
"""
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    looked_through, frozen = map(int, done.stdout.split()[-2:])
    assert looked_through < 100 < frozen


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


_THREADS_THAT_ALLOCATE = """
import ctypes, threading
from postroom import eventloop

async def heaps():
    allocate, meet = ctypes.CDLL(None).malloc, threading.Barrier(8)
    def work():
        meet.wait()
        for _ in range(100):
            allocate(10_000)
        meet.wait()
    threads = [threading.Thread(target=work) for _ in range(8)]
    for each in threads: each.start()
    for each in threads: each.join()
    ctypes.CDLL(None).malloc_stats()

eventloop.run(heaps())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc" or sys.maxsize < 2**32, reason="how a 64-bit glibc allocates")
def test_threads_share_two_heaps() -> None:
    done = subprocess.run([sys.executable, "-c", _THREADS_THAT_ALLOCATE], capture_output=True, text=True, check=True)
    assert done.stderr.count("Arena ") == 2

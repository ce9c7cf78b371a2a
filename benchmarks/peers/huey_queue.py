"""huey on SQLite. It has no batches, and forgets a job when it starts it: one write where a lease needs two."""

from __future__ import annotations

import logging
import multiprocessing
import sqlite3
import time
from collections.abc import Mapping
from typing import Any

from huey import SqliteHuey
from huey.storage import SqliteStorage

from benchmarks.queue_contract import Load, Measure, Stopwatch, Store

_LOOK_EVERY_S = 0.002


class _NormalStorage(SqliteStorage):  # type: ignore[misc]  # huey has no types
    """huey's `fsync` knows only OFF and FULL; this is the same storage at NORMAL."""

    def _create_connection(self) -> sqlite3.Connection:
        connection: sqlite3.Connection = super()._create_connection()
        connection.execute("PRAGMA synchronous=NORMAL")
        return connection


def throughput(store: Store, load: Load, options: Mapping[str, int]) -> dict[Measure, float]:
    logging.getLogger("huey").setLevel(logging.ERROR)
    durability: dict[str, Any] = {"fsync": True} if store.synchronous == "full" else {"storage_class": _NormalStorage}
    huey = SqliteHuey("bench", filename=store.sqlite_path, results=False, **durability)
    done = multiprocessing.Value("q", 0)

    def noop(n: int) -> None:
        with done.get_lock():
            done.value += 1

    enqueue = huey.task()(noop)
    watch = Stopwatch()
    with watch.time(Measure.ENQUEUE_SINGLE, load.total):
        for number in range(load.total):
            enqueue(number)
    kind = "process" if options.get("processes") else "thread"
    workers = options.get("processes") or options.get("threads", 1)
    consumer = huey.create_consumer(workers=workers, worker_type=kind, periodic=False, initial_delay=0.01)
    with watch.time(Measure.DRAIN, load.total):
        consumer.start()
        while done.value < load.total:
            time.sleep(_LOOK_EVERY_S)
    consumer.stop(graceful=True)
    return watch.rates

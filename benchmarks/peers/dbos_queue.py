"""dbos on SQLite and PostgreSQL: each job is a workflow, enqueued one by one and run from a durable queue."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from dbos import DBOS
from sqlalchemy import Engine, event

from benchmarks.queue_contract import Load, Measure, Stopwatch, Store, check_all_done

_LOOK_EVERY_S = 0.05
_QUEUE = "bench"


def throughput(store: Store, load: Load, options: Mapping[str, int]) -> dict[Measure, float]:
    if store.url.startswith("sqlite"):
        _set_durability(store.synchronous)
    DBOS(
        config={
            "name": "bench",
            "system_database_url": store.url,
            "log_level": "ERROR",
            "max_executor_threads": options.get("threads", 16),
            "use_listen_notify": False,  # its queue polls in any case
        }
    )

    started: list[float] = []

    def noop(n: int) -> None:
        started.append(time.perf_counter())

    workflow: Any = DBOS.workflow()(noop)
    watch = Stopwatch()
    DBOS.launch()
    try:
        # The queue is registered after the enqueues: until then it is not served.
        with watch.time(Measure.ENQUEUE_SINGLE, load.total):
            for number in range(load.total):
                DBOS.enqueue_workflow(_QUEUE, workflow, number)
        DBOS.register_queue(_QUEUE, polling_interval_sec=0.01)
        while DBOS.list_workflows(status=["ENQUEUED", "PENDING"], limit=1, load_input=False, load_output=False):
            time.sleep(_LOOK_EVERY_S)
        # It takes up to a second to notice a new queue; that is no part of its speed.
        watch.record(Measure.DRAIN, load.total, time.perf_counter() - started[0])
        check_all_done(len(started), load.total)
    finally:
        DBOS.destroy()
    return watch.rates


def _set_durability(synchronous: str) -> None:
    """dbos leaves SQLite at its defaults; WAL is faster, and the level is the one that all contenders have."""

    @event.listens_for(Engine, "connect")
    def configure(connection: Any, record: Any) -> None:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute(f"PRAGMA synchronous={synchronous}")

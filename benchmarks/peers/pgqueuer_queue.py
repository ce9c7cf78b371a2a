"""pgqueuer on PostgreSQL, all its tables logged, on the event loop that its own command line uses."""

from __future__ import annotations

import json
from collections.abc import Mapping

import asyncpg
import uvloop
from pgqueuer import AsyncpgDriver, Queries, QueueManager
from pgqueuer.models import Job
from pgqueuer.types import QueueExecutionMode

from benchmarks.queue_contract import Load, Measure, Stopwatch, Store, batches, check_all_done

_SUCCESSFUL = "SELECT count(*) FROM pgqueuer_log WHERE status = 'successful'"


def throughput(store: Store, load: Load, options: Mapping[str, int]) -> dict[Measure, float]:
    return uvloop.run(_throughput(store, load, options.get("batch_size", 100)))


async def _throughput(store: Store, load: Load, batch_size: int) -> dict[Measure, float]:
    watch = Stopwatch()
    connection = await asyncpg.connect(store.url)
    try:
        manager = QueueManager(Queries(AsyncpgDriver(connection)))
        await manager.queries.install()

        async def noop(job: Job) -> None:
            json.loads(job.payload or b"null")

        manager.entrypoint("noop")(noop)
        with watch.time(Measure.ENQUEUE_SINGLE, load.single):
            for number in range(load.single):
                await manager.queries.enqueue("noop", _payload(number))
        with watch.time(Measure.ENQUEUE_BATCH, load.batched):
            for batch in batches(load.batched):
                await manager.queries.enqueue(["noop"] * len(batch), [*map(_payload, batch)], [0] * len(batch))
        with watch.time(Measure.DRAIN, load.total):
            await manager.run(batch_size=batch_size, mode=QueueExecutionMode.drain)
        check_all_done(await connection.fetchval(_SUCCESSFUL), load.total)
    finally:
        await connection.close()
    return watch.rates


def _payload(number: int) -> bytes:
    return json.dumps({"n": number}).encode()

"""procrastinate on PostgreSQL: batches going in, one job at a time coming out, on many coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import procrastinate

from benchmarks.queue_contract import Load, Measure, Stopwatch, Store, batches, check_all_done


def throughput(store: Store, load: Load, options: Mapping[str, int]) -> dict[Measure, float]:
    return asyncio.run(_throughput(store, load, options.get("concurrency", 10)))


async def _throughput(store: Store, load: Load, concurrency: int) -> dict[Measure, float]:
    connector = procrastinate.PsycopgConnector(conninfo=store.url, min_size=2, max_size=min(concurrency, 20) + 2)
    app = procrastinate.App(connector=connector)

    async def noop(n: int) -> None:
        return None

    task: Any = app.task(name="noop")(noop)
    watch = Stopwatch()
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        with watch.time(Measure.ENQUEUE_SINGLE, load.single):
            for number in range(load.single):
                await task.defer_async(n=number)
        with watch.time(Measure.ENQUEUE_BATCH, load.batched):
            for batch in batches(load.batched):
                await task.batch_defer_async(*({"n": number} for number in batch))
        with watch.time(Measure.DRAIN, load.total):
            await app.run_worker_async(
                wait=False, concurrency=concurrency, listen_notify=False, install_signal_handlers=False
            )
        done = await app.job_manager.list_jobs_async(status="succeeded")
        check_all_done(len([*done]), load.total)
    return watch.rates

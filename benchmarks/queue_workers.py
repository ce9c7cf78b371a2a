"""Several workers on one PostgreSQL, beside pgqueuer at its best batch size: `python -m benchmarks.queue_workers`.

Every worker is a process. The clock starts when all are connected, and stops when all have found the queue empty. Each
contender's rounds alternate with the other's, and its best setting counts.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from statistics import median
from typing import LiteralString

import psycopg

from benchmarks.databases import Kind, Stores, stores
from benchmarks.queue_contract import Store, batches, check_all_done
from benchmarks.queue_postroom import noop_job, open_queue
from postroom import eventloop
from postroom.queue import JobContext
from postroom.queue.worker import Worker
from postroom.settings import WorkerSettings
from postroom.telemetry import logs

POSTROOM, PEER = "postroom", "pgqueuer"
SETTINGS = {POSTROOM: (250, 500), PEER: (250, 500, 1_000)}
"""How many jobs a worker has at a time."""
WORKERS = (1, 4)
_JOBS = 20_000
_COUNT_DONE: dict[str, LiteralString] = {
    POSTROOM: "SELECT count(*) FROM jobs WHERE state = 'completed'",
    PEER: "SELECT count(*) FROM pgqueuer_log WHERE status = 'successful'",
}


async def _fill_postroom(store: Store, jobs: int) -> None:
    async with open_queue(store) as queue:
        for batch in batches(jobs):
            await queue.enqueue(*map(noop_job, batch))


async def _work_postroom(store: Store, at_a_time: int) -> None:
    async def noop(context: JobContext) -> None:
        return None

    async with open_queue(store) as queue:
        worker = Worker(queue, {"noop": noop}, WorkerSettings(concurrency=at_a_time), until_idle=True)
        await _between_signals(worker.run)


async def _fill_peer(store: Store, jobs: int) -> None:
    import asyncpg
    from pgqueuer import AsyncpgDriver, Queries

    connection = await asyncpg.connect(store.url)
    queries = Queries(AsyncpgDriver(connection))
    await queries.install()
    for batch in batches(jobs):
        payloads: list[bytes | None] = [json.dumps({"n": number}).encode() for number in batch]
        await queries.enqueue(["noop"] * len(batch), payloads, [0] * len(batch))
    await connection.close()


async def _work_peer(store: Store, at_a_time: int) -> None:
    import asyncpg
    from pgqueuer import AsyncpgDriver, Queries, QueueManager
    from pgqueuer.models import Job
    from pgqueuer.types import QueueExecutionMode

    connection = await asyncpg.connect(store.url)
    manager = QueueManager(Queries(AsyncpgDriver(connection)))

    async def noop(job: Job) -> None:
        json.loads(job.payload or b"null")

    manager.entrypoint("noop")(noop)
    await _between_signals(lambda: manager.run(batch_size=at_a_time, mode=QueueExecutionMode.drain))
    await connection.close()


async def _between_signals(work: Callable[[], Awaitable[None]]) -> None:
    """Work when the parent says so, and say when it is done."""
    print("ready", flush=True)
    sys.stdin.readline()
    await work()
    print("done", flush=True)


def drain(places: Stores, contender: str, workers: int, at_a_time: int, jobs: int = _JOBS) -> float:
    """Jobs a second of all workers together."""
    with places.fresh(Kind.POSTGRESQL) as store:
        eventloop.run(_fill_postroom(store, jobs) if contender == POSTROOM else _fill_peer(store, jobs))
        work = [contender, store.url, str(at_a_time)]
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.queue_workers", "--work", *work]
        processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(workers)
        ]
        _expect(processes, "ready")
        started = time.perf_counter()
        for process in processes:
            print(file=process.stdin, flush=True)
        _expect(processes, "done")
        seconds = time.perf_counter() - started
        for process in processes:
            process.communicate()
        with psycopg.connect(store.url) as connection:
            [(done,)] = connection.execute(_COUNT_DONE[contender]).fetchall()
        check_all_done(done, jobs)
    return jobs / seconds


def _expect(processes: list[subprocess.Popen[str]], word: str) -> None:
    for process in processes:
        said = process.stdout.readline().strip() if process.stdout else ""
        if said != word:
            raise SystemExit(f"a worker said {said!r} instead of {word!r}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.queue_workers", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", nargs=3, metavar=("CONTENDER", "URL", "AT_A_TIME"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    logs.configure(level="error")
    if options.work:
        contender, url, at_a_time = options.work
        work = _work_postroom if contender == POSTROOM else _work_peer
        eventloop.run(work(Store(url), int(at_a_time)))
        return
    rates: dict[tuple[int, str, int], list[float]] = {}
    with stores() as places:
        for _ in range(options.rounds):
            for workers in WORKERS:
                for contender, settings in SETTINGS.items():
                    for at_a_time in settings:
                        rate = drain(places, contender, workers, at_a_time)
                        rates.setdefault((workers, contender, at_a_time), []).append(rate)
    for workers in WORKERS:
        best = {name: max(median(rates[workers, name, each]) for each in SETTINGS[name]) for name in SETTINGS}
        ratio = best[POSTROOM] / best[PEER]
        print(
            f"{workers} workers: Postroom {best[POSTROOM]:,.0f} jobs/s, pgqueuer {best[PEER]:,.0f}, ratio {ratio:.2f}"
        )


if __name__ == "__main__":
    main()

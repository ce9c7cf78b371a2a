"""Several workers on one PostgreSQL, beside pgqueuer at its best batch size: `python -m benchmarks.queue_workers`.

Every worker is a process. The clock starts when all are connected, and stops when all have found the queue empty. Each
contender's rounds alternate with the other's, and its best setting counts.

Once more with a transaction held open, as a long report or a forgotten session does: for a minute jobs are worked off
whose dead rows cannot be vacuumed, then a drain is timed; and a drain after the same work without it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import LiteralString

import psycopg
from rich.console import Console

from benchmarks.databases import Kind, Stores, stores
from benchmarks.queue_contract import Store, batches, check_all_done
from benchmarks.queue_postroom import noop_job, open_queue
from benchmarks.report import Verdict, machine_facts, verdict_table
from postroom import eventloop
from postroom.queue import JobContext
from postroom.queue.worker import Worker
from postroom.settings import WorkerSettings
from postroom.telemetry import logs

POSTROOM, PEER = "postroom", "pgqueuer"
SETTINGS = {POSTROOM: (250, 500), PEER: (250, 500, 1_000)}
"""How many jobs a worker has at a time."""
WORKERS = (1, 4)
LEAST_OVER_PEER = 1.5
MOST_BEHIND_ITSELF = 1.3
RESULTS = Path(__file__).parent / "results" / "queue_workers.json"
_JOBS = 20_000
_HELD_S = 60.0
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


@dataclass(frozen=True, slots=True)
class Drain:
    contender: str
    workers: int
    at_a_time: int
    jobs_per_second: float
    held: bool | None = None
    """Where that is compared: whether a transaction was held open."""


def drain(places: Stores, contender: str, workers: int, at_a_time: int, jobs: int = _JOBS) -> Drain:
    """Jobs a second of all workers together."""
    with places.fresh(Kind.POSTGRESQL) as store:
        seconds = _drained(store, contender, workers, at_a_time, jobs)
        _check_done(store, contender, jobs)
    return Drain(contender, workers, at_a_time, jobs / seconds)


def drain_behind_a_transaction(
    places: Stores, at_a_time: int, jobs: int = _JOBS, held_s: float = _HELD_S
) -> Iterator[Drain]:
    """One worker behind a transaction that is open while others work for a minute, and after the same work without."""
    portions = 0
    for held in (True, False):
        with places.fresh(Kind.POSTGRESQL) as store, _held_open(store) if held else nullcontext():
            end, drained = time.monotonic() + held_s, 0
            while time.monotonic() < end if held else drained < portions:
                _drained(store, POSTROOM, 1, at_a_time, jobs)
                drained += 1
            portions = drained
            seconds = _drained(store, POSTROOM, 1, at_a_time, jobs)
            _check_done(store, POSTROOM, jobs * (drained + 1))
        yield Drain(POSTROOM, 1, at_a_time, jobs / seconds, held)


@contextmanager
def _held_open(store: Store) -> Iterator[None]:
    with psycopg.connect(store.url) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT count(*) FROM pg_class")  # takes the snapshot that vacuum has to respect
        yield


def _drained(store: Store, contender: str, workers: int, at_a_time: int, jobs: int) -> float:
    """The seconds that all workers together needed for these jobs, which are enqueued before."""
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
    return seconds


def _check_done(store: Store, contender: str, jobs: int) -> None:
    with psycopg.connect(store.url) as connection:
        [(done,)] = connection.execute(_COUNT_DONE[contender]).fetchall()
    check_all_done(done, jobs)


def _expect(processes: list[subprocess.Popen[str]], word: str) -> None:
    for process in processes:
        said = process.stdout.readline().strip() if process.stdout else ""
        if said != word:
            raise SystemExit(f"a worker said {said!r} instead of {word!r}")


def judge(drains: Sequence[Drain]) -> list[Verdict]:
    verdicts = []
    for workers in dict.fromkeys(each.workers for each in drains if each.held is None):
        ours, theirs = (_best(drains, name, workers) for name in (POSTROOM, PEER))
        over = ours / theirs if ours and theirs else None
        met = None if over is None else over >= LEAST_OVER_PEER
        what, goal = f"PostgreSQL, {_counted(workers)}: drain over {PEER}", f"at least {LEAST_OVER_PEER:g}x"
        verdicts.append(Verdict(what, over, goal, met, ours=ours, peer=PEER, theirs=theirs))
    behind = _best(drains, POSTROOM, 1, held=True)
    alone = _best(drains, POSTROOM, 1, held=False)
    slower = alone / behind if alone and behind else None
    met = None if slower is None else slower <= MOST_BEHIND_ITSELF
    what = "PostgreSQL: drain behind a transaction that was open for a minute, itself without it over it"
    goal = f"at most {MOST_BEHIND_ITSELF:g}x"
    return [*verdicts, Verdict(what, slower, goal, met, ours=behind, peer="without it", theirs=alone)]


def _counted(workers: int) -> str:
    return "1 worker" if workers == 1 else f"{workers} workers"


def _best(drains: Sequence[Drain], contender: str, workers: int, *, held: bool | None = None) -> float | None:
    """The median of the setting that fares best."""
    chosen = [each for each in drains if (each.contender, each.workers, each.held) == (contender, workers, held)]
    settings = {each.at_a_time for each in chosen}
    rates = [[each.jobs_per_second for each in chosen if each.at_a_time == setting] for setting in settings]
    return max(map(median, rates), default=None)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.queue_workers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=_JOBS)
    parser.add_argument("--held", type=float, default=_HELD_S, metavar="SECONDS", help="how long a transaction is open")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--work", nargs=3, metavar=("CONTENDER", "URL", "AT_A_TIME"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    logs.configure(level="error")
    if options.work:
        contender, url, at_a_time = options.work
        work = _work_postroom if contender == POSTROOM else _work_peer
        eventloop.run(work(Store(url), int(at_a_time)))
        return
    drains: list[Drain] = []
    contenders = dict(SETTINGS)
    if find_spec(PEER) is None:
        print(f"{PEER} is not installed (`make bench` installs it): only Postroom is measured", file=sys.stderr)
        del contenders[PEER]
    with stores() as places:
        facts = machine_facts(places.postgresql_version)
        for _ in range(options.rounds):
            for workers in WORKERS:
                for contender, settings in contenders.items():
                    drains += [drain(places, contender, workers, each, options.jobs) for each in settings]
        drains += drain_behind_a_transaction(places, SETTINGS[POSTROOM][-1], options.jobs, options.held)
    verdicts = judge(drains)
    Console(width=max(Console().width, 120)).print(verdict_table(verdicts))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    figures = {"machine": facts, "drains": [asdict(each) for each in drains]}
    options.out.write_text(
        json.dumps(figures | {"goals": [asdict(each) for each in verdicts]}, indent=2, ensure_ascii=False) + "\n"
    )


if __name__ == "__main__":
    main()

"""Measures several workers on one PostgreSQL, with the archive in it: `python -m benchmarks.scale`.

Live mail is delivered while all workers are stopped by a signal. Then they take it in, archive it and decide it, each
with a call to the model stand-in; how many a second, what that costs all of them in CPU, how often a connection was
seen to wait for a lock, and how many connections there were. Both stand-ins are processes of their own.

And the queue alone, with handlers that wait 50 ms for an outside service: one worker, and eight.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import LiteralString

import psycopg
from rich.console import Console
from rich.table import Table
from tests.support.commands import PostroomProcess
from tests.support.deployment import Deployment, deployment

from benchmarks import report
from benchmarks.databases import Kind, Stores, stores
from benchmarks.queue_contract import Store, batches, check_all_done
from benchmarks.queue_postroom import noop_job, open_queue
from benchmarks.report import Verdict
from postroom import eventloop
from postroom.mailboxes.credentials import GrantStore, StaticGrant
from postroom.queue import JobContext
from postroom.queue.worker import Worker
from postroom.settings import WorkerSettings
from postroom.telemetry import logs
from postroom.vault import Vault

RESULTS = Path(__file__).parent / "results" / "scale.json"
WORKERS = (1, 2, 3)
MOST_CPU_MS = 6.0
MOST_LOCK_WAITS, MOST_CONNECTIONS = 3.0, 3.0
"""Of three workers over one: no more than three times as many."""
LEAST_OF_EIGHT = 6.0
_MANY = 8
_WAIT_S = 0.05
_SLOTS = 4
_SAMPLE_S = 0.02
_DELIVERED_AT_ONCE = 16
_TICKS = os.sysconf("SC_CLK_TCK")
_SEEN: LiteralString = """
    SELECT count(*), count(*) FILTER (WHERE wait_event_type = 'Lock') FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"""


@dataclass(frozen=True, slots=True)
class ScaleRun:
    workers: int
    messages: int
    decided_per_second: float
    cpu_ms: float
    """Of all workers together, a message."""
    lock_waits: int
    """Connections that waited for a lock, summed over all samples."""
    samples: int
    connections: int
    """The most that were open at once, the benchmark's own left out."""


@dataclass(frozen=True, slots=True)
class WaitingRun:
    """A queue whose handlers wait for an outside service."""

    workers: int
    jobs_per_second: float


def cpu_s(pid: int) -> float:
    """Of the process, and of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / _TICKS


class Watched:
    """The database, seen from beside."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True)
        self.samples = self.lock_waits = self.connections = 0
        self._others = 0

    def close(self) -> None:
        self._connection.close()

    def leave_out_those_of_now(self) -> None:
        self._others = self._seen()[0]

    def sample(self) -> None:
        connections, waiting = self._seen()
        self.samples += 1
        self.lock_waits += waiting
        self.connections = max(self.connections, connections - self._others)

    def decided(self) -> int:
        [(count,)] = self._connection.execute("SELECT count(*) FROM decisions").fetchall()
        return int(count)

    def is_listening(self) -> bool:
        query = "SELECT 1 FROM history_cursors WHERE history_id IS NOT NULL"
        return bool(self._connection.execute(query).fetchall())

    def _seen(self) -> tuple[int, int]:
        [(connections, waiting)] = self._connection.execute(_SEEN).fetchall()
        return int(connections), int(waiting)


@asynccontextmanager
async def working(place: Deployment, count: int) -> AsyncIterator[list[int]]:
    """So many workers; their process ids."""
    workers = [PostroomProcess("worker", home=place.home, variables=dict(place.variables)) for _ in range(count)]
    try:
        for worker in workers:
            await worker.start()
        yield [worker.process.pid for worker in workers if worker.process is not None]
    finally:
        for worker in workers:
            await worker.kill()


async def decide(url: str, workers: int, messages: int) -> ScaleRun:
    with tempfile.TemporaryDirectory(prefix="postroom-bench-") as folder:
        settings = {
            "POSTROOM_ARCHIVE__STORE": "database",
            "POSTROOM_LEARNING__ENABLED": "false",  # else it decides what it has seen often, without the model
            "POSTROOM_RECURRING__LIVE": "every 1s",
            "POSTROOM_SYNC__RPS_START": "500",
            "POSTROOM_SYNC__RPS_MAX": "500",
        }
        async with deployment(Path(folder), 10, seed=0, url=url, **settings) as place:
            grant = StaticGrant(email=place.gmail.email, api_base=place.gmail.url, access_token=place.gmail.token)
            GrantStore(Vault(place.home)).save(grant)
            watched = Watched(url)
            watched.leave_out_those_of_now()
            async with working(place, workers) as pids:
                await _until(watched.is_listening)
                before = watched.decided()
                _signal(pids, signal.SIGSTOP)
                await _deliver(place, messages)
                cpu, began = sum(map(cpu_s, pids)), time.perf_counter()
                _signal(pids, signal.SIGCONT)
                await _until(lambda: watched.decided() >= before + messages, watched)
                took, cpu = time.perf_counter() - began, sum(map(cpu_s, pids)) - cpu
            watched.close()
    seen = (watched.lock_waits, watched.samples, watched.connections)
    return ScaleRun(workers, messages, messages / took, cpu / messages * 1_000, *seen)


async def _deliver(place: Deployment, count: int) -> None:
    for start in range(0, count, _DELIVERED_AT_ONCE):
        numbers = range(start, min(start + _DELIVERED_AT_ONCE, count))
        await asyncio.gather(*(place.gmail.deliver(f"A question number {number}") for number in numbers))


async def _until(condition: Callable[[], bool], watched: Watched | None = None) -> None:
    async with asyncio.timeout(600):
        while not condition():
            for _ in range(5):
                if watched is not None:
                    watched.sample()
                await asyncio.sleep(_SAMPLE_S)


def _signal(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        os.kill(pid, number)


async def _fill(store: Store, jobs: int) -> None:
    async with open_queue(store) as queue:
        for batch in batches(jobs):
            await queue.enqueue(*map(noop_job, batch))


async def _wait_for_others(store: Store) -> None:
    """A worker whose handlers do nothing but wait; it begins when the parent says so, and says when it is done."""

    async def handler(context: JobContext) -> None:
        await asyncio.sleep(_WAIT_S)

    async with open_queue(store) as queue:
        worker = Worker(queue, {"noop": handler}, WorkerSettings(concurrency=_SLOTS), until_idle=True)
        print("ready", flush=True)
        sys.stdin.readline()
        await worker.run()
        print("done", flush=True)


def waiting_run(places: Stores, workers: int, jobs_each: int) -> WaitingRun:
    with places.fresh(Kind.POSTGRESQL) as store:
        jobs = jobs_each * workers
        eventloop.run(_fill(store, jobs))
        command = [sys.executable, "-m", "benchmarks.scale", "--work", store.url]
        pipe = subprocess.PIPE
        processes = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(workers)]
        _expect(processes, "ready")
        began = time.perf_counter()
        for process in processes:
            print(file=process.stdin, flush=True)
        _expect(processes, "done")
        seconds = time.perf_counter() - began
        for process in processes:
            process.communicate()
        with psycopg.connect(store.url) as connection:
            [(done,)] = connection.execute("SELECT count(*) FROM jobs WHERE state = 'completed'").fetchall()
        check_all_done(done, jobs)
    return WaitingRun(workers, jobs / seconds)


def _expect(processes: Sequence[subprocess.Popen[str]], word: str) -> None:
    for process in processes:
        said = process.stdout.readline().strip() if process.stdout else ""
        if said != word:
            raise RuntimeError(f"a worker said {said!r} instead of {word!r}")


def judge(runs: Sequence[ScaleRun], waiting: Sequence[WaitingRun]) -> list[Verdict]:
    verdicts = []
    for run in runs:
        what, goal = f"CPU of a message with a model call, workers: {run.workers}", f"at most {MOST_CPU_MS:g} ms"
        verdicts.append(Verdict(what, run.cpu_ms, goal, run.cpu_ms <= MOST_CPU_MS, " ms"))
    first, last = runs[0], runs[-1]
    grown = {
        "lock waits seen": (first.lock_waits / first.samples, last.lock_waits / last.samples, MOST_LOCK_WAITS),
        "connections": (float(first.connections), float(last.connections), MOST_CONNECTIONS),
    }
    for what, (before, after, most) in grown.items():
        over = max(after, 1.0) / max(before, 1.0)  # fewer than one connection that waits is as good as none
        shown = f"{what}, {last.workers} workers over {first.workers}"
        verdicts.append(Verdict(shown, over, f"at most {most:g}x", over <= most, ours=after, theirs=before))
    one, many = waiting[0], waiting[-1]
    over = many.jobs_per_second / one.jobs_per_second
    shown = f"handlers that wait 50 ms, {many.workers} workers over one"
    apart = Verdict(
        shown, over, f"at least {LEAST_OF_EIGHT:g}x", over >= LEAST_OF_EIGHT,
        ours=many.jobs_per_second, peer="one worker", theirs=one.jobs_per_second,
    )  # fmt: skip
    return [*verdicts, apart]


def shown(runs: Sequence[ScaleRun]) -> Table:
    columns = ("workers", "decided a second", "CPU of all workers a message, ms", "lock waits seen", "samples")
    table = Table(*columns, "connections")
    for run in runs:
        rate, cpu = f"{run.decided_per_second:.1f}", f"{run.cpu_ms:.1f}"
        table.add_row(str(run.workers), rate, cpu, str(run.lock_waits), str(run.samples), str(run.connections))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scale", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=2_000)
    parser.add_argument("--jobs", type=int, default=400, help="jobs that wait, for each worker")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--work", metavar="URL", help=argparse.SUPPRESS)
    options = parser.parse_args()
    logs.configure(level="error")
    if options.work is not None:
        eventloop.run(_wait_for_others(Store(options.work)))
        return
    runs: list[ScaleRun] = []
    with stores() as places:
        facts = report.machine_facts(places.postgresql_version)
        for workers in WORKERS:
            with places.fresh(Kind.POSTGRESQL) as store:
                runs.append(eventloop.run(decide(store.url, workers, options.messages)))
        waiting = [waiting_run(places, workers, options.jobs) for workers in (1, _MANY)]
    verdicts = judge(runs, waiting)
    console = Console(width=max(Console().width, 120))
    console.print(shown(runs))
    console.print(report.verdict_table(verdicts))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    figures = {"machine": facts, "runs": [asdict(run) for run in runs], "waiting": [asdict(each) for each in waiting]}
    goals = [asdict(verdict) for verdict in verdicts]
    options.out.write_text(json.dumps(figures | {"goals": goals}, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()

"""Who is measured where, with how many jobs and which settings; and the process in which each contender runs, so that
neither imports nor state of one affect another.

As a program it runs one contender: `python -m benchmarks.queue_contenders TASK_JSON`.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

from benchmarks.databases import Kind
from benchmarks.queue_contract import Contender, Load, Measure, Store
from postroom.telemetry import logs

Options = Mapping[str, int]
SQLITE = (Kind.SQLITE_NORMAL, Kind.SQLITE_FULL)

POSTROOM, RAW = "Postroom", "raw loop"


@dataclass(frozen=True, slots=True)
class Entry:
    """One contender. Of several `variants` of its settings, the one that drains fastest is measured."""

    name: str
    function: str  # module:function
    kinds: tuple[Kind, ...]
    load: Load
    variants: tuple[Options, ...] = ({},)
    needs: str | None = None
    slow: bool = False  # measured once, not as a median

    @property
    def is_installed(self) -> bool:
        return self.needs is None or find_spec(self.needs) is not None

    @property
    def is_peer(self) -> bool:
        return self.name not in (POSTROOM, RAW)


_FAST = Load(single=1_000, batched=19_000)

ENTRIES = (
    Entry(POSTROOM, "benchmarks.queue_postroom:throughput", tuple(Kind), _FAST),
    Entry(RAW, "benchmarks.queue_raw_loops:sqlite_loop", SQLITE, _FAST),
    Entry(RAW, "benchmarks.queue_raw_loops:asyncpg_loop", (Kind.POSTGRESQL,), _FAST, needs="asyncpg"),
    Entry(
        "huey",
        "benchmarks.peers.huey_queue:throughput",
        SQLITE,
        Load(single=10_000, batched=0),
        ({"threads": 1}, {"threads": 2}, {"threads": 4}, {"processes": 2}),
        needs="huey",
    ),
    Entry(
        "dbos",
        "benchmarks.peers.dbos_queue:throughput",
        tuple(Kind),
        Load(single=1_500, batched=0),
        ({"threads": 4}, {"threads": 16}, {"threads": 64}),
        needs="dbos",
        slow=True,
    ),
    Entry(
        "procrastinate",
        "benchmarks.peers.procrastinate_queue:throughput",
        (Kind.POSTGRESQL,),
        Load(single=500, batched=1_500),
        ({"concurrency": 10}, {"concurrency": 30}, {"concurrency": 100}),
        needs="procrastinate",
        slow=True,
    ),
    Entry(
        "pgqueuer",
        "benchmarks.peers.pgqueuer_queue:throughput",
        (Kind.POSTGRESQL,),
        _FAST,
        ({"batch_size": 100}, {"batch_size": 250}, {"batch_size": 500}, {"batch_size": 1_000}),
        needs="pgqueuer",
    ),
)


_LAST_LINES = 5


class ContenderFailed(Exception):
    """The contender did not finish; the message says why."""


def run(
    function: str, store: Store, load: Load, options: Mapping[str, int], time_limit_s: float
) -> dict[Measure, float]:
    with tempfile.NamedTemporaryFile("r", suffix=".json") as answer:
        task = {
            "function": function,
            "store": asdict(store),
            "load": asdict(load),
            "options": dict(options),
            "answer": answer.name,
        }
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.queue_contenders", json.dumps(task)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=time_limit_s, check=False)
        except subprocess.TimeoutExpired:
            raise ContenderFailed(f"not done within {time_limit_s:g} s") from None
        if done.returncode:
            reason = " | ".join(done.stderr.strip().splitlines()[-_LAST_LINES:])
            raise ContenderFailed(f"exit code {done.returncode}: {reason}")
        return {Measure(name): rate for name, rate in json.load(answer).items()}


def main(task_json: str) -> None:
    logs.configure(level="warning")
    task = json.loads(task_json)
    module, _, name = task["function"].partition(":")
    contender: Contender = getattr(importlib.import_module(module), name)
    rates = contender(Store(**task["store"]), Load(**task["load"]), task["options"])
    Path(task["answer"]).write_text(json.dumps(rates))


if __name__ == "__main__":
    main(sys.argv[1])

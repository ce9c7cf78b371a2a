"""Who is measured where, with how many jobs, and which of their settings are tried."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec

from benchmarks.contract import Load
from benchmarks.stores import Kind

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
    Entry(POSTROOM, "benchmarks.postroom_queue:throughput", tuple(Kind), _FAST),
    Entry(RAW, "benchmarks.raw_loops:sqlite_loop", SQLITE, _FAST),
    Entry(RAW, "benchmarks.raw_loops:asyncpg_loop", (Kind.POSTGRESQL,), _FAST, needs="asyncpg"),
    Entry(
        "huey",
        "benchmarks.peers_huey:throughput",
        SQLITE,
        Load(single=10_000, batched=0),
        ({"threads": 1}, {"threads": 2}, {"threads": 4}, {"processes": 2}),
        needs="huey",
    ),
    Entry(
        "dbos",
        "benchmarks.peers_dbos:throughput",
        tuple(Kind),
        Load(single=1_500, batched=0),
        ({"threads": 4}, {"threads": 16}, {"threads": 64}),
        needs="dbos",
        slow=True,
    ),
    Entry(
        "procrastinate",
        "benchmarks.peers_procrastinate:throughput",
        (Kind.POSTGRESQL,),
        Load(single=500, batched=1_500),
        ({"concurrency": 10}, {"concurrency": 30}, {"concurrency": 100}),
        needs="procrastinate",
        slow=True,
    ),
    Entry(
        "pgqueuer",
        "benchmarks.peers_pgqueuer:throughput",
        (Kind.POSTGRESQL,),
        _FAST,
        ({"batch_size": 100}, {"batch_size": 250}, {"batch_size": 500}, {"batch_size": 1_000}),
        needs="pgqueuer",
    ),
)

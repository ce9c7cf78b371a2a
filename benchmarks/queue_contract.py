"""What every contender of the queue benchmark does: enqueue jobs, work them off, and report how fast that was."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

BATCH = 1_000


class Measure(StrEnum):
    ENQUEUE_SINGLE = "enqueue one by one, jobs/s"
    ENQUEUE_CALLERS = "enqueue one by one from 16 callers, jobs/s"
    ENQUEUE_BATCH = "enqueue in batches, jobs/s"
    DRAIN = "drain, jobs/s"


@dataclass(frozen=True, slots=True)
class Store:
    """An empty database: a SQLite file at a synchronous level, or a database of a PostgreSQL server."""

    url: str
    synchronous: str = "full"

    @property
    def sqlite_path(self) -> str:
        return self.url.removeprefix("sqlite:///")


@dataclass(frozen=True, slots=True)
class Load:
    """How many jobs go in one by one, and how many in batches where the contender has batches."""

    single: int
    batched: int

    @property
    def total(self) -> int:
        return self.single + self.batched


@dataclass(slots=True)
class Stopwatch:
    """Collects rates: jobs a second for each thing that was timed."""

    rates: dict[Measure, float] = field(default_factory=dict)

    @contextmanager
    def time(self, measure: Measure, jobs: int) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.record(measure, jobs, time.perf_counter() - start)

    def record(self, measure: Measure, jobs: int, seconds: float) -> None:
        if jobs:
            self.rates[measure] = jobs / seconds


class Contender(Protocol):
    def __call__(self, store: Store, load: Load, options: Mapping[str, int]) -> dict[Measure, float]: ...


def check_all_done(done: int | None, expected: int) -> None:
    """A fast queue that leaves jobs behind is not fast."""
    if done != expected:
        raise RuntimeError(f"{done} of {expected} jobs were completed")


def batches(count: int, size: int = BATCH) -> Iterator[range]:
    for start in range(0, count, size):
        yield range(start, min(start + size, count))

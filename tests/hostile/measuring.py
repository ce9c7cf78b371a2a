"""Reads hostile items in forked children and measures what each costs.

The process that forks has imported every reader, so a child starts at once. A child reads item after item, and tells
what each cost; one that takes far too long or too much memory is ended by its limits, is a fault of that item, and the
next child goes on behind it. Processor time counts, never the clock on the wall. `python -m tests.hostile.measuring`
takes a line of JSON (names of kinds) on standard input and answers with a line of JSON (the faults of each).

Of each kind the item at 2n is read; where that took long enough to be worth comparing, the one at n as well. Growth
that looks worse than linear is measured again with other bytes of about the same size: the first item that a child
reads also pays for what its reader makes on first use (the compiled patterns of `triage.signs` take 0.15 s), and a
busy machine inflates processor time too.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from postroom.domain.errors import PostroomError
from tests.hostile.corpus import Kind, corpus
from tests.hostile.readers import MB, READERS, Reader

SLACK = 3.0
"""Machines differ; the bound on processor time is multiplied by this."""
WORTH_COMPARING = 0.15
"""Seconds of processor time below which growth is lost in noise."""
MOST_GROWTH = 3.0
"""From n to 2n: twice as much is linear, four times is quadratic."""
MEASURED_AGAIN = 2
"""How often growth that looks worse than linear is measured again; only what is so every time is a fault."""
SIZE = 64 << 10
SIZES = {"page": 20 << 10, "rules_yaml": 20 << 10}
"""Bytes of the smaller item; less for what takes long for any input."""

Item = tuple[Kind, str]


@dataclass(frozen=True)
class Cost:
    """What reading one item cost."""

    size: int
    seconds: float
    memory: int
    """Bytes by which the child grew at its largest."""
    problem: str | None = None


@dataclass(frozen=True)
class Costs:
    """Those of one kind."""

    large: Cost
    """At 2n."""
    single: Cost | None = None
    """At n, where `large` took long enough to be compared."""
    again: Cost | None = None
    """At a little more than 2n, the cheapest reading, where `large` looks worse than linear."""


def faults_of(items: Sequence[Item], size: int | None = None) -> dict[str, list[str]]:
    """What is wrong with each, by `kind, reader`; nothing of those with which all is well."""
    found: dict[str, list[str]] = {}
    for (kind, reader), costs in zip(items, costs_of(items, size), strict=True):
        measured = [cost for cost in (costs.large, costs.single, costs.again) if cost is not None]
        faults = [fault for cost in measured for fault in _faults(READERS[reader], cost)]
        if costs.single is not None:
            faults += _growth(costs.single, costs.again or costs.large)
        if faults:
            found[f"{kind.name}, {reader}"] = faults
    return found


def _faults(reader: Reader, cost: Cost) -> list[str]:
    faults = [] if cost.problem is None else [f"{cost.size:,} bytes: {cost.problem}"]
    if cost.seconds > SLACK * reader.seconds_for(cost.size):
        faults.append(f"{cost.size:,} bytes cost {cost.seconds:.2f} s of processor time")
    if cost.memory > reader.memory_for(cost.size):
        faults.append(f"{cost.size:,} bytes cost {cost.memory / MB:.0f} MB of memory")
    return faults


def _growth(single: Cost, large: Cost) -> list[str]:
    if large.size < 1.5 * single.size or large.seconds <= MOST_GROWTH * single.seconds + WORTH_COMPARING:
        return []
    grown = f"{single.size:,} bytes cost {single.seconds:.2f} s of processor time, {large.size:,} {large.seconds:.2f} s"
    return [f"not linear: {grown}"]


def costs_of(items: Sequence[Item], size: int | None = None) -> Iterator[Costs]:
    """In the order of the items."""
    position = 0
    while position < len(items):
        for costs in _in_a_child(items[position:], size):
            position += 1
            yield costs


def _in_a_child(items: Sequence[Item], size: int | None) -> Iterator[Costs]:
    """Until all are read, or one of them ends the child."""
    receiving, sending = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(receiving)
        _read_all(items, size, sending)
    os.close(sending)
    told = 0
    with os.fdopen(receiving, "rb") as pipe:
        for line in pipe:
            told += 1
            yield Costs(**{name: cost and Cost(**cost) for name, cost in json.loads(line).items()})
    _, status, _ = os.wait4(child, 0)
    if told < len(items):
        why = signal.Signals(status).name if os.WIFSIGNALED(status) else f"code {status}"
        yield Costs(Cost(0, 0.0, 0, f"ended the process that read it ({why})"))


def _read_all(items: Iterable[Item], size: int | None, sending: int) -> None:
    """In the child, which ends without a word."""
    for kind, name in items:
        costs = _costs(kind, READERS[name], size or SIZES.get(name, SIZE))
        os.write(sending, json.dumps(asdict(costs)).encode() + b"\n")
    os._exit(0)


def _costs(kind: Kind, reader: Reader, small: int) -> Costs:
    large = _cost(reader, kind.doubled(small))
    if reader.is_apart or large.seconds <= WORTH_COMPARING or large.problem is not None:
        return Costs(large)
    single = _cost(reader, kind.sized(small))
    again: Cost | None = None
    for attempt in range(1, MEASURED_AGAIN + 1):
        if not _growth(single, again or large):
            break
        other = _cost(reader, kind.doubled(small + attempt * small // 64))
        again = other if again is None else min(again, other, key=lambda cost: cost.seconds)
    return Costs(large, single, again)


def _cost(reader: Reader, data: bytes) -> Cost:
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here on
    before = _status("VmHWM")
    _limit(reader, len(data))
    started = time.process_time()
    problem = _problem_of(reader, data)
    seconds = time.process_time() - started
    signal.setitimer(signal.ITIMER_PROF, 0)
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))  # the next item is made
    return Cost(len(data), seconds, _status("VmHWM") - before, problem)


def _problem_of(reader: Reader, data: bytes) -> str | None:
    try:
        reader.read(data)
    except PostroomError:
        return None
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)[-3:]
        where = " < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in reversed(frames))
        return f"{type(error).__name__}: {str(error)[:120]} ({where})"
    return None


def _limit(reader: Reader, size: int) -> None:
    """From now on: the bound and a little more, so that a fault is seen and not only suffered."""
    seconds, room = 0.0, resource.RLIM_INFINITY
    if not reader.is_apart:  # else what it starts would inherit the limits
        seconds = SLACK * reader.seconds_for(size) + 1
        room = _status("VmSize") + int(reader.memory_for(size)) + 100 * MB
    # Counts from now on, where RLIMIT_CPU would count from the start, and in ticks that drift from the true time.
    signal.setitimer(signal.ITIMER_PROF, seconds)
    resource.setrlimit(resource.RLIMIT_AS, (room, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1_024
    raise LookupError(field)


def main() -> None:
    answering = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what is read, or reads, may print
    kinds = corpus()
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        asked = json.loads(line)
        items = [
            (kind, reader)
            for kind in map(kinds.__getitem__, asked["kinds"])
            for reader in asked.get("readers") or kind.readers
        ]
        print(json.dumps(faults_of(items, asked.get("size"))), file=answering, flush=True)


if __name__ == "__main__":
    main()

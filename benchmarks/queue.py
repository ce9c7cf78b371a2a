"""Measures the queue beside its peers, on SQLite and PostgreSQL, at equal durability: `python -m benchmarks.queue`.

Ratios within one run are what counts: the runs of all contenders alternate, so that noise hits all alike. A missed goal
is said plainly and is not an error: this is a measurement, not a test.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, TaskID

from benchmarks import queue_contenders, report
from benchmarks.databases import Kind, Stores, stores
from benchmarks.queue_contenders import ENTRIES, Entry, Options
from benchmarks.queue_contract import Load, Measure
from benchmarks.queue_postroom import ClaimCost, Level, latency, measure_claim_cost
from benchmarks.report import Figures, Latency, Verdict, judge_queue
from postroom.telemetry import logs

RESULTS = Path(__file__).parent / "results" / "queue.json"
_CLAIM_KINDS = (Kind.SQLITE_FULL, Kind.POSTGRESQL)


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured."""

    rounds: int
    share_of_load: float
    levels: tuple[Level, ...]
    samples: int
    time_limit_s: float = 120.0

    def load(self, entry: Entry, share: float = 1.0) -> Load:
        share *= self.share_of_load
        return Load(int(entry.load.single * share), int(entry.load.batched * share))


def _levels(scheduled: Sequence[int], finished: Sequence[int]) -> tuple[Level, ...]:
    return (*(Level(scheduled=count) for count in scheduled), *(Level(finished=count) for count in finished))


FULL = Scale(3, 1.0, _levels([0, 1_000, 10_000, 100_000], [10_000, 100_000, 1_000_000]), samples=100)
QUICK = Scale(1, 0.1, _levels([0, 1_000, 10_000], [1_000, 10_000]), samples=20)


class ThroughputRun:
    """All contenders on one database: settings are tried first, then the measured rounds alternate."""

    def __init__(self, places: Stores, kind: Kind, scale: Scale, progress: Progress) -> None:
        self._places = places
        self._kind = kind
        self._scale = scale
        self._progress = progress
        self._entries = [entry for entry in ENTRIES if kind in entry.kinds]
        self._figures = {entry.name: Figures(entry.name, kind) for entry in self._entries}

    def run(self) -> list[Figures]:
        tried = sum(len(entry.variants) for entry in self._entries if len(entry.variants) > 1)
        runs = tried + sum(1 if entry.slow else self._scale.rounds for entry in self._entries)
        bar = self._progress.add_task(self._kind, total=runs)
        for entry in self._entries:
            if not entry.is_installed:
                self._figures[entry.name].failure = f"not installed ({entry.needs}); `make bench` installs it"
            elif len(entry.variants) > 1:
                self._choose_variant(entry, bar)
            else:
                self._figures[entry.name].options = dict(entry.variants[0])
        for number in range(self._scale.rounds):
            for entry in self._entries:
                if not (entry.slow and number):
                    self._attempt(entry, self._figures[entry.name].options, 1.0, bar, keep=True)
        return list(self._figures.values())

    def _choose_variant(self, entry: Entry, bar: TaskID) -> None:
        drains = [(self._attempt(entry, variant, 0.5, bar, keep=False), variant) for variant in entry.variants]
        self._figures[entry.name].options = dict(max(drains, key=lambda drain: drain[0])[1])

    def _attempt(self, entry: Entry, options: Options, share: float, bar: TaskID, *, keep: bool) -> float:
        """One run in a child process on a fresh database; returns its drain rate, 0 if it failed."""
        figures = self._figures[entry.name]
        self._progress.update(bar, description=f"{self._kind}: {entry.name}")
        rates: dict[Measure, float] = {}
        if figures.failure is None:
            try:
                with self._places.fresh(self._kind) as store:
                    load = self._scale.load(entry, share)
                    rates = queue_contenders.run(entry.function, store, load, options, self._scale.time_limit_s)
            except queue_contenders.ContenderFailed as error:
                # While settings are tried, one that does not work is simply not the best.
                figures.failure = str(error) if keep else None
        if keep:
            figures.add(rates)
        self._progress.advance(bar)
        return rates.get(Measure.DRAIN, 0.0)


def measure_claims(places: Stores, kind: Kind, scale: Scale) -> list[ClaimCost]:
    with ExitStack() as stack:
        filled = [(level, stack.enter_context(places.fresh(kind))) for level in scale.levels]
        return asyncio.run(measure_claim_cost(filled, scale.samples))


def measure_latency(places: Stores, kind: Kind, scale: Scale) -> Latency:
    with places.fresh(kind) as store:
        return Latency.of(kind, latency(store, scale.samples))


def run(scale: Scale, console: Console, results: Path) -> None:
    figures: list[Figures] = []
    claims: dict[Kind, list[ClaimCost]] = {}
    latencies: list[Latency] = []
    with stores() as places:
        facts = report.machine_facts(places.postgresql_version)
        with Progress(console=console, transient=True) as progress:
            for kind in Kind:
                figures += ThroughputRun(places, kind, scale, progress).run()
            bar = progress.add_task("claims and latency", total=2 * len(_CLAIM_KINDS))
            for kind in _CLAIM_KINDS:
                claims[kind] = measure_claims(places, kind, scale)
                progress.advance(bar)
                latencies.append(measure_latency(places, kind, scale))
                progress.advance(bar)
    facts["load_average_after"] = [round(load, 2) for load in os.getloadavg()]
    verdicts = judge_queue(figures, claims, latencies)
    _show(console, figures, claims, latencies, verdicts)
    report.write_json(results, facts, figures, claims, latencies, verdicts)
    console.print(f"All figures: {results}")


def _show(
    console: Console,
    figures: Sequence[Figures],
    claims: dict[Kind, list[ClaimCost]],
    latencies: Sequence[Latency],
    verdicts: Sequence[Verdict],
) -> None:
    for kind in Kind:
        console.print(report.throughput_table(kind, figures))
    for kind, costs in claims.items():
        console.print(report.claim_table(kind, costs))
    for each in latencies:
        console.print(f"{each.kind}: idle latency p50 {each.p50_ms:.1f} ms, p95 {each.p95_ms:.1f} ms")
    console.print(report.verdict_table(verdicts))
    missed = sum(verdict.met is False for verdict in verdicts)
    judged = sum(verdict.met is not None for verdict in verdicts)
    console.print(f"{judged - missed} of {judged} goals met, {missed} missed.")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.queue", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small counts, one round: a look, not a measurement")
    parser.add_argument("--json", type=Path, default=RESULTS, help="where the figures go (default: %(default)s)")
    arguments = parser.parse_args()
    logs.configure(level="warning")
    console = Console(width=None if os.isatty(1) else 140)
    run(QUICK if arguments.quick else FULL, console, arguments.json)


if __name__ == "__main__":
    main()

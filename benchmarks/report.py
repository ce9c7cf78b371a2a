"""The figures of a run compared with the goals, shown as tables, and kept as JSON with the facts of the machine."""

from __future__ import annotations

import json
import os
import platform
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from rich.table import Table

from benchmarks.databases import Kind
from benchmarks.queue_contenders import POSTROOM, RAW
from benchmarks.queue_contract import Measure
from benchmarks.queue_postroom import CALLERS, CLAIM_SIZES, ClaimCost

LEAST_OVER_PEERS = {Kind.SQLITE_NORMAL: 2.5, Kind.SQLITE_FULL: 2.0, Kind.POSTGRESQL: 1.5}
MOST_UNDER_RAW = 2.0
MOST_CLAIM_GROWTH = 1.5
MOST_LATENCY_MS = 50.0
LEAST_FROM_CALLERS = {Kind.SQLITE_FULL: 5_000.0, Kind.POSTGRESQL: 3_000.0}


@dataclass(slots=True)
class Figures:
    """What one contender did on one database. `rates` holds every run; the median is what counts."""

    contender: str
    kind: Kind
    options: dict[str, int] = field(default_factory=dict)
    rates: dict[Measure, list[float]] = field(default_factory=dict)
    failure: str | None = None

    def add(self, rates: dict[Measure, float]) -> None:
        for measure, rate in rates.items():
            self.rates.setdefault(measure, []).append(rate)

    def rate(self, measure: Measure) -> float | None:
        return median(self.rates[measure]) if measure in self.rates else None


@dataclass(frozen=True, slots=True)
class Latency:
    kind: Kind
    p50_ms: float
    p95_ms: float

    @classmethod
    def of(cls, kind: Kind, samples_ms: Sequence[float]) -> Latency:
        return cls(kind, median(samples_ms), quantiles(samples_ms, n=20)[-1])


@dataclass(frozen=True, slots=True)
class Verdict:
    """One line of the summary. `measured` is None where something it needs could not be measured."""

    what: str
    measured: float | None
    goal: str
    met: bool | None
    unit: str = "x"
    ours: float | None = None
    """Where `measured` is a ratio, the figures that it is made of."""
    peer: str | None = None
    theirs: float | None = None


def judge_throughput(kind: Kind, figures: Iterable[Figures]) -> list[Verdict]:
    drains = {each.contender: rate for each in figures if each.kind is kind and (rate := each.rate(Measure.DRAIN))}
    ours = drains.pop(POSTROOM, None)
    raw = drains.pop(RAW, None)
    best = max(drains, key=drains.__getitem__, default=None)
    over = ours / drains[best] if ours and best else None
    under = raw / ours if ours and raw else None
    least = LEAST_OVER_PEERS[kind]
    verdicts = [
        Verdict(f"{kind}: drain, Postroom over the best peer ({best or 'none measured'})", over, f"at least {least:g}x",
                None if over is None else over >= least, ours=ours, peer=best, theirs=drains.get(best or ""))
    ]  # fmt: skip
    is_goal = kind is not Kind.POSTGRESQL  # the design sets none there; the figure is worth seeing all the same
    goal = f"at most {MOST_UNDER_RAW:g}x" if is_goal else "none"
    met = under <= MOST_UNDER_RAW if under is not None and is_goal else None
    beside = Verdict(
        f"{kind}: drain, raw loop over Postroom", under, goal, met, ours=ours, peer="a raw loop", theirs=raw
    )
    return [*verdicts, beside]


def judge_enqueuing(kind: Kind, figures: Iterable[Figures]) -> list[Verdict]:
    """One job a call, from several callers at once."""
    least = LEAST_FROM_CALLERS.get(kind)
    ours = next((each for each in figures if each.kind is kind and each.contender == POSTROOM), None)
    rate = None if ours is None else ours.rate(Measure.ENQUEUE_CALLERS)
    if least is None:
        return []
    met = None if rate is None else rate >= least
    return [Verdict(f"{kind}: enqueue one job a call, {CALLERS} callers", rate, f"at least {least:,.0f}/s", met, "/s")]


def judge_claims(kind: Kind, costs: Sequence[ClaimCost]) -> list[Verdict]:
    verdicts = []
    for size in CLAIM_SIZES:
        ahead = [cost for cost in costs if cost.claim_size == size and not cost.level.finished]
        behind = [cost for cost in costs if cost.claim_size == size and cost.level.finished]
        for line, attribute in ((ahead, "scheduled"), (behind, "finished")):
            low, high = (getattr(line[end].level, attribute) for end in (0, -1))
            growth = max(cost.median_us for cost in line) / line[0].median_us
            what = f"{kind}: claim of {size}, from {low:,} to {high:,} {attribute} jobs"
            verdicts.append(Verdict(what, growth, f"at most {MOST_CLAIM_GROWTH:g}x", growth <= MOST_CLAIM_GROWTH))
    return verdicts


def judge_latency(latency: Latency) -> Verdict:
    met = latency.p95_ms <= MOST_LATENCY_MS
    goal = f"at most {MOST_LATENCY_MS:g} ms"
    return Verdict(
        f"{latency.kind}: enqueue into idle system until handler starts, p95", latency.p95_ms, goal, met, " ms"
    )


def judge_queue(
    figures: Sequence[Figures], claims: Mapping[Kind, Sequence[ClaimCost]], latencies: Sequence[Latency]
) -> list[Verdict]:
    verdicts = [verdict for kind in Kind for verdict in judge_throughput(kind, figures)]
    verdicts += [verdict for kind in Kind for verdict in judge_enqueuing(kind, figures)]
    verdicts += [verdict for kind, costs in claims.items() for verdict in judge_claims(kind, costs)]
    return verdicts + [judge_latency(each) for each in latencies]


_PACKAGES = ("postroom", "sqlalchemy", "psycopg", "huey", "dbos", "procrastinate", "pgqueuer", "asyncpg")


def machine_facts(postgresql_version: str) -> dict[str, Any]:
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cores": os.cpu_count(),
        "load_average_before": [round(load, 2) for load in os.getloadavg()],
        "platform": platform.platform(),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "postgresql": postgresql_version,
        "packages": {name: found for name in _PACKAGES if (found := _installed(name))},
    }


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def throughput_table(kind: Kind, figures: Iterable[Figures]) -> Table:
    table = Table(title=f"{kind} (jobs a second: median, and lowest to highest of the runs)", title_justify="left")
    table.add_column("contender")
    for measure in Measure:
        table.add_column(measure.split(",")[0], justify="right")
    table.add_column("settings")
    for each in figures:
        if each.kind is kind:
            settings = each.failure or ", ".join(f"{name} {value}" for name, value in each.options.items())
            table.add_row(each.contender, *(_rates(each.rates.get(measure, [])) for measure in Measure), settings)
    return table


def _rates(rates: Sequence[float]) -> str:
    if not rates:
        return "-"
    middle = sorted(rates)[len(rates) // 2]
    return f"{middle:,.0f}" if len(rates) == 1 else f"{middle:,.0f} ({min(rates):,.0f} to {max(rates):,.0f})"


def claim_table(kind: Kind, costs: Iterable[ClaimCost]) -> Table:
    table = Table(title=f"{kind}: cost of a claim, µs (median, without the commit)", title_justify="left")
    for column in ("scheduled ahead", "finished behind", "jobs claimed", "µs"):
        table.add_column(column, justify="right")
    for cost in costs:
        level = cost.level
        table.add_row(f"{level.scheduled:,}", f"{level.finished:,}", str(cost.claim_size), f"{cost.median_us:,.0f}")
    return table


def verdict_table(verdicts: Iterable[Verdict]) -> Table:
    table = Table(title="Goals (design §8)", title_justify="left")
    table.add_column("what")
    table.add_column("measured", justify="right")
    table.add_column("goal")
    table.add_column("")
    for verdict in verdicts:
        measured = "not measured" if verdict.measured is None else f"{verdict.measured:.2f}{verdict.unit}"
        table.add_row(verdict.what, measured, verdict.goal, _word(verdict))
    return table


def _word(verdict: Verdict) -> str:
    if verdict.met is None:
        return ""
    return "[green]met[/]" if verdict.met else "[red]MISSED[/]"


def write_json(
    path: Path,
    facts: dict[str, Any],
    figures: Sequence[Figures],
    claims: dict[Kind, list[ClaimCost]],
    latencies: Sequence[Latency],
    verdicts: Sequence[Verdict],
) -> None:
    document = {
        "machine": facts,
        "throughput": [asdict(each) for each in figures],
        "claims": {kind: [asdict(cost) for cost in costs] for kind, costs in claims.items()},
        "latency": [asdict(latency) for latency in latencies],
        "goals": [asdict(verdict) for verdict in verdicts],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")

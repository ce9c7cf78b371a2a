"""Shows the figures as tables, and keeps them as JSON together with the facts of the machine."""

from __future__ import annotations

import json
import os
import platform
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.claim_cost import ClaimCost
from benchmarks.contract import Measure
from benchmarks.results import Figures, Latency, Verdict
from benchmarks.stores import Kind

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

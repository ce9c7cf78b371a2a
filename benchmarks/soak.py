"""A hundred thousand messages through everything in one process on SQLite: `make soak`.

Archived, history taken in and decided about by rules and the simulated model, actions done in the mailbox, web pages
fetched, live mail arriving meanwhile. At the end nothing is lost, nothing doubled, no cap passed, and the archive is
verified against the mailbox; else there is no figure.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.status import Status
from tests.support.soaking import SoakRun, soak

from benchmarks import report
from benchmarks.report import Verdict
from postroom.telemetry import logs

RESULTS = Path(__file__).parent / "results" / "soak.json"
MESSAGES = 100_000
MOST_MINUTES = 8.0
MOST_MB = 400.0
MOST_GROWTH = 1.25


def judge(run: SoakRun) -> list[Verdict]:
    minutes, growth = run.seconds / 60, run.growth
    of_all = run.messages >= MESSAGES  # with fewer the start counts
    met = minutes <= MOST_MINUTES if of_all else None
    return [
        Verdict(f"{run.messages:,} messages through everything", minutes, f"at most {MOST_MINUTES:g} minutes", met,
                " minutes"),
        Verdict("memory at most", run.peak_mb, f"at most {MOST_MB:g} MB", run.peak_mb <= MOST_MB, " MB"),
        Verdict("memory at most, over that of the first half", growth, f"at most {MOST_GROWTH:g}x",
                growth <= MOST_GROWTH),
    ]  # fmt: skip


def measure(messages: int, console: Console) -> SoakRun:
    with (
        tempfile.TemporaryDirectory(prefix="postroom-soak-") as folder,
        console.status("making the mailbox") as status,
    ):
        return asyncio.run(soak(Path(folder), messages, lambda seconds, mb: _tell(status, seconds, mb)))


def _tell(status: Status, seconds: float, megabytes: float) -> None:
    status.update(f"{seconds:,.0f} s, {megabytes:,.0f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=MESSAGES)
    parser.add_argument("--out", type=Path, default=RESULTS, help="where to keep the figures as JSON")
    options = parser.parse_args()
    logs.configure(level="error")
    console = Console(width=max(Console().width, 120))
    facts = report.machine_facts("-")
    run = measure(options.messages, console)
    verdicts = judge(run)
    console.print(f"{run.decided:,} decided about, in {run.seconds:,.0f} s")
    console.print(report.verdict_table(verdicts))
    figures = {"machine": facts, "run": asdict(run), "goals": [asdict(verdict) for verdict in verdicts]}
    options.out.write_text(json.dumps(figures, indent=2, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()

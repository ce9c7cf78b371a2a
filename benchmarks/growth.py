"""What a unit costs as there is more of everything: `python -m benchmarks.growth` (part of `make bench`).

Import, search and queue at 10,000, 100,000 and 1,000,000 messages or jobs, by processor time, which other work on the
machine changes little. The cost of a unit at the largest size over that at the smallest is judged, and drawn for
docs/benchmarks.md. The time of PostgreSQL's own processes is not in its line.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import report
from benchmarks.archive import OURS, Contest
from benchmarks.archive_mail import Kind as MailKind
from benchmarks.archive_mail import write
from benchmarks.archive_search import queries, words_of
from benchmarks.databases import Kind, stores
from benchmarks.queue_contract import Store, batches
from benchmarks.queue_postroom import noop_job, open_queue
from benchmarks.report import Verdict
from postroom import eventloop
from postroom.queue import JobContext
from postroom.queue.worker import Worker
from postroom.settings import WorkerSettings

SIZES = (10_000, 100_000, 1_000_000)
MOST_GROWTH = 1.3
RESULTS = Path(__file__).parent / "results" / "growth.json"
CHART = Path(__file__).parent.parent / "docs" / "growth.svg"
_CONCURRENCY = 500
_ASKED = 3


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one unit, in microseconds of the processor."""

    what: str
    size: int
    microseconds: float


def archive_costs(folder: Path, size: int) -> Iterator[Cost]:
    """The import of a message, and a search of the first page: the 95th percentile of all kinds that notmuch knows."""
    files = write(folder, MailKind.MAILBOX, size, with_maildir=False)
    contest = Contest(folder, files, size, with_peer=False)
    (done,) = contest.imports(1, ["takeout"])
    files.mbox.unlink()
    yield Cost("import, a message", size, done.cpu_seconds / size * 1e6)
    latencies, _ = contest.search(queries(words_of(files.sample())), _ASKED)
    yield Cost("search, a first page (p95)", size, latencies[-1].ours_cpu_p95_ms * 1e3)
    shutil.rmtree(folder / f"{OURS}-takeout")


def queue_costs(store: Store, name: str, size: int) -> Iterator[Cost]:
    """In a process of its own, so that nothing of another size is in its memory."""
    command = [sys.executable, "-m", "benchmarks.growth", "drain", store.url, store.synchronous, str(size)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name}: {done.stderr.strip()[-1000:]}")
    enqueued, drained = json.loads(done.stdout)
    yield Cost(f"enqueue in batches, a job, {name}", size, enqueued)
    yield Cost(f"drain, a job, {name}", size, drained)


async def drain(store: Store, size: int) -> tuple[float, float]:
    """Microseconds of this process for each job: to enqueue all of them, and then to work them off."""

    async def noop(context: JobContext) -> None:
        return None

    async with open_queue(store) as queue:
        start = time.process_time()
        for batch in batches(size):
            await queue.enqueue(*map(noop_job, batch))
        enqueued = time.process_time()
        await Worker(queue, {"noop": noop}, WorkerSettings(concurrency=_CONCURRENCY), until_idle=True).run()
        drained = time.process_time()
    return (enqueued - start) / size * 1e6, (drained - enqueued) / size * 1e6


def judge(costs: Sequence[Cost]) -> list[Verdict]:
    """Growth from the smallest size to the largest. It can be below 1: the start of a process counts where there is
    little to do."""
    verdicts = []
    for what in dict.fromkeys(cost.what for cost in costs):
        line = sorted((cost for cost in costs if cost.what == what), key=lambda cost: cost.size)
        growth = line[-1].microseconds / line[0].microseconds
        title = f"{what}: cost at {line[-1].size:,} over cost at {line[0].size:,}"
        verdicts.append(Verdict(title, growth, f"at most {MOST_GROWTH:g}x", growth <= MOST_GROWTH))
    return verdicts


_LEFT, _TOP, _WIDTH, _HEIGHT, _LEGEND = 50, 20, 420, 220, 300
_INKS = ("#1f5fbf", "#b45309", "#0f766e", "#7c3aed", "#a21caf", "#5b6b7d")
_DASHES = ("", "6 4", "2 4", "8 3 2 3", "1 3", "12 4")


def chart(costs: Sequence[Cost]) -> str:
    """Cost of a unit relative to the smallest size, over the size on a logarithmic scale, as SVG."""
    sizes = sorted({cost.size for cost in costs})
    lines = {
        what: [cost.microseconds for cost in sorted(costs, key=lambda cost: cost.size) if cost.what == what]
        for what in dict.fromkeys(cost.what for cost in costs)
    }
    top = max(1.5, *(value / values[0] for values in lines.values() for value in values)) * 1.05
    span = math.log10(sizes[-1] / sizes[0]) or 1.0

    def x(size: int) -> float:
        return _LEFT + _WIDTH * math.log10(size / sizes[0]) / span

    def y(ratio: float) -> float:
        return _TOP + _HEIGHT * (1 - ratio / top)

    drawn = [
        f'<text x="{x(size):.0f}" y="{_TOP + _HEIGHT + 20}" text-anchor="middle">{size:,}</text>' for size in sizes
    ]
    for ratio in (0.5, 1.0, MOST_GROWTH):
        drawn.append(f'<path class="rule" d="M{_LEFT} {y(ratio):.1f}H{_LEFT + _WIDTH}"/>')
        drawn.append(f'<text x="{_LEFT - 6}" y="{y(ratio) + 4:.1f}" text-anchor="end">{ratio:g}x</text>')
    for number, (what, values) in enumerate(lines.items()):
        ink, dashes = _INKS[number % len(_INKS)], _DASHES[number % len(_DASHES)]
        stroke = f'stroke="{ink}" stroke-dasharray="{dashes}"'
        points = " ".join(
            f"{x(size):.1f},{y(value / values[0]):.1f}" for size, value in zip(sizes, values, strict=True)
        )
        height = _TOP + 14 + 22 * number
        drawn.append(f'<polyline {stroke} points="{points}"/>')
        drawn.append(f'<path {stroke} d="M{_LEFT + _WIDTH + 20} {height - 4}h26"/>')
        drawn.append(f'<text x="{_LEFT + _WIDTH + 52}" y="{height}">{what}</text>')
    width, height = _LEFT + _WIDTH + _LEGEND, _TOP + _HEIGHT + 30
    style = (
        "text{font:12px system-ui,sans-serif;fill:#3d4a57}path,polyline{fill:none;stroke-width:2}.rule{stroke:#c8d0d9}"
    )
    title = f"Cost of a unit, relative to that at {sizes[0]:,}; the goal is at most {MOST_GROWTH:g}x"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
    paper = f'<title>{title}</title><style>{style}</style><rect width="{width}" height="{height}" fill="#fff"/>'
    return f"{head}{paper}{''.join(drawn)}</svg>\n"


def cost_table(costs: Sequence[Cost]) -> Table:
    shown = Table(title="Processor time of a unit, µs", title_justify="left")
    shown.add_column("what")
    sizes = sorted({cost.size for cost in costs})
    for size in sizes:
        shown.add_column(f"{size:,}", justify="right")
    for what in dict.fromkeys(cost.what for cost in costs):
        found = {cost.size: cost.microseconds for cost in costs if cost.what == what}
        shown.add_row(what, *(f"{found[size]:,.1f}" for size in sizes))
    return shown


def measure(sizes: Sequence[int], console: Console) -> tuple[list[Cost], str]:
    """The costs, and the version of PostgreSQL."""
    costs: list[Cost] = []
    with stores() as places:
        for size in sizes:
            with tempfile.TemporaryDirectory(prefix="postroom-growth-") as folder:
                costs += archive_costs(Path(folder), size)
            for kind, name in ((Kind.SQLITE_FULL, "SQLite"), (Kind.POSTGRESQL, "PostgreSQL")):
                with places.fresh(kind) as store:
                    costs += queue_costs(store, name, size)
            console.print(f"measured at {size:,}")
        return costs, places.postgresql_version


def main(arguments: Sequence[str]) -> None:
    if arguments[:1] == ["drain"]:
        url, synchronous, size = arguments[1:]
        print(json.dumps(eventloop.run(drain(Store(url, synchronous), int(size)))))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--out", type=Path, default=RESULTS, help="where to keep the figures as JSON")
    parser.add_argument("--chart", type=Path, default=CHART, help="where to keep the picture")
    options = parser.parse_args(arguments)
    console = Console(width=max(Console().width, 120))
    facts = report.machine_facts("-")
    costs, version = measure(options.sizes, console)
    verdicts = judge(costs)
    console.print(cost_table(costs))
    console.print(report.verdict_table(verdicts))
    figures = {
        "machine": facts | {"postgresql": version},
        "costs": [asdict(cost) for cost in costs],
        "goals": [asdict(verdict) for verdict in verdicts],
    }
    options.out.write_text(json.dumps(figures, indent=2, ensure_ascii=False) + "\n", "utf-8")
    options.chart.write_text(chart(costs), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])

"""Measures a whole first sync: `python -m benchmarks.sync`. What is measured, and what is not:

- *Under quota*: the share of the allowance that a sync uses from its first second on, planning and listing included,
  and the share of calls that are refused. Virtual time, against the whole stand-in; database and archive are real.
- *Without quota*: messages a second until all are stored, indexed and below the watermark, beside Google's client in
  batches of 50, which fetches ids that it is given and keeps nothing, and beside the same client storing into our
  archive. The stand-in is a process of its own; so is each contender; they share this machine's processors.
- *Memory*: the peak of the syncing process over a mailbox of tiny messages, listed, fetched and stored.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks import table
from benchmarks.gmail import LEAST_OVER_GOOGLE, LEAST_QUOTA_USED, MOST_THROTTLED, StandIn, stand_in
from benchmarks.results import Verdict
from benchmarks.sync_quota import SyncQuotaUse, sync_quota_use
from postroom.gmail.quota import ProfileName
from postroom.telemetry import logs

RESULTS = Path(__file__).parent / "results" / "sync.json"
MOST_MEMORY_MB = 300.0
SYNC, SYNC_WIDE = "postroom sync", "postroom sync, batches of 50"
GOOGLE, GOOGLE_STORING = "google-api-python-client, fetching only", "google-api-python-client, into our archive"
_CONTENDERS: dict[str, dict[str, Any]] = {
    GOOGLE: {"client": "google"},
    GOOGLE_STORING: {"client": "google+archive"},
    SYNC: {"client": "sync"},
    SYNC_WIDE: {"client": "sync", "batch_size": 50},
}
_LONGEST_RUN_S = 7_200


@dataclass(frozen=True, slots=True)
class SyncRun:
    contender: str
    delay_ms: int
    messages: int
    messages_per_second: float
    cpu_us: float
    peak_mb: float


def run_once(server: StandIn, contender: str, task: dict[str, Any], messages: int, delay_ms: int = 0) -> SyncRun:
    whole = {"url": server.ready["url"], "token": server.ready["token"]} | task
    command = [sys.executable, "-m", "benchmarks.sync_clients", json.dumps(whole)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_LONGEST_RUN_S, check=False)
    if done.returncode:
        raise RuntimeError(f"{contender} failed: {done.stderr.strip()[-800:]}")
    brought = json.loads(done.stdout)
    if brought["messages"] != messages:
        raise RuntimeError(f"{contender} brought {brought['messages']} messages of {messages}")
    rate, cpu_us = messages / brought["seconds"], brought["cpu_seconds"] * 1e6 / messages
    return SyncRun(contender, delay_ms, messages, rate, cpu_us, brought["peak_mb"])


def throughput(messages: int, rounds: int, delays_ms: Sequence[int]) -> list[SyncRun]:
    runs: list[SyncRun] = []
    with stand_in(messages) as server, Progress(transient=True) as progress:
        bar = progress.add_task("syncing", total=rounds * len(delays_ms) * len(_CONTENDERS))
        ids = server.ids()
        for delay_ms in delays_ms:
            server.delay_answers(delay_ms)
            for _ in range(rounds):
                for contender, task in _CONTENDERS.items():
                    needs = {"ids": ids} if task["client"] != "sync" else {}
                    runs.append(run_once(server, contender, task | needs, messages, delay_ms))
                    progress.advance(bar)
    return runs


def memory(messages: int) -> SyncRun:
    with stand_in(messages, "benchmarks.sync_server") as server:
        return run_once(server, SYNC, _CONTENDERS[SYNC], messages)


def middle(runs: Sequence[SyncRun], contender: str, delay_ms: int, figure: str) -> float:
    return float(median(getattr(run, figure) for run in runs if (run.contender, run.delay_ms) == (contender, delay_ms)))


def throughput_table(runs: Sequence[SyncRun], delays_ms: Sequence[int]) -> Table:
    shown = Table(title="A mailbox to disk, medians", title_justify="left")
    shown.add_column("contender")
    for column in ("delay, ms", "messages a second", "CPU, µs a message", "peak memory, MB"):
        shown.add_column(column, justify="right")
    for delay_ms in delays_ms:
        for contender in _CONTENDERS:
            figures = ("messages_per_second", "cpu_us", "peak_mb")
            cells = [f"{middle(runs, contender, delay_ms, figure):,.0f}" for figure in figures]
            shown.add_row(contender, str(delay_ms), *cells)
    return shown


def judge(
    runs: Sequence[SyncRun], delays_ms: Sequence[int], quotas: Sequence[SyncQuotaUse], largest: SyncRun
) -> list[Verdict]:
    verdicts = []
    for use in quotas:
        goal, met = f"at least {LEAST_QUOTA_USED:.0%}", use.share_used >= LEAST_QUOTA_USED
        verdicts.append(Verdict(f"{use.profile}: quota used", use.share_used * 100, goal, met, " %"))
        goal, met = f"under {MOST_THROTTLED:.0%}", use.share_throttled < MOST_THROTTLED
        verdicts.append(Verdict(f"{use.profile}: calls throttled", use.share_throttled * 100, goal, met, " %"))
    for delay_ms in delays_ms:
        for peer in (GOOGLE, GOOGLE_STORING):
            ours, theirs = (middle(runs, name, delay_ms, "messages_per_second") for name in (SYNC_WIDE, peer))
            over = ours / theirs
            is_goal = peer == GOOGLE
            goal = f"at least {LEAST_OVER_GOOGLE:g}x" if is_goal else "none"
            met_goal = over >= LEAST_OVER_GOOGLE if is_goal else None
            what = f"sync over {peer}, {delay_ms} ms delay"
            verdicts.append(Verdict(what, over, goal, met_goal, ours=ours, peer=peer, theirs=theirs))
    what = f"peak memory, {largest.messages:,} messages"
    met = largest.peak_mb <= MOST_MEMORY_MB
    return [*verdicts, Verdict(what, largest.peak_mb, f"at most {MOST_MEMORY_MB:g} MB (a million)", met, " MB")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="a first look: fewer messages, one round, two minutes")
    parser.add_argument(
        "--memory-messages", type=int, default=100_000, help="the goal speaks of 1000000, which is slow"
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help="where to keep the figures as JSON")
    options = parser.parse_args()
    logs.configure(level="error")
    messages, rounds, minutes = (1_500, 1, 2) if options.quick else (6_000, 3, 10)
    delays_ms = (0, 50)
    facts = table.machine_facts("-")
    quotas = [sync_quota_use(name, minutes) for name in ProfileName]
    runs = throughput(messages, rounds, delays_ms)
    largest = memory(10_000 if options.quick else options.memory_messages)
    verdicts = judge(runs, delays_ms, quotas, largest)
    console = Console(width=max(Console().width, 120))
    console.print(throughput_table(runs, delays_ms))
    console.print(table.verdict_table(verdicts))
    figures = {"machine": facts, "quota": [asdict(use) for use in quotas], "runs": [asdict(run) for run in runs]}
    figures |= {"memory": asdict(largest), "goals": [asdict(verdict) for verdict in verdicts]}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(figures, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()

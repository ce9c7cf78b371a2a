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
import asyncio
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from tests.support import virtual_time
from tests.support.archives import opened_store
from tests.support.gmail_sim import in_process_sim
from tests.support.sync import letters
from tests.support.virtual_time import VirtualClock

from benchmarks import report
from benchmarks.gmail import LEAST_QUOTA_USED, MOST_THROTTLED, StandIn, stand_in
from benchmarks.report import Verdict
from postroom.accounts.access import DatabaseBudget
from postroom.accounts.account import NewAccount, add_account
from postroom.db import connect
from postroom.mailboxes.gmail.mailbox import GmailMailbox
from postroom.mailboxes.gmail.methods import PROFILES, GmailMethod, ProfileName
from postroom.mailboxes.limiter import limiter_for
from postroom.settings import SyncSettings
from postroom.sync.engine import build_engine
from postroom.telemetry import logs

_LAST_MAIL = datetime(2025, 12, 30, tzinfo=UTC)
_BEYOND = 1.2
"""More mail than the quota can fetch in the time, so that there is always something to do."""


@dataclass(frozen=True, slots=True)
class SyncQuotaUse:
    profile: str
    minutes: int
    share_used: float
    share_throttled: float
    messages_per_second: float


def sync_quota_use(name: ProfileName, minutes: int) -> SyncQuotaUse:
    return virtual_time.run(_measured(name, minutes))


async def _measured(name: ProfileName, minutes: int) -> SyncQuotaUse:
    profile, clock = PROFILES[name], VirtualClock()
    fetchable = profile.units_per_minute // profile.cost(GmailMethod.MESSAGES_GET) * minutes
    source = letters(int(fetchable * _BEYOND), apart_s=600, until=_LAST_MAIL)
    sim = in_process_sim(source, profile, clock)
    with tempfile.TemporaryDirectory() as folder:
        database = await connect(f"sqlite:///{folder}/postroom.db")
        new = NewAccount(source.email, "http://127.0.0.1", name)
        account = await database.write(lambda tx: add_account(tx, new, clock.now()))
        budget = DatabaseBudget(database, account.id, profile, clock)
        limiter = limiter_for(profile, clock, budget=budget, dice=random.Random(1))
        async with (
            sim.client(limiter, profile) as client,
            opened_store(Path(folder) / "archive", source.email) as store,
        ):
            engine = build_engine(database, account, GmailMailbox(client), store, SyncSettings(), clock)
            running = asyncio.create_task(engine.run())
            await asyncio.sleep(minutes * 60)
            state, stored = sim.control.state(), engine.progress().stored
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        await database.close()
    return SyncQuotaUse(
        profile=name,
        minutes=minutes,
        share_used=state.units / (profile.units_per_minute * minutes),
        share_throttled=state.throttled / sum(state.calls.values()),
        messages_per_second=stored / (minutes * 60),
    )


RESULTS = Path(__file__).parent / "results" / "sync.json"
MOST_MEMORY_MB = 300.0
LEAST_STORING_OVER_FETCHING = {0: 1.5, 50: 4.0}
"""By the delay of an answer in ms: everything stored, beside a client that keeps nothing."""
LEAST_OVER_STORING = 5.0
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
            least = LEAST_OVER_STORING if peer == GOOGLE_STORING else LEAST_STORING_OVER_FETCHING.get(delay_ms)
            goal = "none" if least is None else f"at least {least:g}x"
            met_goal = None if least is None else over >= least
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
    facts = report.machine_facts("-")
    quotas = [sync_quota_use(name, minutes) for name in ProfileName]
    runs = throughput(messages, rounds, delays_ms)
    largest = memory(10_000 if options.quick else options.memory_messages)
    verdicts = judge(runs, delays_ms, quotas, largest)
    console = Console(width=max(Console().width, 120))
    console.print(throughput_table(runs, delays_ms))
    console.print(report.verdict_table(verdicts))
    figures = {"machine": facts, "quota": [asdict(use) for use in quotas], "runs": [asdict(run) for run in runs]}
    figures |= {"memory": asdict(largest), "goals": [asdict(verdict) for verdict in verdicts]}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(figures, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()

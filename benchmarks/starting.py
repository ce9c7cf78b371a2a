"""Measures how long commands take to start and what an idle `postroom up` costs: `python -m benchmarks.starting`.

Every command is a process, on a home that exists; `up` is timed until it says that it serves. Processor time stands
beside the clock's, for machines that have other work. The idle cost is that of `up` with one account that gets no mail,
polled as often as by default, from a moment after its start on. The first sync is off: it is no idle time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from rich.console import Console
from tests.support.commands import PostroomProcess, environment
from tests.support.databases import install
from tests.support.deployment import StandIn, stand_in

from benchmarks import report
from benchmarks.report import Verdict
from postroom.accounts.account import NewAccount, add_account
from postroom.db import connect
from postroom.domain.clock import SystemClock
from postroom.mailboxes.credentials import GrantStore, StaticGrant
from postroom.vault import Vault

RESULTS = Path(__file__).parent / "results" / "starting.json"
MOST_HELP_S, MOST_SEARCH_S, MOST_UP_S = 0.35, 0.5, 2.0
MOST_IDLE_PERCENT = 0.5
MOST_IDLE_MB = 150.0
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class StartFigures:
    """Medians. Seconds by the clock; `..._cpu_s` by the processor."""

    help_s: float
    help_cpu_s: float
    search_s: float
    search_cpu_s: float
    up_s: float
    up_cpu_s: float
    idle_percent: float
    """Of one core."""
    idle_mb: float
    """Resident, of the process and its children."""
    idle_seconds: float


def command(home: Path, *arguments: str) -> tuple[float, float]:
    """Seconds by the clock and by the processor, until it has ended."""
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "postroom", *arguments], env=environment(home, {}), stdout=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"`postroom {' '.join(arguments)}` ended with {process.returncode}")
    return time.perf_counter() - started, usage.ru_utime + usage.ru_stime


def cpu_s(pid: int) -> float:
    """Of the process, and of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / _TICKS


def resident_mb(pid: int) -> float:
    children = [child for task in Path(f"/proc/{pid}/task").iterdir() for child in _children(task)]
    return _proportional_mb(pid) + sum(map(_proportional_mb, children))


def _children(task: Path) -> list[int]:
    return [int(child) for child in (task / "children").read_text().split()]


def _proportional_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1_024


class _Up(PostroomProcess):
    def __init__(self, home: Path) -> None:
        given = {"POSTROOM_SWITCHBOARD__PORT": "0", "POSTROOM_RECURRING__SYNC": "off"}
        super().__init__("up", "--json", home=home, variables=given)

    @property
    def pid(self) -> int:
        if self.process is None:
            raise RuntimeError("`postroom up` does not run")
        return int(self.process.pid)


@asynccontextmanager
async def serving(home: Path) -> AsyncIterator[tuple[int, float]]:
    """Its process id, and the seconds until it served."""
    up = _Up(home)
    started = time.perf_counter()
    await up.start()
    try:
        await up.ready()
        yield up.pid, time.perf_counter() - started
    finally:
        await up.end()


async def prepare(home: Path, gmail: StandIn) -> None:
    install(home)
    GrantStore(Vault(home)).save(StaticGrant(email=gmail.email, api_base=gmail.url, access_token=gmail.token))
    database = await connect(f"sqlite:///{home / 'postroom.db'}")
    now = SystemClock().now()
    await database.write(lambda tx: add_account(tx, NewAccount(gmail.email, gmail.url), now))
    await database.close()


async def measure(rounds: int, settle_s: float, idle_s: float) -> StartFigures:
    with tempfile.TemporaryDirectory(prefix="postroom-bench-") as folder:
        home = Path(folder) / "home"
        async with stand_in(
            Path(folder) / "gmail", "gmail", "--messages", "10", "--quota", "none", "--port", "0"
        ) as gmail:
            await prepare(home, gmail)
            helps = [command(home, "--help") for _ in range(rounds)]
            searches = [command(home, "search", "invoice", "--json") for _ in range(rounds)]
            ups = []
            for _ in range(rounds):
                async with serving(home) as (pid, took):
                    ups.append((took, cpu_s(pid)))
            async with serving(home) as (pid, _):
                await asyncio.sleep(settle_s)
                before, began = cpu_s(pid), time.perf_counter()
                await asyncio.sleep(idle_s)
                share = (cpu_s(pid) - before) / (time.perf_counter() - began)
                memory = resident_mb(pid)
    return StartFigures(*_middle(helps), *_middle(searches), *_middle(ups), share * 100, memory, idle_s)


def _middle(times: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return median(clock for clock, _ in times), median(cpu for _, cpu in times)


def judge(found: StartFigures) -> list[Verdict]:
    starts = (
        ("`postroom --help`", found.help_s, found.help_cpu_s, MOST_HELP_S),
        ("`postroom search`", found.search_s, found.search_cpu_s, MOST_SEARCH_S),
        ("`postroom up` until it serves", found.up_s, found.up_cpu_s, MOST_UP_S),
    )
    verdicts = [
        Verdict(f"{what} ({cpu:.2f} s of CPU)", clock, f"at most {most:g} s", clock <= most, " s")
        for what, clock, cpu, most in starts
    ]
    idle, memory = found.idle_percent, found.idle_mb
    return [
        *verdicts,
        Verdict("idle `up`: share of a core", idle, f"at most {MOST_IDLE_PERCENT:g} %",
                idle <= MOST_IDLE_PERCENT, " %"),
        Verdict("idle `up`: memory", memory, f"at most {MOST_IDLE_MB:g} MB", memory <= MOST_IDLE_MB, " MB"),
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.starting", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--settle", type=float, default=20.0, metavar="SECONDS", help="after the start, not measured")
    parser.add_argument("--idle", type=float, default=60.0, metavar="SECONDS", help="how long it is watched")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    facts = report.machine_facts("-")
    found = asyncio.run(measure(options.rounds, options.settle, options.idle))
    verdicts = judge(found)
    Console(width=max(Console().width, 120)).print(report.verdict_table(verdicts))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    figures = {"machine": facts, "figures": asdict(found), "goals": [asdict(verdict) for verdict in verdicts]}
    options.out.write_text(json.dumps(figures, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()

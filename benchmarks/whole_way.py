"""Measures the whole way of live mail: `python -m benchmarks.whole_way`.

One `postroom up` on SQLite FULL takes mail in from the stand-in, which is another process, archives it, decides it by
rules and acts on it. A burst says how many messages a second that is and what one costs, by stage; single messages to
an idle system say how long one takes.

The burst is delivered while `up` is stopped by a signal, so that only its own work is timed. The stages are samples of
what its threads are doing, and share the CPU time that the system counts for the process.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sqlite3
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from statistics import quantiles
from types import FrameType

from rich.console import Console
from tests.support.commands import environment
from tests.support.databases import install
from tests.support.deployment import StandIn, stand_in

import postroom
from benchmarks import report
from benchmarks.report import Verdict
from postroom.accounts.account import NewAccount, add_account
from postroom.audit import Actor
from postroom.db import Tx, connect
from postroom.domain.clock import SystemClock
from postroom.domain.jobs import HISTORY_SYNC
from postroom.mailboxes.credentials import GrantStore, StaticGrant
from postroom.triage.rules.rule import parse_draft
from postroom.triage.rules.store import add_rule
from postroom.vault import Vault

RESULTS = Path(__file__).parent / "results" / "whole_way.json"
LEAST_A_SECOND = 200.0
MOST_LATENCY_MS = 150.0
MOST_CPU_MS = 3.0
_SAMPLE_S = 0.005
_DELIVERED_AT_ONCE = 16
_WARM_UP = 3
_SETTINGS = {
    "POSTROOM_SWITCHBOARD__PORT": "0",
    "POSTROOM_RECURRING__LIVE": "every 1s",
    "POSTROOM_RECURRING__SYNC": "off",
    "POSTROOM_SYNC__RPS_START": "500",
    "POSTROOM_SYNC__RPS_MAX": "500",
}
_RULE = {"name": "Digests", "condition": {"subject_contains": "Digest"}, "actions": ["archive"]}
_STAGES = {
    "mail/": "reading the message",
    "reading/": "reading the message",
    "archive/": "archive",
    "mailboxes/": "calls to Gmail",
    "connectors/": "connector",
    "triage/": "rules and decision",
    "actions/": "action",
    "switchboard/": "ingest and tools",
    "queue/": "queue",
    "app/": "upkeep",
    "audit/": "upkeep",
}
"""What a thread is busy with, by the innermost of these packages on its stack. A statement counts for the stage that
runs it."""
_PACKAGE = f"{Path(postroom.__file__).parent}/"
_WAITS = frozenset({"select", "poll", "wait", "_worker", "do_commit", "acquire", "get", "run"})
"""Functions that wait for others, for the disk or, as the runner of the event loop does, for anything at all."""


@dataclass(frozen=True, slots=True)
class Burst:
    messages: int
    seconds: float
    cpu_s: float
    stages: dict[str, float]
    """The share of each."""

    @property
    def per_second(self) -> float:
        return self.messages / self.seconds

    @property
    def cpu_ms(self) -> float:
        return self.cpu_s / self.messages * 1_000


def stage_of(frame: FrameType) -> str | None:
    """What the thread with this stack is busy with; None if it waits."""
    if frame.f_code.co_name in _WAITS and not frame.f_code.co_filename.startswith(_PACKAGE):
        return None
    link: FrameType | None = frame
    while link is not None:
        inner = link.f_code.co_filename.removeprefix(_PACKAGE)
        stage = next((stage for place, stage in _STAGES.items() if inner.startswith(place)), None)
        if stage is not None:
            return stage
        link = link.f_back
    return "event loop and the rest"


class StageSampler:
    """Looks every few milliseconds at what the threads of this process are doing."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self.sample, daemon=True)

    def __enter__(self) -> StageSampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def sample(self) -> None:
        while not self._over.wait(_SAMPLE_S):
            for thread, frame in sys._current_frames().items():
                if thread != self._thread.ident and (stage := stage_of(frame)):
                    self.seen[stage] += 1


def sampled_up(out: Path) -> None:
    """`postroom up`, with its stages written to a file when it is asked for them by a signal: the first time it begins
    to count, the second it tells."""
    from postroom.cli.main import run

    sampler = StageSampler()
    turns = iter((lambda: sampler.__enter__(), lambda: out.write_text(json.dumps(sampler.seen), "utf-8")))
    signal.signal(signal.SIGUSR1, lambda *_: next(turns)())
    sys.argv = ["postroom", "up", "--json"]
    run()


class UpProcess:
    """`postroom up` as a process, and its database to look into."""

    def __init__(self, home: Path, process: asyncio.subprocess.Process) -> None:
        self._home = home
        self.process = process
        self._database = sqlite3.connect(f"file:{home / 'postroom.db'}?mode=ro", uri=True)

    def close(self) -> None:
        self._database.close()

    def rows(self, sql: str, *given: object) -> list[tuple[object, ...]]:
        return self._database.execute(sql, given).fetchall()

    def done(self) -> int:
        [(count,)] = self.rows("SELECT count(*) FROM actions WHERE status = 'completed'")
        return int(str(count))

    def passes(self) -> set[datetime]:
        """When the present pass began. All passes share a row, so one has to look while it runs."""
        began = self.rows("SELECT started_at FROM jobs WHERE type = ? AND started_at IS NOT NULL", HISTORY_SYNC.name)
        return {_moment(started_at) for (started_at,) in began}

    async def until_done(self, wanted: int, patience_s: float) -> None:
        async with asyncio.timeout(patience_s):
            while self.done() < wanted:
                if self.process.returncode is not None:
                    raise RuntimeError(f"`postroom up` has ended; its log is in {self._home}")
                await asyncio.sleep(0.01)

    def cpu_s(self) -> float:
        """Of the process, and of its children that have ended."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


@asynccontextmanager
async def running_up(home: Path, gmail: StandIn, stages: Path) -> AsyncIterator[UpProcess]:
    install(home)
    GrantStore(Vault(home)).save(StaticGrant(email=gmail.email, api_base=gmail.url, access_token=gmail.token))
    now = SystemClock().now()

    def settle_in(tx: Tx) -> None:
        add_rule(tx, parse_draft(_RULE), Actor("cli", "owner"), now)
        add_account(tx, NewAccount(gmail.email, gmail.url), now)

    database = await connect(f"sqlite:///{home / 'postroom.db'}")
    await database.write(settle_in)
    await database.close()
    with (home / "up.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "benchmarks.whole_way", "--sampled-up", str(stages),
            env=environment(home, _SETTINGS), stdout=asyncio.subprocess.PIPE, stderr=log,
        )  # fmt: skip
    try:
        if process.stdout is None or not await process.stdout.readline():
            raise RuntimeError((home / "up.log").read_text("utf-8"))
        with closing(UpProcess(home, process)) as up:
            yield up
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.communicate()


async def deliver(gmail: StandIn, count: int) -> None:
    for start in range(0, count, _DELIVERED_AT_ONCE):
        numbers = range(start, min(start + _DELIVERED_AT_ONCE, count))
        await asyncio.gather(*(gmail.deliver(f"Digest number {number}") for number in numbers))


async def burst(up: UpProcess, gmail: StandIn, count: int, stages: Path) -> Burst:
    before = up.done()
    up.process.send_signal(signal.SIGSTOP)
    await deliver(gmail, count)
    cpu, began = up.cpu_s(), time.perf_counter()
    up.process.send_signal(signal.SIGCONT)
    up.process.send_signal(signal.SIGUSR1)
    await up.until_done(before + count, patience_s=60 + count / 10)
    took, cpu = time.perf_counter() - began, up.cpu_s() - cpu
    up.process.send_signal(signal.SIGUSR1)
    async with asyncio.timeout(30):
        while not stages.exists() or not stages.read_text("utf-8"):
            await asyncio.sleep(0.05)
    seen = Counter(json.loads(stages.read_text("utf-8")))
    whole = max(seen.total(), 1)
    return Burst(count, took, cpu, {stage: number / whole for stage, number in seen.most_common()})


async def latencies(up: UpProcess, gmail: StandIn, count: int) -> list[float]:
    """Milliseconds from the start of the pass that found a message to the end of its action."""
    found = []
    for number in range(count):
        before, began = up.done(), up.passes()
        await gmail.deliver(f"Digest alone {number}")
        async with asyncio.timeout(60):
            while up.done() == before:
                began |= up.passes()
                await asyncio.sleep(0.005)
        [(ended,)] = up.rows("SELECT max(finished_at) FROM actions")
        last = max(moment for moment in began if moment < _moment(ended))
        found.append((_moment(ended) - last).total_seconds() * 1_000)
    return found


def _moment(text: object) -> datetime:
    return datetime.fromisoformat(str(text))


async def measure(messages: int, alone: int) -> tuple[Burst, list[float]]:
    with tempfile.TemporaryDirectory(prefix="postroom-bench-") as folder:
        root = Path(folder)
        mailbox = ("gmail", "--messages", "10", "--quota", "none", "--port", "0")
        async with (
            stand_in(root / "gmail", *mailbox) as gmail,
            running_up(root / "home", gmail, root / "stages.json") as up,
        ):
            await until_listening(up)
            single = (await latencies(up, gmail, _WARM_UP + alone))[_WARM_UP:]
            return await burst(up, gmail, messages, root / "stages.json"), single


async def until_listening(up: UpProcess) -> None:
    """Until a first pass has set the place in the history from which on mail is new."""
    async with asyncio.timeout(60):
        while not up.rows("SELECT 1 FROM history_cursors WHERE history_id IS NOT NULL"):
            await asyncio.sleep(0.05)


def judge(done: Burst, single: Sequence[float]) -> list[Verdict]:
    p95 = quantiles(single, n=20)[-1]
    return [
        Verdict("live mail taken in, archived, decided by rules and acted on", done.per_second,
                f"at least {LEAST_A_SECOND:g}/s", done.per_second >= LEAST_A_SECOND, "/s"),
        Verdict("one message on an idle system, from the look at the history to the action, p95", p95,
                f"at most {MOST_LATENCY_MS:g} ms", p95 <= MOST_LATENCY_MS, " ms"),
        Verdict("CPU of a message in all our processes", done.cpu_ms,
                f"at most {MOST_CPU_MS:g} ms", done.cpu_ms <= MOST_CPU_MS, " ms"),
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.whole_way", description=__doc__)
    parser.add_argument("--messages", type=int, default=3_000)
    parser.add_argument("--alone", type=int, default=40, help="single messages to an idle system")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--sampled-up", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.sampled_up is not None:
        sampled_up(options.sampled_up)
        return
    facts = report.machine_facts("")
    done, single = asyncio.run(measure(options.messages, options.alone))
    verdicts = judge(done, single)
    console = Console(width=max(Console().width, 120))
    for stage, share in done.stages.items():
        console.print(f"{stage}: {share * done.cpu_ms:.2f} ms ({share:.0%})")
    console.print(report.verdict_table(verdicts))
    figures = {"machine": facts, "burst": asdict(done), "latencies_ms": single}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    goals = [asdict(verdict) for verdict in verdicts]
    options.out.write_text(json.dumps(figures | {"goals": goals}, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()

"""Measures our Gmail client beside Google's own, against the same stand-in: `python -m benchmarks.gmail`.

Both fetch the same raw messages, each in a process of its own, in turns: over loopback as it is, where the processors
are the limit, and with the latency of a real network. The share of the quota that is used is measured in virtual time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any
from urllib.request import Request, urlopen

from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from tests.support import virtual_time
from tests.support.gmail_sim import in_process_sim
from tests.support.mail import mailbox
from tests.support.virtual_time import VirtualClock

from benchmarks import report
from benchmarks.report import Verdict
from postroom.mailboxes.gmail.methods import PROFILES, ProfileName
from postroom.mailboxes.limiter import limiter_for
from postroom.sim.gmail.control import TOKEN_HEADER

_MINUTES = 10
_READERS = 3


@dataclass(frozen=True, slots=True)
class QuotaUse:
    profile: str
    share_used: float
    """Of the allowance, from the first second on: the ramp-up is part of it."""
    share_throttled: float
    messages_per_second: float


def quota_use(name: ProfileName) -> QuotaUse:
    return virtual_time.run(_measured(name))


async def _measured(name: ProfileName) -> QuotaUse:
    profile, clock = PROFILES[name], VirtualClock()
    sim = in_process_sim(mailbox(200), profile, clock)
    async with sim.client(limiter_for(profile, clock, dice=random.Random(1)), profile) as client:
        ids = [ref.id async for page in client.list_messages() for ref in page.messages]

        async def read() -> None:
            while True:
                await client.get_messages(ids)

        readers = [asyncio.create_task(read()) for _ in range(_READERS)]
        await asyncio.sleep(_MINUTES * 60)
        state = sim.control.state()
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
    gets = state.calls["messages.get"]
    return QuotaUse(
        profile=name,
        share_used=state.units / (profile.units_per_minute * _MINUTES),
        share_throttled=state.throttled / gets,
        messages_per_second=(gets - state.throttled) / (_MINUTES * 60),
    )


RESULTS = Path(__file__).parent / "results" / "gmail.json"
LEAST_OVER_GOOGLE = 5.0
LEAST_QUOTA_USED = 0.95
MOST_THROTTLED = 0.01
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Contender:
    name: str
    task: dict[str, Any]


CONTENDERS = (
    Contender("google-api-python-client, batches of 50", {"client": "google"}),
    Contender("postroom, batches of 20 (its default)", {"client": "postroom", "batch_size": 20}),
    Contender("postroom, batches of 50", {"client": "postroom", "batch_size": 50}),
)
GOOGLE, OURS = CONTENDERS[0].name, CONTENDERS[2].name
"""Compared at the same width; what is kind to the real service is shown beside it."""


@dataclass(frozen=True, slots=True)
class Run:
    contender: str
    delay_ms: int
    messages_per_second: float
    client_cpu_us: float
    server_cpu_us: float


class StandIn:
    """The running stand-in, seen from outside."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        assert process.stdout is not None
        self.ready = json.loads(process.stdout.readline())

    def ids(self) -> list[str]:
        ids: list[str] = []
        token = ""
        while True:
            page = self._ask(f"/gmail/v1/users/me/messages?maxResults=500&pageToken={token}")
            ids += [each["id"] for each in page["messages"]]
            token = page.get("nextPageToken", "")
            if not token:
                return ids

    def delay_answers(self, delay_ms: int) -> None:
        self._control("faults/clear", {})
        if delay_ms:
            self._control("faults", {"fault": {"kind": "latency", "seconds": delay_ms / 1_000}})

    def fetch(self, contender: Contender, ids: list[str], delay_ms: int) -> Run:
        task = {"url": self.ready["url"], "token": self.ready["token"], "ids": ids} | contender.task
        cpu_before = self._cpu_seconds()
        command = [sys.executable, "-m", "benchmarks.gmail_clients", json.dumps(task)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            raise RuntimeError(f"{contender.name} failed: {done.stderr.strip()[-500:]}")
        fetch = json.loads(done.stdout)
        assert fetch["messages"] == len(ids)
        per_message = 1e6 / len(ids)
        server_cpu = self._cpu_seconds() - cpu_before
        rate = fetch["messages"] / fetch["seconds"]
        return Run(contender.name, delay_ms, rate, fetch["cpu_seconds"] * per_message, server_cpu * per_message)

    def _cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def _ask(self, path: str) -> Any:
        return self._open(Request(self.ready["url"] + path, headers=self._bearer()))  # noqa: S310 - loopback

    def _control(self, action: str, body: dict[str, Any]) -> None:
        headers = {TOKEN_HEADER: self.ready["control_token"]}
        url = f"{self.ready['url']}/_sim/{action}"
        self._open(Request(url, json.dumps(body).encode(), headers))  # noqa: S310 - loopback

    def _bearer(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.ready['token']}"}

    def _open(self, request: Request) -> Any:
        with urlopen(request, timeout=60) as answer:  # noqa: S310 - loopback
            return json.load(answer)


@contextmanager
def stand_in(messages: int, server: str = "benchmarks.gmail_server") -> Iterator[StandIn]:
    command = [sys.executable, "-m", server, str(messages)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield StandIn(process)
        finally:
            process.terminate()


def throughput(messages: int, rounds: int, delays_ms: Sequence[int]) -> list[Run]:
    runs: list[Run] = []
    with stand_in(messages) as server, Progress(transient=True) as progress:
        bar = progress.add_task("fetching", total=rounds * len(delays_ms) * len(CONTENDERS))
        ids = server.ids()
        for delay_ms in delays_ms:
            server.delay_answers(delay_ms)
            for _ in range(rounds):
                for contender in CONTENDERS:
                    runs.append(server.fetch(contender, ids, delay_ms))
                    progress.advance(bar)
    return runs


def middle(runs: Sequence[Run], contender: str, delay_ms: int, figure: str) -> float:
    chosen = [run for run in runs if (run.contender, run.delay_ms) == (contender, delay_ms)]
    return float(median(getattr(run, figure) for run in chosen))


def throughput_table(runs: Sequence[Run], delays_ms: Sequence[int]) -> Table:
    shown = Table(title="Raw messages, medians", title_justify="left")
    shown.add_column("contender")
    for column in ("delay, ms", "messages a second", "client CPU, µs a message", "stand-in CPU, µs a message"):
        shown.add_column(column, justify="right")
    for delay_ms in delays_ms:
        for contender in CONTENDERS:
            figures = ("messages_per_second", "client_cpu_us", "server_cpu_us")
            cells = [f"{middle(runs, contender.name, delay_ms, figure):,.0f}" for figure in figures]
            shown.add_row(contender.name, str(delay_ms), *cells)
    return shown


def judge(runs: Sequence[Run], delays_ms: Sequence[int], quotas: Sequence[QuotaUse]) -> list[Verdict]:
    verdicts = []
    for delay_ms in delays_ms:
        ours, theirs = (middle(runs, name, delay_ms, "messages_per_second") for name in (OURS, GOOGLE))
        what = f"messages a second over google-api-python-client, {delay_ms} ms delay"
        goal = f"at least {LEAST_OVER_GOOGLE:g}x"
        met = ours / theirs >= LEAST_OVER_GOOGLE
        verdicts.append(Verdict(what, ours / theirs, goal, met, ours=ours, peer=GOOGLE, theirs=theirs))
        cpu = middle(runs, GOOGLE, delay_ms, "client_cpu_us") / middle(runs, OURS, delay_ms, "client_cpu_us")
        verdicts.append(Verdict(f"CPU of google-api-python-client over ours, {delay_ms} ms delay", cpu, "none", None))
    for use in quotas:
        used, refused = use.share_used * 100, use.share_throttled * 100
        goal = f"at least {LEAST_QUOTA_USED:.0%}"
        verdicts.append(Verdict(f"{use.profile}: quota used", used, goal, use.share_used >= LEAST_QUOTA_USED, " %"))
        goal = f"under {MOST_THROTTLED:.0%}"
        met = use.share_throttled < MOST_THROTTLED
        verdicts.append(Verdict(f"{use.profile}: calls throttled", refused, goal, met, " %"))
    return verdicts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="a first look: fewer messages, one round")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where to keep the figures as JSON")
    options = parser.parse_args()
    messages, rounds, delays_ms = (1_500, 1, (0, 50)) if options.quick else (6_000, 3, (0, 50))
    facts = report.machine_facts("-")
    runs = throughput(messages, rounds, delays_ms)
    quotas = [quota_use(name) for name in ProfileName]
    verdicts = judge(runs, delays_ms, quotas)
    console = Console(width=max(Console().width, 120))
    console.print(throughput_table(runs, delays_ms))
    console.print(report.verdict_table(verdicts))
    figures = {"machine": facts, "messages": messages, "runs": [asdict(run) for run in runs]}
    figures |= {"quota": [asdict(use) for use in quotas], "goals": [asdict(verdict) for verdict in verdicts]}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(figures, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()

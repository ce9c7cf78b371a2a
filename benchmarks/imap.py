"""Measures a sync from Dovecot beside mbsync (isync): `python -m benchmarks.imap`. Both are processes, started anew for
each run, and read the same mailbox from the same server on this machine.

- *First*: all messages, to a Maildir for mbsync, into archive and index for Postroom.
- *Again*: a run that finds nothing new.
- *Check*: the same within a process that runs already, as `postroom up` does. mbsync is always a process.

Seconds are the clock's. CPU seconds are those of the client alone, and say more where other programs run beside it;
Postroom's first two hold about a second in which Python starts.
"""

from __future__ import annotations

import argparse
import asyncio
import compileall
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from tests.support.commands import environment
from tests.support.dovecot import Dovecot, dovecot, server_user
from tests.support.imap import BARE, crlf
from tests.support.isync import has_mbsync, mbsync_command
from tests.support.mail import letter

import postroom
from benchmarks import report
from benchmarks.report import Verdict
from postroom.accounts.account import list_accounts
from postroom.app import open_app
from postroom.audit import SYSTEM
from postroom.settings import Settings, SyncSettings
from postroom.telemetry import logs

OURS, PEER = "postroom", "mbsync"
SIZES = (2_000, 20_000)
_SMALL = 5_000
LEAST_OVER_PEER = 1.0
LEAST_OVER_PEER_AGAIN = 2.0
RESULTS = Path(__file__).parent / "results" / "imap.json"

_FIRST = 1_600_000_000
_UNHURRIED = {"POSTROOM_SYNC__SETTLE_S": "0", "POSTROOM_SYNC__RPS_START": "500", "POSTROOM_SYNC__RPS_MAX": "500"}


@dataclass(frozen=True, slots=True)
class ImapRun:
    contender: str
    extensions: bool
    """Whether the server has those that save work, such as CONDSTORE and QRESYNC."""
    messages: int
    first_s: float
    first_cpu_s: float
    again_s: float
    again_cpu_s: float
    check_s: float
    check_cpu_s: float


def fill(server: Dovecot, messages: int, folders: int) -> None:
    """Straight into the server's folders."""
    names = [f"Box{number}" for number in range(folders - 1)]
    with server.client() as client:
        for name in names:
            client.create(name)
    places = [server.maildir, *(server.maildir / f".{name}" for name in names)]
    for number in range(messages):
        raw = crlf(letter(f"Letter {number}", "All is well.\n" * 200, headers={"Message-ID": f"<{number}@x.example>"}))
        path = places[number % folders] / "cur" / f"{_FIRST + number}.M{number}P1.here:2,S"
        path.write_bytes(raw)
        os.utime(path, (_FIRST + number * 600, _FIRST + number * 600))
    if os.getuid() == 0:
        user = server_user()
        for path in server.maildir.rglob("*"):
            os.chown(path, user.pw_uid, user.pw_gid)


def timed(command: Sequence[str], env: Mapping[str, str]) -> tuple[float, float]:
    """Seconds of the clock, and of the processor."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{command[0]} failed: {done.stderr[-2_000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.monotonic() - began, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def by_mbsync(server: Dovecot, folder: Path) -> list[tuple[float, float]]:
    command = mbsync_command(server, folder)
    first, again = (timed(command, dict(os.environ)) for _ in range(2))
    return [first, again, again]


async def by_postroom(server: Dovecot, folder: Path) -> list[tuple[float, float]]:
    home = folder / "home"
    home.mkdir(mode=0o700)
    async with open_app(Settings(home=home)) as app:
        await app.take_in(server.login(), SYSTEM)
    command = [sys.executable, "-m", "postroom", "sync", "run", "--once"]
    env = environment(home, _UNHURRIED)
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed Postroom is compiled
    compileall.compile_dir(str(Path(postroom.__file__).parent), quiet=1)
    runs = [await asyncio.to_thread(timed, command, env) for _ in range(2)]
    return [*runs, await checked(home)]


async def checked(home: Path) -> tuple[float, float]:
    """The second sync within one process."""
    unhurried = SyncSettings(settle_s=0)
    async with open_app(Settings(home=home, sync=unhurried)) as app:
        accounts = await app.database.read(list_accounts)
        async with app.sync.opened(accounts, "a benchmark") as [sync]:
            await sync.engine.run(once=True)
            began, cpu = time.monotonic(), time.process_time()
            await sync.engine.run(once=True)
            return time.monotonic() - began, time.process_time() - cpu


async def measure(sizes: Sequence[int], rounds: int) -> list[ImapRun]:
    found = []
    with Progress(transient=True) as progress:
        bar = progress.add_task("syncing", total=rounds * len(sizes) * 4)
        for messages in sizes:
            for _ in range(rounds):
                for capability in ("", BARE):
                    found += await _both(messages, capability)
                    progress.advance(bar, 2)
    return found


async def _both(messages: int, capability: str) -> list[ImapRun]:
    found = []
    with dovecot(capability=capability) as server:
        fill(server, messages, folders_for(messages))
        for contender in (PEER, OURS):
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                runs = await by_postroom(server, folder) if contender == OURS else by_mbsync(server, folder)
                found.append(ImapRun(contender, not capability, messages, *runs[0], *runs[1], *runs[2]))
    return found


def folders_for(messages: int) -> int:
    return 40 if messages > _SMALL else 20


def middle(runs: Sequence[ImapRun], contender: str, messages: int, *, extensions: bool) -> ImapRun:
    """Of each figure the median over all rounds."""
    same = [run for run in runs if (run.contender, run.messages, run.extensions) == (contender, messages, extensions)]
    figures = (median(getattr(run, each.name) for run in same) for each in fields(ImapRun)[3:])
    return ImapRun(contender, extensions, messages, *figures)


def judge(runs: Sequence[ImapRun]) -> list[Verdict]:
    verdicts = []
    for messages in dict.fromkeys(run.messages for run in runs):
        for extensions in (True, False):
            ours, theirs = (middle(runs, name, messages, extensions=extensions) for name in (OURS, PEER))
            mailbox = f"{messages:,} messages, {'all' if extensions else 'no'} extensions"
            rates = messages / ours.first_s, messages / theirs.first_s
            verdicts.append(_over_peer(f"{mailbox}: first sync over {PEER}", *rates, LEAST_OVER_PEER))
            if not extensions:
                looks = 1 / ours.check_s, 1 / theirs.again_s
                what = f"{mailbox}: nothing new, looks a second, in a running process over {PEER}"
                verdicts.append(_over_peer(what, *looks, LEAST_OVER_PEER_AGAIN))
    return verdicts


def _over_peer(what: str, ours: float, theirs: float, least: float) -> Verdict:
    over = ours / theirs
    return Verdict(what, over, f"at least {least:g}x", over >= least, ours=ours, peer=PEER, theirs=theirs)


def run_table(runs: Sequence[ImapRun]) -> Table:
    table = Table(
        "contender", "extensions", "messages/s", "per CPU second", "nothing new, s", "CPU s", "check, s", "CPU s"
    )
    for run in runs:
        rates = (f"{run.messages / run.first_s:,.0f}", f"{run.messages / run.first_cpu_s:,.0f}")
        yes = "yes" if run.extensions else "no"
        quiet = (run.again_s, run.again_cpu_s, run.check_s, run.check_cpu_s)
        table.add_row(run.contender, yes, *rates, *(f"{each:.2f}" for each in quiet))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, nargs="+", default=SIZES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS, help="where to keep the figures as JSON")
    chosen = parser.parse_args()
    if not has_mbsync():
        raise SystemExit("mbsync is not installed (apt-get install isync)")
    logs.configure(level="error")
    facts = report.machine_facts("-")
    runs = asyncio.run(measure(chosen.messages, chosen.rounds))
    verdicts = judge(runs)
    console = Console(width=max(Console().width, 120))
    console.print(run_table(runs))
    console.print(report.verdict_table(verdicts))
    figures = {"machine": facts, "runs": [asdict(run) for run in runs], "goals": [asdict(one) for one in verdicts]}
    chosen.out.write_text(json.dumps(figures, indent=2, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()

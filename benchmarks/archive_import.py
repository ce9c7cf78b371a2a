"""Measures the import beside notmuch on the same mail, in one run: `python -m benchmarks.archive_import`.

Needs Debian's `notmuch`. Every run is a process of its own, from mail files to an index that can be searched, and is
synced to disk when it ends. `--words 300` takes plain letters of that length instead of the generated mailbox, whose
messages are short: how much text there is decides how much an indexer has to do.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import NamedTuple

from rich.console import Console
from rich.table import Table
from tests.support.mail_files import write_maildir, write_mbox

from postroom.gmail.sim.mailbox import GeneratedMailbox

OWNER = "owner@example.com"
RESULTS = Path(__file__).parent / "results" / "archive_import.json"
_VOCABULARY = 40_000


@dataclass(frozen=True, slots=True)
class Run:
    contender: str
    messages_per_second: float
    cpu_seconds: float
    peak_mb: float
    """Of its largest process."""
    disk_mb: float


def generated_mail(count: int) -> Iterator[bytes]:
    box = GeneratedMailbox(count, 1, OWNER)
    return (box.raw(index) for index in range(count))


def letters(count: int, words: int) -> Iterator[bytes]:
    """Letters whose words are as unevenly common as those of a language."""
    box = GeneratedMailbox(count, 1, OWNER)
    dice = random.Random(1)
    vocabulary = ["".join(dice.choices("abcdefghijklmnoprstuvw", k=dice.randint(2, 10))) for _ in range(_VOCABULARY)]
    weights = list(accumulate(1 / rank for rank in range(1, _VOCABULARY + 1)))
    for index in range(count):
        summary = box.summary(index)
        head = f"From: someone@example.org\nTo: {OWNER}\nMessage-ID: <{index}@example.org>\nSubject: letter {index}\n"
        date = time.strftime("%d %b %Y %H:%M:%S +0000", time.gmtime(summary.internal_date / 1_000))
        text = dice.choices(vocabulary, cum_weights=weights, k=words)
        lines = "\n".join(" ".join(text[start : start + 12]) for start in range(0, words, 12))
        yield f"{head}Date: {date}\n\n{lines}\n".encode()


class Measured(NamedTuple):
    seconds: float
    cpu_seconds: float
    peak_mb: float


def postroom(mail: Path, format: str, home: Path) -> Measured:
    command = [sys.executable, "-m", "postroom", "import", format, str(mail), "--account", OWNER, "--json"]
    return measured(command, {"POSTROOM_HOME": str(home)})


def notmuch(mail: Path, home: Path) -> Measured:
    (home / "config").write_text(
        f"[database]\npath={home / 'index'}\nmail_root={mail}\n[user]\nname=Owner\nprimary_email={OWNER}\n"
        "[new]\ntags=new\n[maildir]\nsynchronize_flags=false\n"
    )
    (home / "index").mkdir()
    return measured(["notmuch", "new", "--quiet"], {"NOTMUCH_CONFIG": str(home / "config")})


def measured(command: list[str], environment: dict[str, str]) -> Measured:
    """Until the command has ended and the disk has what it wrote."""
    started = time.perf_counter()
    process = subprocess.Popen(command, env=os.environ | environment, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    os.sync()
    if process.returncode:
        raise SystemExit(f"{command[0]} failed with exit code {process.returncode}")
    return Measured(time.perf_counter() - started, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def contest(count: int, words: int, rounds: int) -> Iterator[Run]:
    """The contenders take turns, so that noise hits all alike."""
    with tempfile.TemporaryDirectory() as name:
        mbox, maildir, home = Path(name, "mail.mbox"), Path(name, "Maildir"), Path(name, "home")
        write_mbox(mbox, letters(count, words) if words else generated_mail(count))
        write_maildir(maildir, letters(count, words) if words else generated_mail(count))
        contenders: dict[str, Callable[[], Measured]] = {
            "postroom, mbox": lambda: postroom(mbox, "mbox", home),
            "postroom, Maildir": lambda: postroom(maildir, "maildir", home),
            "notmuch, Maildir": lambda: notmuch(maildir, home),
        }
        for _ in range(rounds):
            for contender, run in contenders.items():
                home.mkdir()
                done = run()
                disk = sum(file.stat().st_size for file in home.rglob("*") if file.is_file()) / 1e6
                yield Run(contender, count / done.seconds, done.cpu_seconds, done.peak_mb, disk)
                shutil.rmtree(home)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--words", type=int, default=0, help="letters of so many words; 0: the generated mailbox")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if shutil.which("notmuch") is None:
        raise SystemExit("notmuch is not installed: apt-get install notmuch")
    runs = list(contest(options.messages, options.words, options.rounds))
    RESULTS.parent.mkdir(exist_ok=True)
    facts = {"messages": options.messages, "words": options.words, "cores": os.cpu_count(), "load": os.getloadavg()}
    RESULTS.write_text(json.dumps({**facts, "runs": [asdict(run) for run in runs]}, indent=2))
    Console().print(shown(runs))


def shown(runs: list[Run]) -> Table:
    table = Table("contender", "messages/s", "against notmuch", "CPU s", "peak MB", "disk MB")
    rates = {
        name: median(run.messages_per_second for run in runs if run.contender == name)
        for name in dict.fromkeys(run.contender for run in runs)
    }
    for name, rate in rates.items():
        one = next(run for run in runs if run.contender == name)
        ratio = rate / rates["notmuch, Maildir"]
        table.add_row(
            name, f"{rate:,.0f}", f"{ratio:.1f}x", f"{one.cpu_seconds:.1f}", f"{one.peak_mb:.0f}", f"{one.disk_mb:.0f}"
        )
    return table


if __name__ == "__main__":
    main()

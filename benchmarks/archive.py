"""Measures the archive beside notmuch on the same mail, in one run: `python -m benchmarks.archive`.

Imports: rate, memory, size on disk; each is a process of its own, from mail files to an index that can be searched.
Searches: the first page of 20, newest first, by kind of query; each contender answers in a process that has the index
open. With `--mail documents` the text of attachments is indexed between the two, and only Postroom is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import report
from benchmarks.archive_mail import DOCUMENT_EVERY, OWNER, Kind, MailFiles, write
from benchmarks.archive_search import LABELS, LEFT_OUT, Query, document_queries, queries, words_of
from benchmarks.peers import notmuch
from benchmarks.peers.notmuch import Notmuch
from benchmarks.report import Verdict
from postroom.archive.coverage import PartState
from postroom.archive.shards.file_archive import FileArchive

_SAMPLED_EVERY_S = 0.1


@dataclass(frozen=True, slots=True)
class Import:
    contender: str
    messages_per_second: float
    cpu_seconds: float
    peak_mb: float
    """Of all its processes together."""
    disk_mb: float
    """Mail included: notmuch needs the Maildir, we do not need the mail's files any more."""


def import_with_postroom(files: MailFiles, count: int, format: str, home: Path) -> Import:
    mail = {"maildir": files.maildir, "eml": files.eml}.get(format, files.mbox)
    command = [sys.executable, "-m", "postroom", "import", format, str(mail), "--account", OWNER, "--json"]
    done = _measured(command, {"POSTROOM_HOME": str(home)}, home)
    return Import(f"postroom, {format}", count / done.seconds, done.cpu_seconds, done.peak_mb, _megabytes(home))


def import_with_notmuch(files: MailFiles, count: int, home: Path) -> Import:
    (home / "config").write_text(
        f"[database]\npath={home / 'index'}\nmail_root={files.maildir}\n[user]\nname=Owner\nprimary_email={OWNER}\n"
        "[new]\ntags=\n[maildir]\nsynchronize_flags=false\n"
    )
    (home / "index").mkdir()
    done = _measured(["notmuch", "new", "--quiet"], {"NOTMUCH_CONFIG": str(home / "config")}, home)
    disk = _megabytes(home) + _megabytes(files.maildir)
    return Import("notmuch, maildir", count / done.seconds, done.cpu_seconds, done.peak_mb, disk)


def tag_in_notmuch(files: MailFiles, home: Path) -> None:
    """The labels that the queries name, which we have from the Takeout; not part of what is measured."""
    wanted = {*LABELS, *LEFT_OUT}
    tags = {name: wanted.intersection(labels) for name, labels in files.labels().items()}
    database = Notmuch(home / "config", writable=True)
    database.tag((str(files.maildir / name), sorted(some)) for name, some in tags.items() if some)
    database.close()


@dataclass(frozen=True, slots=True)
class Indexing:
    """Of attachments, after an import."""

    attachments: int
    indexed: int
    seconds: float
    cpu_seconds: float


def index_attachments(home: Path) -> Indexing:
    """As the background does it, in a process of its own."""
    done = _measured([sys.executable, "-m", "benchmarks.archive_search", "index", str(home)], {}, home)
    with FileArchive(home / "archive").reader() as reader:
        states = reader.coverage(OWNER).attachments
    return Indexing(sum(states.values()), states.get(PartState.INDEXED, 0), done.seconds, done.cpu_seconds)


@dataclass(frozen=True, slots=True)
class _Measured:
    seconds: float
    cpu_seconds: float
    peak_mb: float


def _measured(command: list[str], environment: dict[str, str], home: Path) -> _Measured:
    """Until the command has ended and the disk has what it wrote."""
    started = time.perf_counter()
    with tempfile.TemporaryFile() as complaints:
        process = subprocess.Popen(command, env=os.environ | environment, stdout=subprocess.DEVNULL, stderr=complaints)
        memory = _Memory(process.pid)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        _sync(home)
        seconds = time.perf_counter() - started
        if process.returncode:
            complaints.seek(0)
            raise SystemExit(f"{' '.join(command)} failed: {complaints.read()[-2_000:].decode('utf-8', 'replace')}")
    peak_mb = max(memory.stop(), usage.ru_maxrss / 1_024)
    return _Measured(seconds, usage.ru_utime + usage.ru_stime, peak_mb)


class _Memory:
    """Watches a process and its children; what they share counts once."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._peak_kb = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> float:
        """The highest sum that was seen, in MB."""
        self._ended.set()
        self._thread.join()
        return self._peak_kb / 1_024

    def _watch(self) -> None:
        while not self._ended.wait(_SAMPLED_EVERY_S):
            self._peak_kb = max(self._peak_kb, sum(map(_share_kb, self._processes())))

    def _processes(self) -> list[int]:
        children = []
        with suppress(OSError):  # it has just ended
            for task in Path(f"/proc/{self._pid}/task").iterdir():
                children += [int(child) for child in (task / "children").read_text().split()]
        return [self._pid, *children]


def _share_kb(pid: int) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1])
    return 0


def _sync(folder: Path) -> None:
    """Wait for the disk, for what is in this folder alone: the machine may be writing other things."""
    for file in folder.rglob("*"):
        if file.is_file():
            with file.open("rb") as opened:
                os.fsync(opened)


def _megabytes(folder: Path) -> float:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e6


RESULTS = Path(__file__).parent / "results" / "archive.json"
LEAST_OVER_NOTMUCH = {Kind.MAILBOX: 4.0, Kind.LETTERS: 12.0}
MOST_CPU_US = 250.0
MOST_OVER_MBOX = 1.3
MOST_P95_MS = 5.0
MOST_P95_AT_A_MILLION_MS = 10.0
MOST_BEHIND_MS = 1.0
MOST_MB = 300.0
FORMATS = ("mbox", "maildir", "eml", "takeout")
AS_FILES = {"maildir": "Maildir", "eml": ".eml files"}
"""What has a file for each message."""
OURS, PEER = "postroom", "notmuch"
ALL_KINDS = "all kinds that both know"


@dataclass(frozen=True, slots=True)
class Latency:
    """Of one kind of query, or of all; the times of notmuch are None where it has no such search or is not measured."""

    kind: str
    ours_p50_ms: float
    ours_p95_ms: float
    ours_cpu_p95_ms: float
    """The processor's time says more than the clock where the machine has other work."""
    theirs_p50_ms: float | None
    theirs_p95_ms: float | None
    theirs_cpu_p95_ms: float | None
    same_pages: int | None
    """How many queries found the same messages in both; notmuch also finds other forms of a word."""
    queries: int


@dataclass(frozen=True, slots=True)
class Answers:
    milliseconds: list[list[float]]
    cpu_milliseconds: list[list[float]]
    pages: list[list[str]]
    peak_mb: float


class Contest:
    def __init__(self, folder: Path, files: MailFiles, count: int, *, with_peer: bool) -> None:
        self._folder = folder
        self._files = files
        self._count = count
        self._with_peer = with_peer

    def imports(self, rounds: int, formats: Sequence[str]) -> Iterator[Import]:
        """The contenders take turns, so that noise hits all alike. What the last ones made is left to be searched."""
        contenders: dict[str, Callable[[Path], Import]] = {
            f"{OURS}-{format}": partial(import_with_postroom, self._files, self._count, format) for format in formats
        }
        if self._with_peer:
            contenders[PEER] = partial(import_with_notmuch, self._files, self._count)
        for _ in range(rounds):
            for name, run in contenders.items():
                home = self._folder / name
                shutil.rmtree(home, ignore_errors=True)
                home.mkdir()
                yield run(home)
                if name not in (PEER, f"{OURS}-takeout"):
                    shutil.rmtree(home)
        if self._with_peer:
            tag_in_notmuch(self._files, self._folder / PEER)

    def search(self, asked: Sequence[Query], rounds: int) -> tuple[list[Latency], dict[str, float]]:
        """By kind of query; and how much memory each contender took."""
        ours = self._ask(OURS, f"{OURS}-takeout", [query.ours for query in asked], rounds)
        theirs = None
        if self._with_peer:
            known = [query for query in asked if query.theirs is not None]
            theirs = self._ask(PEER, PEER, [query.theirs or "" for query in known], rounds)
        kinds = dict.fromkeys(query.kind for query in asked)
        latencies = [_latency(kind, {kind}, asked, ours, theirs) for kind in kinds]
        answered_by_both = {query.kind for query in asked if query.theirs is not None}
        latencies.append(_latency(ALL_KINDS, answered_by_both, asked, ours, theirs))
        return latencies, {OURS: ours.peak_mb} | ({PEER: theirs.peak_mb} if theirs else {})

    def _ask(self, contender: str, home: str, asked: Sequence[str], rounds: int) -> Answers:
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(list(asked), file)
            file.flush()
            command = [sys.executable, "-m", "benchmarks.archive_search", contender, str(self._folder / home)]
            done = subprocess.run([*command, file.name, str(rounds)], capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"the searches of {contender} failed: {done.stderr.strip()[-1000:]}")
        return Answers(**json.loads(done.stdout))


def _latency(name: str, kinds: Set[str], asked: Sequence[Query], ours: Answers, theirs: Answers | None) -> Latency:
    mine = [number for number, query in enumerate(asked) if query.kind in kinds]
    known = {query: number for number, query in enumerate(query for query in asked if query.theirs is not None)}
    pairs = [(number, known[asked[number]]) for number in mine if theirs is not None and asked[number] in known]
    our_times = _times(ours, mine)
    if theirs is None or not pairs:
        return Latency(name, *our_times, None, None, None, None, len(mine))
    same = sum(set(ours.pages[one]) == set(theirs.pages[other]) for one, other in pairs)
    return Latency(name, *our_times, *_times(theirs, [number for _, number in pairs]), same, len(mine))


def _times(answers: Answers, numbers: Sequence[int]) -> tuple[float, float, float]:
    """p50 and p95 by the clock, and p95 of the processor's time."""
    clock = [ms for number in numbers for ms in answers.milliseconds[number]]
    cpu = [ms for number in numbers for ms in answers.cpu_milliseconds[number]]
    return median(clock), quantiles(clock, n=20)[-1], quantiles(cpu, n=20)[-1]


def import_table(imports: Sequence[Import]) -> Table:
    shown = Table(title="Imports (medians)", title_justify="left")
    shown.add_column("contender")
    for column in ("messages a second", "over notmuch", "CPU, s", "peak memory, MB", "disk with the mail, MB"):
        shown.add_column(column, justify="right")
    theirs = _rate(imports, PEER)
    for name in dict.fromkeys(one.contender for one in imports):
        some = [one for one in imports if one.contender == name]
        rate = median(one.messages_per_second for one in some)
        figures = [median(getattr(one, figure) for one in some) for figure in ("cpu_seconds", "peak_mb", "disk_mb")]
        over = f"{rate / theirs:.1f}x" if theirs else "-"
        shown.add_row(name, f"{rate:,.0f}", over, *(f"{figure:,.0f}" for figure in figures))
    return shown


def _rate(imports: Sequence[Import], contender: str) -> float | None:
    rates = [one.messages_per_second for one in imports if one.contender.startswith(contender)]
    return median(rates) if rates else None


def search_table(latencies: Sequence[Latency]) -> Table:
    shown = Table(title="Searches: first page of 20, newest first, ms", title_justify="left")
    shown.add_column("kind of query")
    for column in ("postroom p50", "p95", "CPU p95", "notmuch p50", "p95", "CPU p95", "same page"):
        shown.add_column(column, justify="right")
    for one in latencies:
        ours = (one.ours_p50_ms, one.ours_p95_ms, one.ours_cpu_p95_ms)
        theirs = (one.theirs_p50_ms, one.theirs_p95_ms, one.theirs_cpu_p95_ms)
        same = "-" if one.same_pages is None else f"{one.same_pages} of {one.queries}"
        shown.add_row(one.kind, *("-" if ms is None else f"{ms:.2f}" for ms in (*ours, *theirs)), same)
    return shown


def judge(
    imports: Sequence[Import], latencies: Sequence[Latency], kind: Kind = Kind.MAILBOX, messages: int = 0
) -> list[Verdict]:
    """`messages` is how many each import brought in."""
    return [*_judge_imports(imports, kind, messages), *_judge_searches(latencies, messages)]


def _judge_imports(imports: Sequence[Import], kind: Kind, messages: int) -> Iterator[Verdict]:
    theirs = _rate(imports, PEER)
    ours = [one for one in imports if one.contender.startswith(OURS)]
    least = LEAST_OVER_NOTMUCH.get(kind, 0.0)
    for name in dict.fromkeys(one.contender for one in ours) if least else ():
        rate = _rate(imports, name)
        over = rate / theirs if rate and theirs else None
        met = None if over is None else over >= least
        goal = f"at least {least:g}x"
        yield Verdict(f"import: {name} over notmuch", over, goal, met, ours=rate, peer=PEER, theirs=theirs)
    mbox = _rate(imports, f"{OURS}, mbox")
    for format, name in AS_FILES.items():
        if mbox and (rate := _rate(imports, f"{OURS}, {format}")):
            over, goal = mbox / rate, f"at most {MOST_OVER_MBOX:g}x"
            yield Verdict(f"import: mbox over {name}", over, goal, over <= MOST_OVER_MBOX, ours=rate, theirs=mbox)
    if ours and messages:
        cpu_us = min(one.cpu_seconds for one in ours) / messages * 1e6
        yield Verdict("import: CPU a message", cpu_us, f"at most {MOST_CPU_US:g} µs", cpu_us <= MOST_CPU_US, " µs")
    if ours:
        memory = max(one.peak_mb for one in ours)
        yield Verdict("import: memory", memory, f"at most {MOST_MB:g} MB", memory <= MOST_MB, " MB")


def _judge_searches(latencies: Sequence[Latency], messages: int) -> Iterator[Verdict]:
    """All queries together, and the kind that fares worst."""
    everything = latencies[-1]
    kinds = latencies[:-1]
    most = MOST_P95_MS if messages < 1_000_000 else MOST_P95_AT_A_MILLION_MS
    goal = f"at most {most:g} ms"
    for one in (everything, max(kinds, key=lambda kind: kind.ours_p95_ms)):
        yield Verdict(f"search: p95, {one.kind}", one.ours_p95_ms, goal, one.ours_p95_ms <= most, " ms")
    compared = [(one.theirs_p95_ms / one.ours_p95_ms, one) for one in latencies if one.theirs_p95_ms]
    for ratio, one in compared[-1:]:
        what = f"search: p95 of notmuch over ours, {one.kind}, ms"
        yield Verdict(what, ratio, "over 1x", ratio > 1, ours=one.ours_p95_ms, peer=PEER, theirs=one.theirs_p95_ms)
    behind = [(one.ours_p95_ms - one.theirs_p95_ms, one) for one in kinds if one.theirs_p95_ms is not None]
    for slower, one in sorted(behind, key=lambda pair: -pair[0])[:1]:
        what = f"search: p95 behind notmuch at most, {one.kind}"
        yield Verdict(what, slower, f"at most {MOST_BEHIND_MS:g} ms", slower <= MOST_BEHIND_MS, " ms",
                      peer=PEER, theirs=one.theirs_p95_ms)  # fmt: skip


@contextmanager
def workplace(kept: Path | None) -> Iterator[Path]:
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
        yield kept
        return
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def measure(options: argparse.Namespace, console: Console) -> dict[str, Any]:
    with_documents = options.mail == Kind.DOCUMENTS
    with_peer = not (options.without_peer or with_documents) and _peer_is_there(console)
    with workplace(options.folder) as folder:
        files = MailFiles(folder)
        if not files.exist:
            console.print(f"writing {options.messages:,} messages ({options.mail})")
            files = write(folder, Kind(options.mail), options.messages, with_maildir=with_peer)
        contest = Contest(folder, files, options.messages, with_peer=with_peer)
        imports: list[Import] = []
        formats = ["takeout"] if with_documents else [each for each in FORMATS if with_peer or each not in AS_FILES]
        for done in contest.imports(options.rounds, formats) if not options.only_search else ():
            console.print(f"imported: {done.contender}, {done.messages_per_second:,.0f}/s")
            imports.append(done)
        words = words_of(files.sample())
        asked = queries(words)
        indexing = None
        if with_documents:
            indexing = index_attachments(folder / f"{OURS}-takeout")
            console.print(f"attachments read in {indexing.seconds:,.0f} s: {indexing}")
            asked += document_queries(words, options.messages // DOCUMENT_EVERY)
        latencies, memory = contest.search(asked, options.asked)
    verdicts = judge(imports, latencies, Kind(options.mail), options.messages)
    for shown in (import_table(imports), search_table(latencies), report.verdict_table(verdicts)):
        console.print(shown)
    return {
        "imports": [asdict(one) for one in imports],
        "indexing": asdict(indexing) if indexing else None,
        "searches": [asdict(one) for one in latencies],
        "search_peak_mb": memory,
        "goals": [asdict(verdict) for verdict in verdicts],
    }


def _peer_is_there(console: Console) -> bool:
    is_there = shutil.which("notmuch") is not None and notmuch.is_installed()
    if not is_there:
        console.print("notmuch is not installed (apt-get install notmuch): only Postroom is measured")
    return is_there


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=30_000)
    parser.add_argument("--mail", choices=[*Kind], default=Kind.LETTERS)
    parser.add_argument("--rounds", type=int, default=1, help="how often everything is imported")
    parser.add_argument("--asked", type=int, default=5, help="how often every query is asked")
    parser.add_argument("--without-peer", action="store_true")
    parser.add_argument("--folder", type=Path, help="keep mail and archives there, and use again what is there")
    parser.add_argument("--only-search", action="store_true", help="search what an earlier run left in the folder")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where to keep the figures as JSON")
    options = parser.parse_args()
    console = Console(width=max(Console().width, 120))
    facts = report.machine_facts("-") | {"messages": options.messages, "mail": options.mail}
    figures = {"machine": facts} | measure(options, console)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(figures, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()

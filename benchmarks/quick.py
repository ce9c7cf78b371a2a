"""A few ratios to peers in under five minutes, compared with those that were kept: `make bench-quick`.

    python -m benchmarks.quick          fail where a ratio is a third below the one that is kept
    python -m benchmarks.quick --keep   measure, and keep what was found

Import, search and rules are compared by processor time, which other work on the machine changes little; the queue by
the clock, ours and a raw loop in turns. A peer that is not installed is passed over, and said.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from benchmarks import queue_contenders, triage
from benchmarks.archive import PEER, Contest
from benchmarks.archive_mail import Kind, write
from benchmarks.archive_search import queries, words_of
from benchmarks.peers import notmuch
from benchmarks.queue_contenders import ENTRIES, POSTROOM, RAW
from benchmarks.queue_contract import Load, Measure, Store
from benchmarks.report import machine_facts

RESULTS = Path(__file__).parent / "results" / "quick.json"
LEAST_SHARE = 2 / 3
"""Of a kept ratio."""
_QUEUE_SECONDS = 60.0

Ratios = dict[str, float]


def archive_ratios(folder: Path, messages: int) -> Ratios:
    """What notmuch needs over what we need, to import short mail and to answer searches of all kinds."""
    files = write(folder, Kind.MAILBOX, messages, with_maildir=True)
    contest = Contest(folder, files, messages, with_peer=True)
    imports = list(contest.imports(1, ["maildir", "takeout"]))
    theirs = next(one for one in imports if one.contender.startswith(PEER))
    ratios = {
        f"import: CPU of notmuch over {one.contender}": theirs.cpu_seconds / one.cpu_seconds
        for one in imports
        if one is not theirs
    }
    latencies, _ = contest.search(queries(words_of(files.sample())), rounds=3)
    shared = [one for one in latencies if one.theirs_cpu_p95_ms]
    ratios["search: CPU p95 of notmuch over ours, median of kinds"] = median(
        (one.theirs_cpu_p95_ms or 0.0) / one.ours_cpu_p95_ms for one in shared
    )
    return ratios


def rule_ratios(messages: int) -> Ratios:
    ours, theirs, *_ = triage.run(messages, rules=200, runs=3)
    return {"rules: ours over a loop with re": ours.per_second / theirs.per_second}


def queue_ratios(folder: Path, jobs: int, rounds: int = 3) -> Ratios:
    """On SQLite with NORMAL, where the disk counts least."""
    entries = {entry.name: entry for entry in ENTRIES if "sqlite" in entry.function or entry.name == POSTROOM}
    drains: dict[str, list[float]] = {POSTROOM: [], RAW: []}
    for number in range(rounds):
        for name, found in drains.items():
            place = folder / f"{number}-{name.replace(' ', '-')}"
            place.mkdir()
            store = Store(f"sqlite:///{place}/queue.db", "normal")
            load = Load(single=100, batched=jobs)
            found.append(queue_contenders.run(entries[name].function, store, load, {}, _QUEUE_SECONDS)[Measure.DRAIN])
            shutil.rmtree(place)
    return {"queue, SQLite NORMAL: ours over a raw loop": median(drains[POSTROOM]) / median(drains[RAW])}


def measure(messages: int) -> tuple[Ratios, list[str]]:
    """The ratios, and what was passed over."""
    ratios: Ratios = {}
    passed_over = []
    with tempfile.TemporaryDirectory(prefix="postroom-quick-") as name:
        folder = Path(name)
        if shutil.which("notmuch") is not None and notmuch.is_installed():
            ratios |= archive_ratios(folder, messages)
        else:
            passed_over.append("import and search: notmuch is not installed")
        ratios |= rule_ratios(messages * 10)
        ratios |= queue_ratios(folder, messages)
    return ratios, passed_over


def dropped(measured: Mapping[str, float], kept: Mapping[str, float]) -> list[str]:
    """The ratios that are a third or more below what was kept, in words."""
    return [
        f"{what}: {measured[what]:.2f}x, was {kept[what]:.2f}x"
        for what in kept
        if what in measured and measured[what] <= kept[what] * LEAST_SHARE
    ]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", action="store_true", help="keep what is found, to be compared with later")
    parser.add_argument("--messages", type=int, default=12_000)
    parser.add_argument("--file", type=Path, default=RESULTS, help="where the ratios are kept (default: %(default)s)")
    options = parser.parse_args(arguments)
    facts = machine_facts("not used") | {"messages": options.messages}
    ratios, passed_over = measure(options.messages)
    kept = json.loads(options.file.read_text("utf-8"))["ratios"] if options.file.exists() else {}
    for what, ratio in ratios.items():
        before = f", kept {kept[what]:.2f}x" if what in kept else ""
        print(f"{what}: {ratio:.2f}x{before}")
    for what in passed_over:
        print(f"not measured: {what}")
    if options.keep:
        options.file.write_text(json.dumps({"machine": facts, "ratios": ratios}, indent=2) + "\n", "utf-8")
        return 0
    worse = dropped(ratios, kept)
    for line in worse:
        print(f"dropped by a third or more: {line}", file=sys.stderr)
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

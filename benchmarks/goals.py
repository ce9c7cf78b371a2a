"""The goals of the design and what was reached, in one table made from the figures that each benchmark left behind.

    python -m benchmarks.goals run [PART ...]
                                       measure everything, or these, one part after the other, and write the tables
    python -m benchmarks.goals         judge the figures that are there by today's goals, and write the tables
    python -m benchmarks.goals check   fail if a file or a page does not say what the figures say

docs/benchmarks.md also gets the figures of each part, one by one (`benchmarks.detail`). What was not measured, or long
before the rest, or on another machine, is said.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from benchmarks import detail

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"
README, WHOLE = ROOT / "README.md", ROOT / "docs" / "benchmarks.md"
_GOALS = "goals"
STALE_AFTER = timedelta(days=14)
_PATIENCE = 4
"""A part that takes so many times as long as expected is stopped."""


@dataclass(frozen=True, slots=True)
class Part:
    """A benchmark that judges goals of the design. `minutes` is what it takes on two cores."""

    name: str
    minutes: int
    options: tuple[str, ...] = ()
    module: str = ""
    """Where it is not called like the part."""

    @property
    def file(self) -> Path:
        return RESULTS / f"{self.name}.json"

    @property
    def command(self) -> list[str]:
        return ["-m", f"benchmarks.{self.module or self.name}", *self.options]


_A_MILLION = ("--mail", "mailbox", "--messages", "1000000", "--without-peer")
_DOCUMENTS = ("--mail", "documents", "--messages", "250000")
PARTS = (
    Part("queue", 10),
    Part("queue_workers", 8),
    Part("gmail", 5),
    Part("archive", 20, ("--mail", "mailbox", "--messages", "250000")),
    Part("archive_documents", 15, (*_DOCUMENTS, "--out", str(RESULTS / "archive_documents.json")), "archive"),
    Part("archive_million", 30, (*_A_MILLION, "--out", str(RESULTS / "archive_million.json")), "archive"),
    Part("sync", 5),
    Part("imap", 4),
    Part("switchboard", 3),
    Part("whole_way", 2),
    Part("scale", 3),
    Part("growth", 15),
    Part("starting", 2),
    Part("triage", 3, ("--json", str(RESULTS / "triage.json"))),
    Part("dashboard", 15),
    Part("soak", 12),
)


HIGHLIGHTS = {
    "Live mail taken in, archived, decided and acted on": ("whole_way", "live mail taken in"),
    "Search over 250,000 messages, p95, ms": ("archive", "search: p95 of notmuch over ours"),
    "Import of an mbox of short mail, messages a second": ("archive", "import: postroom, mbox over notmuch"),
    "Fetching from Gmail, 50 ms away, messages a second": (
        "gmail",
        "messages a second over google-api-python-client, 50 ms",
    ),
    "Sync of a mailbox into the archive, 50 ms away, messages a second": (
        "sync",
        "sync over google-api-python-client, fetching only, 50",
    ),
    "Jobs a second on SQLite, each on disk": ("queue", "SQLite, synchronous FULL: drain, Postroom over"),
    "Jobs a second on PostgreSQL": ("queue", "PostgreSQL, fsync on: drain, Postroom over"),
    "Mail taken in over MCP, in batches": ("switchboard", "ingest over MCP into SQLite, full by reference"),
    "Messages judged by 200 rules, one core": ("triage", "messages against 200 rules"),
    "Slowest page at a million messages, p95": ("dashboard", "sqlite: p95 of the slowest page"),
}
"""The ten figures that matter to a user: the part, and how the goal begins."""


def highlights(figures: dict[str, Any]) -> Iterator[str]:
    yield "| what | Postroom | best peer | ratio | goal | |"
    yield "|---|---|---|---|---|---|"
    for what, (part, beginning) in HIGHLIGHTS.items():
        verdicts = figures.get(part, {}).get("goals", ())
        verdict = next((each for each in verdicts if each["what"].startswith(beginning)), None)
        yield f"| {what} | | | | | not measured |" if verdict is None else _line(what, verdict)


def read(parts: Sequence[Part] = PARTS) -> dict[str, Any]:
    """By the name of their part, the figures that are there."""
    return {part.name: json.loads(part.file.read_text("utf-8")) for part in parts if part.file.exists()}


def table(figures: dict[str, Any], parts: Sequence[Part] = PARTS) -> Iterator[str]:
    yield "| what | Postroom | best peer | ratio | goal | |"
    yield "|---|---|---|---|---|---|"
    for part in parts:
        if part.name not in figures:
            yield f"| {part.name} | | | | | not measured: `python {' '.join(part.command[:2])}` |"
            continue
        for verdict in figures[part.name]["goals"]:
            if verdict["goal"] != "none":
                yield _line(f"{part.name}: {verdict['what']}", verdict)
    yield ""
    yield from _provenance(figures, parts)


def _line(what: str, verdict: dict[str, Any]) -> str:
    measured, unit = verdict["measured"], verdict["unit"]
    is_ratio = unit == "x"
    ours = verdict.get("ours") if is_ratio else measured
    theirs = verdict.get("theirs")
    peer = "" if theirs is None else f"{verdict.get('peer') or ''} {_figure(theirs)}".strip()
    shown = "" if ours is None else _figure(ours) + ("" if is_ratio else unit)
    ratio = f"{measured:.3g}x" if is_ratio and measured is not None else ""
    word = "not measured" if measured is None else "" if verdict["met"] is None else _WORDS[verdict["met"]]
    return f"| {what} | {shown} | {peer} | {ratio} | {verdict['goal']} | {word} |"


_WORDS = {True: "met", False: "**missed**"}


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _provenance(figures: dict[str, Any], parts: Sequence[Part]) -> Iterator[str]:
    """When and on what each part was measured, and how that differs from the newest."""
    dated = {name: datetime.fromisoformat(found["machine"]["date"]) for name, found in figures.items()}
    if not dated:
        yield "Nothing was measured."
        return
    newest = max(dated, key=dated.__getitem__)
    for part in (part for part in parts if part.name in dated):
        machine = figures[part.name]["machine"]
        load = machine.get("load_average_before", [0])[0]
        said = [f"{part.name}: {dated[part.name]:%d %B %Y}", f"{machine['cores']} cores, {machine['platform']}"]
        said += [f"began at a load of {load:g}"] if load > machine["cores"] / 2 else []
        said += ["**stale**"] if dated[newest] - dated[part.name] > STALE_AFTER else []
        said += ["**another machine**"] if not _same(machine, figures[newest]["machine"]) else []
        yield f"- {'; '.join(said)}"


def _same(machine: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(machine[fact] == other[fact] for fact in ("cores", "platform"))


def marks(name: str) -> tuple[str, str]:
    """What stands before and after a table on a page."""
    return f"<!-- {name}: made by `make bench`, do not edit -->", f"<!-- end of {name} -->"


def placed(page: str, name: str, lines: Sequence[str]) -> str:
    """The page with the table between its marks."""
    start, end = marks(name)
    before, opened, rest = page.partition(start)
    _, closed, after = rest.partition(end)
    if not (opened and closed):
        raise ValueError(f"the page has no place for the table: {start} and {end}")
    return f"{before}{start}\n{chr(10).join(lines)}\n{end}{after}"


def unjudged(parts: Sequence[Part] = PARTS) -> dict[Path, Any]:
    """The files whose verdicts are not those of today's goals, with the figures as they should be."""
    from benchmarks.judging import judged  # which loads every benchmark

    kept = {part: json.loads(part.file.read_text("utf-8")) for part in parts if part.file.exists()}
    wanted = {part: judged(part.name, found) for part, found in kept.items()}
    return {part.file: wanted[part] for part in kept if _as_kept(wanted[part]) != _as_kept(kept[part])}


def _as_kept(figures: dict[str, Any]) -> str:
    return json.dumps(figures, indent=2, ensure_ascii=False) + "\n"


def judge(parts: Sequence[Part] = PARTS) -> None:
    for file, figures in unjudged(parts).items():
        file.write_text(_as_kept(figures), "utf-8")


def pages() -> dict[Path, str]:
    """What the pages with figures should say."""
    figures = read()
    readme = placed(README.read_text("utf-8"), _GOALS, list(highlights(figures)))
    whole = placed(WHOLE.read_text("utf-8"), _GOALS, list(table(figures)))
    for name, lines in detail.tables(figures):
        whole = placed(whole, name, lines)
    return {README: readme, WHOLE: whole}


def write() -> None:
    for page, text in pages().items():
        page.write_text(text, "utf-8")


def check() -> list[str]:
    """The pages that do not say what the figures say."""
    return [page.name for page, text in pages().items() if page.read_text("utf-8") != text]


def run(parts: Sequence[Part] = PARTS) -> int:
    """Each part in a process of its own. One that fails or hangs is reported and does not stop the others."""
    expected = sum(part.minutes for part in parts)
    print(f"{len(parts)} parts, about {expected} minutes on two cores, at most {expected * _PATIENCE}", flush=True)
    failed = []
    for part in parts:
        print(f"\n{part.name}: about {part.minutes} minutes", flush=True)
        started = time.monotonic()
        try:
            done = subprocess.run([sys.executable, *part.command], check=False, timeout=part.minutes * 60 * _PATIENCE)
            failed += [part.name] if done.returncode else []
        except subprocess.TimeoutExpired:
            failed.append(part.name)
        print(f"{part.name}: took {(time.monotonic() - started) / 60:.1f} minutes", flush=True)
    if failed:
        print(f"failed, or stopped after {_PATIENCE} times the expected time: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def chosen(names: Sequence[str]) -> Sequence[Part]:
    """The parts of these names, in their order; all where none is named."""
    known = {part.name: part for part in PARTS}
    if unknown := [name for name in names if name not in known]:
        raise SystemExit(f"no part is called {', '.join(unknown)}; there are {', '.join(known)}")
    return [part for part in PARTS if part.name in names] or PARTS


def main(arguments: Sequence[str]) -> int:
    if list(arguments) == ["check"]:
        if stale := [*(file.name for file in unjudged()), *check()]:
            print(f"out of date, run `python -m benchmarks.goals`: {', '.join(stale)}", file=sys.stderr)
        return 1 if stale else 0
    code = run(chosen(arguments[1:])) if arguments[:1] == ["run"] else 0
    judge()
    write()
    print("\n".join(table(read())))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

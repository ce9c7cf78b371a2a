"""How `postroom web` prints: runs and their progress, looks, sources and evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

from rich.progress import BarColumn, TextColumn, TimeElapsedColumn

from postroom.cli.terminal import console, errors, print_table, printable, progress_bar, shown
from postroom.web.evidence import Evidence, EvidenceHit, EvidenceText
from postroom.web.probing import FoundSource
from postroom.web.runs import Run, RunStatus
from postroom.web.sentinel import SentinelReport
from postroom.web.sources import CheckCadence
from postroom.web.walker import BATCH


class WaitingLines:
    """A line before each long wait."""

    def __init__(self) -> None:
        self._reason: str | None = None

    def __call__(self, run: Run) -> None:
        if run.status_reason not in (None, self._reason):
            say(sentence(run.status_reason))
        self._reason = run.status_reason


class ProgressLines:
    """For a stream that is no terminal: lines as of a log, with every fifty addresses, and before a long wait."""

    def __init__(self) -> None:
        self._steps = -1
        self._waiting = WaitingLines()

    def __call__(self, run: Run) -> None:
        if run.discovered_count // BATCH > self._steps:
            self._steps = run.discovered_count // BATCH
            say(f"Progress: {run.discovered_count}/{run.max_urls} URLs")
            say(f"  Queued: {run.queued_count}")
            say(f"  Skipped: {run.skipped_count}")
            say(f"  Errors: {run.error_count}")
        self._waiting(run)


@contextmanager
def progress_of(run: Run) -> Iterator[Callable[[Run], None]]:
    """On the error stream, so that what the command prints can be read by programs."""
    if not errors.is_terminal:
        yield ProgressLines()
        return
    columns = (
        TextColumn("[backfill]", markup=False),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} URLs"),
        TextColumn("{task.fields[counts]}", markup=False),
        TimeElapsedColumn(),
    )
    with progress_bar(*columns) as bar:
        task = bar.add_task("", total=run.max_urls, completed=run.discovered_count, counts=_counts(run))
        waiting = WaitingLines()

        def show(now: Run) -> None:
            waiting(now)
            total = max(now.max_urls, now.discovered_count)
            bar.update(task, total=total, completed=now.discovered_count, counts=_counts(now))

        yield show


def say_waiting(url: str, reason: str, seconds: float) -> None:
    """Before the sentinel waits."""
    say(f"Waiting {seconds:.0f} s: {reason}", lane="sentinel")


def say(text: str, *, lane: str = "backfill") -> None:
    """To the person who waits for the command."""
    errors.print(f"[{lane}] {printable(text)}", markup=False, soft_wrap=True)


def print_summary(run: Run) -> None:
    if run.dry_run:
        _line("DRY RUN - no jobs will be queued")
    if run.status is RunStatus.PENDING:
        _line(f"Run {run.id} waits for a worker")
        return
    for slug in run.sources:
        _line(f"Discovered {run.of_source(slug).discovered} URLs from {slug}")
    verb = "Would queue" if run.dry_run else "Queued"
    _line(f"{verb} {run.queued_count} new items ({run.skipped_count} already exist)")
    console.print()
    columns = ["source", "endpoint", "pages", "discovered", "to queue" if run.dry_run else "queued", "exist", "errors"]
    print_table(columns, _walk_rows(run), empty="")
    console.print()
    why = f": {run.status_reason}" if run.status_reason else ""
    console.print(f"Run {run.id} is {run.status}{printable(why)}", markup=False, soft_wrap=True)


def print_run(run: Run) -> None:
    for field in fields(Run):
        value = getattr(run, field.name)
        if field.name not in ("walks", "error_log", "fence") and value is not None:
            console.print(f"{field.name:<23}{shown(value)}", markup=False, soft_wrap=True)
    console.print()
    columns = ["source", "endpoint", "pages", "discovered", "queued", "skipped", "errors"]
    print_table(columns, _walk_rows(run), empty="")
    if run.error_log:
        console.print()
        rows = ([entry["at"][:19], entry["source"], entry["url"], entry["error"]] for entry in run.error_log)
        print_table(["at", "source", "url", "error"], rows, empty="")


def print_hits(hits: list[EvidenceHit]) -> None:
    rows = ([h.id, h.published_on or h.fetched_at.date(), h.source_slug, h.language, h.title or h.url] for h in hits)
    print_table(
        ["id", "day", "source", "language", "title"],
        rows,
        empty="No page matches, or none is stored yet: a worker fetches what `web sources` shows as waiting.",
    )


def print_evidence(kept: Evidence, text: EvidenceText | None) -> None:
    for part in (kept, text):
        for field in fields(part) if part is not None else ():
            value = getattr(part, field.name)
            if field.name not in ("id", "text", "validators") and value is not None:
                console.print(f"{field.name:<18}{shown(value)}", markup=False, soft_wrap=True)
    if text is not None:
        console.print()
        console.print(printable(text.text), markup=False, soft_wrap=True)


def run_row(run: Run) -> list[object]:
    status = f"{run.status} (dry run)" if run.dry_run else run.status
    counts = (run.discovered_count, run.queued_count, run.skipped_count, run.error_count)
    return [run.id, status, run.mode.lower(), ", ".join(run.sources), *counts, run.run_by, run.status_reason or ""]


def run_json(run: Run) -> dict[str, Any]:
    """For programs: the run without what only its own walks understand."""
    values = {field.name: getattr(run, field.name) for field in fields(Run) if field.name not in ("walks", "fence")}
    per_source = {slug: run.of_source(slug) for slug in run.sources}
    return values | {"per_source": per_source}


def _walk_rows(run: Run) -> list[list[object]]:
    rows: list[list[object]] = []
    for slug in run.sources:
        for walk in (walk for walk in run.walks.values() if walk.source == slug):
            pages = 0 if walk.place is None else walk.place.page - (walk.place.url is None)
            counts = walk.counters
            numbers = (pages, counts.discovered, counts.queued, counts.skipped, counts.errors)
            rows.append([walk.source, walk.endpoint, *numbers])
    return rows


def _counts(run: Run) -> str:
    return f"{run.queued_count} queued, {run.skipped_count} skipped, {run.error_count} errors"


def sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _line(text: str) -> None:
    console.print(f"[backfill] {text}", markup=False, soft_wrap=True)


def print_looks(looks: list[SentinelReport], *, dry_run: bool) -> None:
    """What a look at the sources did, and what is left to do."""
    counted = ["found", "would queue" if dry_run else "new", "known", "older", "changed", "due", "not reached"]
    rows = ([k.source, k.endpoint, *_look_counts(k), "; ".join(k.problems)] for k in looks)
    columns = ["source", "endpoint", *counted, "problems"]
    print_table(columns, rows, empty="No source is watched; `postroom web add URL` follows one.")
    for look in looks:
        if left := _left(look):
            console.print(f"{look.source}: {left}. The next look goes on with that.", markup=False, soft_wrap=True)
    if older := [look.source for look in looks if look.older]:
        named = " ".join(f"--source {slug}" for slug in dict.fromkeys(older))
        how = f"`postroom web backfill --mode sitemap {named}` brings them"
        console.print(f"Older pages are from before the source was followed; {how}.", markup=False, soft_wrap=True)
    if again := sum(look.changed + look.due for look in looks):
        verb = "would check" if dry_run else "checks"
        where = "`postroom web sources` shows how many have changed"
        console.print(f"A worker {verb} {again:,} known pages again; {where}.", markup=False, soft_wrap=True)


def _look_counts(look: SentinelReport) -> tuple[int, ...]:
    return look.found, look.new, look.known, look.older, look.changed, look.due, look.not_reached


def _left(look: SentinelReport) -> str:
    left = [
        f"{look.not_reached:,} new pages were not reached" if look.not_reached else "",
        f"{look.lists_left:,} lists were not read" if look.lists_left else "",
        f"{look.due_left:,} known pages are due as well" if look.due_left else "",
    ]
    return ", ".join(part for part in left if part)


def print_found_source(found: FoundSource, *, dry_run: bool) -> None:
    for finding in found.findings:
        console.print(printable(finding), markup=False, soft_wrap=True)
    source, [endpoint] = found.source, found.source.endpoint
    verb = "Would follow" if dry_run else "Now following"
    said = f"{verb} {source.slug}: {endpoint.mode.lower()} {endpoint.url}"
    console.print(printable(said), markup=False, soft_wrap=True)
    for page in found.pages if dry_run else ():
        console.print(printable(f"  {page}"), markup=False, soft_wrap=True)
    if not dry_run:
        checked = f"It is checked {cadence_words(source.every)}; `postroom web sentinel` checks it now."
        console.print(checked, markup=False, soft_wrap=True)


def cadence_words(every: CheckCadence) -> str:
    return "every 6 hours" if every is CheckCadence.SIX_HOURS else str(every)

"""How backfill runs are shown: a bar while one goes, the lines of its summary, and one run in full."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from postroom.cli.output import console, errors, print_table, printable, shown
from postroom.websources.evidence import Evidence, EvidenceText
from postroom.websources.run_model import Run, Status
from postroom.websources.search import EvidenceHit


@contextmanager
def progress_bar(run: Run) -> Iterator[Callable[[Run], None]]:
    """On the error stream, so that what the command prints can be read by programs."""
    columns = (
        TextColumn("[backfill]", markup=False),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} URLs"),
        TextColumn("{task.fields[counts]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=errors, disable=not errors.is_terminal, transient=True) as bar:
        task = bar.add_task("", total=run.max_urls, completed=run.discovered_count, counts=_counts(run))
        yield lambda now: bar.update(task, completed=now.discovered_count, counts=_counts(now))


def print_summary(run: Run) -> None:
    if run.dry_run:
        _line("DRY RUN - no jobs will be queued")
    if run.status is Status.PENDING:
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
        empty="No page fits, or none is kept yet: a worker fetches what `web sources` shows as waiting.",
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


def run_told(run: Run) -> dict[str, Any]:
    """For programs: the run without what only its own walks understand."""
    told = {field.name: getattr(run, field.name) for field in fields(Run) if field.name not in ("walks", "fence")}
    per_source = {slug: run.of_source(slug) for slug in run.sources}
    return told | {"per_source": per_source}


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


def _line(text: str) -> None:
    console.print(f"[backfill] {text}", markup=False, soft_wrap=True)

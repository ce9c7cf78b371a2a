"""`postroom web`: follow web sites, recover what they published before, and search the evidence."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from postroom.app import App
from postroom.audit import Actor
from postroom.cli.session import me, stopped_by_signals, with_app
from postroom.cli.terminal import (
    DryRunOption,
    JsonOption,
    console,
    errors,
    parse_day,
    print_json,
    print_table,
    printable,
    shown,
)
from postroom.domain.errors import BadInput
from postroom.domain.ids import parse_id
from postroom.web import evidence
from postroom.web.discovery import EndpointView, overview
from postroom.web.evidence import Evidence, EvidenceHit, EvidenceText, search
from postroom.web.runs import NewRun, Run, RunStatus
from postroom.web.sentinel import SentinelReport
from postroom.web.sources import EndpointMode


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


def _line(text: str) -> None:
    console.print(f"[backfill] {text}", markup=False, soft_wrap=True)


app = typer.Typer(
    no_args_is_help=True, help="Web sources: follow them, recover what they had before, read the evidence."
)

RunId = Annotated[str, typer.Argument(metavar="RUN", help="The run's id, as `web runs` shows it.")]
SourceOption = Annotated[
    list[str] | None,
    typer.Option("--source", metavar="SLUG", help="A source of sources.toml; may be repeated; default: all."),
]
_SAYING = "Stopping; the run can be resumed. Press Ctrl-C again to leave at once."


@app.command()
def sources(json: JsonOption = False) -> None:
    """List the sources of `sources.toml`, with the state of each endpoint."""

    async def run(app: App) -> None:
        found = app.web.sources()
        rows = await app.database.read(lambda tx: overview(tx, found))
        if json:
            print_json(rows)
            return
        counted = ["waiting", "fetched", "failed", "skipped"]
        columns = ["source", "endpoint", "mode", "watched", *counted, "last look", "url"]
        print_table(
            columns,
            ([r.source, r.endpoint, r.mode.lower(), r.watched, *_item_counts(r), r.looked_at, r.url] for r in rows),
            empty=f"No sources. Write {app.settings.home / 'sources.toml'}; docs/web.md says how.",
        )

    with_app(run)


@app.command()
def backfill(
    mode: Annotated[str, typer.Option(help="sitemap, archive or pagination.")],
    source: SourceOption = None,
    max_urls: Annotated[int | None, typer.Option(help="At most this many addresses in the run.", min=1)] = None,
    max_urls_per_source: Annotated[int | None, typer.Option(help="At most this many per source.", min=1)] = None,
    concurrency: Annotated[int | None, typer.Option(help="Walks at once.", min=1)] = None,
    first: Annotated[str | None, typer.Option("--from", metavar="DAY", help="The first day; default: all.")] = None,
    last: Annotated[str | None, typer.Option("--to", metavar="DAY", help="The last day, included.")] = None,
    queue: Annotated[bool, typer.Option("--queue", help="Queue it for a worker, and return at once.")] = False,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
) -> None:
    """Find what a source published before, and queue what is new. Needs BACKFILL_ENABLED=true."""
    chosen = _mode(mode)
    if queue and dry_run:
        raise BadInput("queue", "cannot be combined with --dry-run")

    async def run(app: App) -> Run:
        new = NewRun(
            sources=source or [each.slug for each in app.web.sources() if each.endpoints(chosen)],
            mode=chosen,
            max_urls=max_urls,
            max_urls_per_source=max_urls_per_source,
            concurrency=concurrency,
            date_from=_start_of("from", first),
            date_to=_end_of("to", last),
            dry_run=dry_run,
        )
        if queue:
            return await app.web.hand_over(_me(), new)
        return await _drive(app, await app.web.begin(_me(), new))

    _show_end(with_app(run), json)


@app.command()
def resume(run_id: RunId, json: JsonOption = False) -> None:
    """Resume a FAILED run at the source, page and address where it stopped."""

    async def run(app: App) -> Run:
        return await _drive(app, await app.web.resume(_me(), run_id))

    _show_end(with_app(run), json)


@app.command()
def cancel(run_id: RunId, json: JsonOption = False) -> None:
    """Cancel a run permanently. What it found stays."""
    ended = with_app(lambda app: app.web.cancel(_me(), run_id))
    if json:
        print_json(run_json(ended))
    else:
        console.print(f"It is {ended.status} now.", markup=False)


@app.command()
def runs(
    run_id: Annotated[str | None, typer.Argument(metavar="[RUN]", help="Show this one in full.")] = None,
    status: Annotated[str | None, typer.Option(help=f"Only this status: {', '.join(RunStatus)}.")] = None,
    limit: Annotated[int, typer.Option(help="Show at most this many, 1 to 500.")] = 50,
    json: JsonOption = False,
) -> None:
    """List backfill runs, newest first, or show one with its errors."""

    async def run(app: App) -> None:
        if run_id is not None:
            shown = await app.web.show(run_id)
            print_json(run_json(shown)) if json else print_run(shown)
            return
        found = await app.web.list_runs(status=status, limit=limit)
        if json:
            print_json([run_json(each) for each in found])
            return
        columns = ["id", "status", "mode", "sources", "discovered", "queued", "skipped", "errors", "by", "why"]
        print_table(
            columns, map(run_row, found), empty="No runs yet; `postroom web backfill --help` says how to start."
        )

    with_app(run)


@app.command()
def sentinel(source: SourceOption = None, dry_run: DryRunOption = False, json: JsonOption = False) -> None:
    """Check the sources for new pages, as the daily job does."""

    async def run(app: App) -> list[SentinelReport]:
        return await app.web.look(source, dry_run=dry_run)

    looks = with_app(run)
    if json:
        print_json(looks)
    else:
        new = "would queue" if dry_run else "new"
        rows = ([k.source, k.endpoint, k.new, k.known, k.changed, "; ".join(k.problems)] for k in looks)
        print_table(["source", "endpoint", new, "known", "changed", "problems"], rows, empty="No source is watched.")
    if any(look.problems for look in looks):
        raise typer.Exit(1)


@app.command()
def retry(source: SourceOption = None, dry_run: DryRunOption = False, json: JsonOption = False) -> None:
    """Retry pages that failed; with --dry-run, list them and why each failed."""
    retried = with_app(lambda app: app.web.retry(_me(), source, dry_run=dry_run))
    if json:
        print_json(retried)
    else:
        rows = ([item.source_slug, item.url, item.error] for item in retried)
        print_table(
            ["source", "would retry" if dry_run else "retried", "failed because"], rows, empty="No page failed."
        )


@app.command("evidence")
def evidence_(
    query: Annotated[
        str, typer.Argument(metavar="[QUERY]", help="A query as for `postroom search`; default: all pages.")
    ] = "",
    show: Annotated[str | None, typer.Option("--show", metavar="ID", help="Show this one with its text.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="With --show: the bytes as they were fetched.")] = False,
    limit: Annotated[int, typer.Option(help="Show at most this many, 1 to 1000.")] = 20,
    json: JsonOption = False,
) -> None:
    """Search the stored pages, newest first, or show one of them."""
    if raw and show is None:
        raise BadInput("raw", "goes with --show ID")

    chosen = None if show is None else parse_id(show, "show")

    async def run(app: App) -> None:
        if chosen is not None and raw:
            sys.stdout.buffer.write(await app.database.read(lambda tx: evidence.raw_content(tx, chosen)))
        elif chosen is not None:
            kept, text = await app.database.read(lambda tx: evidence.read(tx, chosen))
            print_json({"evidence": kept, "text": text}) if json else print_evidence(kept, text)
        else:
            hits = await app.database.read(lambda tx: search(tx, query, app.clock.now(), limit=limit))
            print_json(hits) if json else print_hits(hits)

    with_app(run)


def _item_counts(view: EndpointView) -> tuple[int, ...]:
    return view.waiting, view.fetched, view.failed, view.skipped


async def _drive(app: App, run: Run) -> Run:
    with stopped_by_signals(_SAYING) as stop, progress_bar(run) as on_progress:
        return await app.web.drive(run, on_progress, stop)


def _show_end(run: Run, json: bool) -> None:
    if json:
        print_json(run_json(run))
    else:
        print_summary(run)
    if run.status is RunStatus.FAILED:
        raise typer.Exit(1)


def _me() -> Actor:
    return Actor.of(me())


def _mode(text: str) -> EndpointMode:
    try:
        return EndpointMode(text.upper())
    except ValueError:
        raise BadInput("mode", f"{text!r} is not one of {', '.join(mode.lower() for mode in EndpointMode)}") from None


def _start_of(name: str, text: str | None) -> datetime | None:
    day = parse_day(name, text)
    return None if day is None else datetime(day.year, day.month, day.day, tzinfo=UTC)


def _end_of(name: str, text: str | None) -> datetime | None:
    start = _start_of(name, text)
    try:
        return None if start is None else start + timedelta(days=1)
    except OverflowError:
        raise BadInput(name, f"{text!r} is out of range") from None

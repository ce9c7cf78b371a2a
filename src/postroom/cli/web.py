"""`postroom web`: follow web sites that publish things worth keeping, and recover what they published before."""

from __future__ import annotations

import sys
from datetime import UTC, date, datetime, timedelta
from typing import Annotated

import typer

from postroom.app import App
from postroom.audit import Actor
from postroom.cli.interrupt import stopped_by_signals
from postroom.cli.output import DryRunOption, JsonOption, console, print_json, print_table
from postroom.cli.session import me, with_app
from postroom.cli.web_display import (
    print_evidence,
    print_hits,
    print_run,
    print_summary,
    progress_bar,
    run_row,
    run_told,
)
from postroom.domain.errors import BadInput
from postroom.domain.ids import parse_id
from postroom.websources import evidence
from postroom.websources.config import Mode
from postroom.websources.overview import EndpointView, overview
from postroom.websources.run_model import NewRun, Run, Status
from postroom.websources.search import search
from postroom.websources.sentinel import Look

app = typer.Typer(no_args_is_help=True, help="Web sources: what they have, what is new, what they had before.")

RunId = Annotated[str, typer.Argument(metavar="RUN", help="The run's id, as `web runs` shows it.")]
SourceOption = Annotated[
    list[str] | None,
    typer.Option("--source", metavar="SLUG", help="A source of sources.toml; may be repeated; default: all."),
]
_SAYING = "Stopping; the run can be resumed. Press Ctrl-C again to leave at once."


@app.command()
def sources(json: JsonOption = False) -> None:
    """List the sources of `sources.toml`, with what is known of each endpoint."""

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
    max_urls: Annotated[int | None, typer.Option(help="The most addresses of the run.", min=1)] = None,
    max_urls_per_source: Annotated[int | None, typer.Option(help="The most of each source.", min=1)] = None,
    concurrency: Annotated[int | None, typer.Option(help="Walks at once.", min=1)] = None,
    first: Annotated[str | None, typer.Option("--from", metavar="DAY", help="The first day; default: all.")] = None,
    last: Annotated[str | None, typer.Option("--to", metavar="DAY", help="The last day, included.")] = None,
    queue: Annotated[bool, typer.Option("--queue", help="Let a worker do it, and return at once.")] = False,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
) -> None:
    """Find what a source published before, and queue what is new. Needs BACKFILL_ENABLED=true."""
    chosen = _mode(mode)
    if queue and dry_run:
        raise BadInput("queue", "a dry run is for you to watch")

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
    """Go on with a FAILED run from the source, page and address where it was."""

    async def run(app: App) -> Run:
        return await _drive(app, await app.web.resume(_me(), run_id))

    _show_end(with_app(run), json)


@app.command()
def cancel(run_id: RunId, json: JsonOption = False) -> None:
    """Give a run up for good. What it found stays."""
    ended = with_app(lambda app: app.web.cancel(_me(), run_id))
    if json:
        print_json(run_told(ended))
    else:
        console.print(f"It is {ended.status} now.", markup=False)


@app.command()
def runs(
    run_id: Annotated[str | None, typer.Argument(metavar="[RUN]", help="Show this one in full.")] = None,
    status: Annotated[str | None, typer.Option(help=f"Only this status: {', '.join(Status)}.")] = None,
    limit: Annotated[int, typer.Option(help="At most so many, 1 to 500.")] = 50,
    json: JsonOption = False,
) -> None:
    """List backfill runs, newest first, or show one with its errors."""

    async def run(app: App) -> None:
        if run_id is not None:
            shown = await app.web.show(run_id)
            print_json(run_told(shown)) if json else print_run(shown)
            return
        found = await app.web.list_runs(status=status, limit=limit)
        if json:
            print_json([run_told(each) for each in found])
            return
        columns = ["id", "status", "mode", "sources", "discovered", "queued", "skipped", "errors", "by", "why"]
        print_table(
            columns, map(run_row, found), empty="No runs yet; `postroom web backfill --help` says how to begin."
        )

    with_app(run)


@app.command()
def sentinel(source: SourceOption = None, dry_run: DryRunOption = False, json: JsonOption = False) -> None:
    """Look at the sources for what is new, as the daily job does."""

    async def run(app: App) -> list[Look]:
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
    """Ask once more for pages that could not be had; with --dry-run, list them and why each failed."""
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
    query: Annotated[str, typer.Argument(metavar="[QUERY]", help="As `postroom search` takes it; left out: all.")] = "",
    show: Annotated[str | None, typer.Option("--show", metavar="ID", help="Show this one with its text.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="With --show: the bytes as they were fetched.")] = False,
    limit: Annotated[int, typer.Option(help="At most so many, 1 to 1000.")] = 20,
    json: JsonOption = False,
) -> None:
    """Search the pages that were kept, the latest day first, or show one of them."""
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
        print_json(run_told(run))
    else:
        print_summary(run)
    if run.status is Status.FAILED:
        raise typer.Exit(1)


def _me() -> Actor:
    return Actor.of(me())


def _mode(text: str) -> Mode:
    try:
        return Mode(text.upper())
    except ValueError:
        raise BadInput("mode", f"{text!r} is not one of {', '.join(mode.lower() for mode in Mode)}") from None


def _start_of(name: str, text: str | None) -> datetime | None:
    try:
        day = None if text is None else date.fromisoformat(text)
    except ValueError:
        raise BadInput(name, f"{text!r} is not a day; write for example 2024-01-31") from None
    return None if day is None else datetime(day.year, day.month, day.day, tzinfo=UTC)


def _end_of(name: str, text: str | None) -> datetime | None:
    start = _start_of(name, text)
    try:
        return None if start is None else start + timedelta(days=1)
    except OverflowError:
        raise BadInput(name, f"{text!r} lies outside of all calendars") from None

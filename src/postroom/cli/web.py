"""`postroom web`: follow web sites, recover what they published before, and search the evidence."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from postroom.app import App
from postroom.audit import Actor
from postroom.cli import terminal, web_display
from postroom.cli.session import me, stopped_by_signals, with_app
from postroom.domain.errors import BadInput
from postroom.domain.ids import parse_id
from postroom.web import evidence
from postroom.web.discovery import EndpointView
from postroom.web.evidence import search
from postroom.web.probing import FoundSource, NewSource
from postroom.web.runs import NewRun, Run, RunStatus
from postroom.web.sentinel import SentinelReport
from postroom.web.sources import FILE_NAME, CheckCadence, EndpointMode, NoticeWay

app = typer.Typer(no_args_is_help=True, help="Web sources: follow them, fetch past pages, read the evidence.")

RunId = Annotated[str, typer.Argument(metavar="RUN", help="The run's id, as `web runs` shows it.")]
SourceOption = Annotated[
    list[str] | None,
    typer.Option("--source", metavar="SLUG", help="A source; may be repeated; default: all."),
]
_COUNTED = ("waiting", "fetched", "failed")
_SAYING = "Stopping; the run can be resumed. Press Ctrl-C again to leave at once."


@app.command()
def sources(json: terminal.JsonOption = False) -> None:
    """List the sources: when each is checked, and its pages. `--json` has all of it."""

    async def run(app: App) -> None:
        rows = await app.web.overview()
        if json:
            terminal.print_json(rows)
            return
        columns = ["source", "endpoint", "checked", "last check", "next check", *_COUNTED, "url"]
        terminal.print_table(
            columns,
            ([r.source, r.endpoint, _checked(r), *_check_times(r), *_item_counts(r), r.url] for r in rows),
            empty=f"No sources. `postroom web add URL` follows one; so does {app.settings.home / FILE_NAME}.",
        )

    with_app(run)


EveryOption = Annotated[
    CheckCadence,
    typer.Option("--every", help="How often it is checked; daily and weekly at the time of `recurring.sentinel`."),
]
Slug = Annotated[str, typer.Argument(metavar="SOURCE", help="The source, as `web sources` shows it.")]
NotifyOption = Annotated[
    list[NoticeWay] | None,
    typer.Option(
        "--notify", help="Where news is reported; may be repeated; default: the overview.", case_sensitive=False
    ),
]


@app.command()
def add(
    url: Annotated[
        str, typer.Argument(help="A feed, sitemap, archive, list or page; the home page of a site will do.")
    ],
    kind: Annotated[
        str | None,
        typer.Option("--as", metavar="KIND", help="feed, sitemap, archive, pagination or page; default: find out."),
    ] = None,
    slug: Annotated[str | None, typer.Option(help="A short name for it; default: its host.")] = None,
    name: Annotated[str | None, typer.Option(help="Its name on pages; default: its title.")] = None,
    domain: Annotated[
        list[str] | None, typer.Option("--domain", help="Another domain that its pages are on; may be repeated.")
    ] = None,
    links: Annotated[
        list[str] | None, typer.Option("--links", metavar="RE2", help="Only addresses like this are its pages.")
    ] = None,
    every: EveryOption = CheckCadence.DAILY,
    notify: NotifyOption = None,
    allow_private: Annotated[
        bool, typer.Option("--allow-private", help="It may be at a private or loopback address.")
    ] = False,
    dry_run: terminal.DryRunOption = False,
    json: terminal.JsonOption = False,
) -> None:
    """Follow a web site: find out what the address is, and say what was found."""
    chosen = None if kind is None else _mode(kind, "as")
    wanted = NewSource(url, chosen, slug, name, domain or [], links or [], notify, allow_private, every=every)

    async def run(app: App) -> FoundSource:
        return await app.web.add(_me(), wanted, dry_run=dry_run)

    found = with_app(run)
    if json:
        terminal.print_json(
            {"findings": found.findings, "pages": found.pages, "source": found.source.model_dump(mode="json")}
        )
    else:
        web_display.print_found_source(found, dry_run=dry_run)


@app.command()
def remove(source: Slug) -> None:
    """Stop following a source that was added. Its pages are kept."""
    with_app(lambda app: app.web.remove(_me(), source))
    terminal.console.print(f"Stopped following {source}. Its pages are kept.", markup=False)


@app.command()
def pause(source: Slug) -> None:
    """Stop checking a source and fetching its pages, until `web unpause`."""
    with_app(lambda app: app.web.pause(_me(), source, paused=True))
    terminal.console.print(f"{source} is paused; `postroom web unpause {source}` continues it.", markup=False)


@app.command()
def unpause(source: Slug) -> None:
    """Follow a paused source again. The next check finds what it published meanwhile."""
    with_app(lambda app: app.web.pause(_me(), source, paused=False))
    terminal.console.print(f"{source} is followed again.", markup=False)


@app.command("notify")
def notify_(
    source: Slug,
    way: Annotated[list[NoticeWay] | None, typer.Argument(help="Where; none of them: nowhere.")] = None,
) -> None:
    """Choose where new and changed pages of a source are reported."""
    with_app(lambda app: app.web.set_notify(_me(), source, way or []))
    where = ", ".join(way or []) or "nowhere"
    terminal.console.print(f"News of {source} is reported: {where}.", markup=False)


@app.command()
def schedule(
    source: Slug, every: Annotated[CheckCadence, typer.Argument(metavar="EVERY", help="hourly, 6h, daily or weekly.")]
) -> None:
    """Choose how often a source is checked for new pages."""

    async def run(app: App) -> datetime | None:
        await app.web.set_schedule(_me(), source, every)
        return (await app.web.next_checks()).get(source)

    following = with_app(run)
    then = f" Next check: {terminal.shown(following)}." if following else ""
    terminal.console.print(f"{source} is checked {web_display.cadence_words(every)}.{then}", markup=False)


@app.command()
def backfill(
    mode: Annotated[str, typer.Option(help="sitemap, archive, pagination, feed or page.")],
    source: SourceOption = None,
    max_urls: Annotated[int | None, typer.Option(help="At most this many addresses in the run.", min=1)] = None,
    max_urls_per_source: Annotated[int | None, typer.Option(help="At most this many per source.", min=1)] = None,
    concurrency: Annotated[int | None, typer.Option(help="Walks at once.", min=1)] = None,
    first: Annotated[str | None, typer.Option("--from", metavar="DAY", help="The first day; default: all.")] = None,
    last: Annotated[str | None, typer.Option("--to", metavar="DAY", help="The last day, included.")] = None,
    queue: Annotated[bool, typer.Option("--queue", help="Queue it for a worker, and return at once.")] = False,
    dry_run: terminal.DryRunOption = False,
    json: terminal.JsonOption = False,
) -> None:
    """Fetch past pages: find what a source published earlier, and queue what is new. Needs BACKFILL_ENABLED=true."""
    chosen = _mode(mode)
    if queue and dry_run:
        raise BadInput("queue", "cannot be combined with --dry-run")

    async def run(app: App) -> Run:
        new = NewRun(
            sources=source or await _all_of(app, chosen),
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
def resume(run_id: RunId, json: terminal.JsonOption = False) -> None:
    """Resume a FAILED run at the source, page and address where it stopped."""

    async def run(app: App) -> Run:
        return await _drive(app, await app.web.resume(_me(), run_id))

    _show_end(with_app(run), json)


@app.command()
def cancel(run_id: RunId, json: terminal.JsonOption = False) -> None:
    """Cancel a run permanently. What it found stays."""
    ended = with_app(lambda app: app.web.cancel(_me(), run_id))
    if json:
        terminal.print_json(web_display.run_json(ended))
    else:
        terminal.console.print(f"It is {ended.status} now.", markup=False)


@app.command()
def runs(
    run_id: Annotated[str | None, typer.Argument(metavar="[RUN]", help="Show this one in full.")] = None,
    status: Annotated[str | None, typer.Option(help=f"Only this status: {', '.join(RunStatus)}.")] = None,
    limit: Annotated[int, typer.Option(help="Show at most this many, 1 to 500.")] = 50,
    json: terminal.JsonOption = False,
) -> None:
    """List backfill runs, newest first, or show one with its errors."""

    async def run(app: App) -> None:
        if run_id is not None:
            shown = await app.web.show(run_id)
            terminal.print_json(web_display.run_json(shown)) if json else web_display.print_run(shown)
            return
        found = await app.web.list_runs(status=status, limit=limit)
        if json:
            terminal.print_json([web_display.run_json(each) for each in found])
            return
        columns = ["id", "status", "mode", "sources", "discovered", "queued", "skipped", "errors", "by", "why"]
        terminal.print_table(
            columns,
            map(web_display.run_row, found),
            empty="No runs yet; `postroom web backfill --help` says how to start.",
        )

    with_app(run)


@app.command()
def sentinel(
    source: SourceOption = None, dry_run: terminal.DryRunOption = False, json: terminal.JsonOption = False
) -> None:
    """Check the sources for new pages, as the daily job does."""

    async def run(app: App) -> list[SentinelReport]:
        return await app.web.look(source, dry_run=dry_run, on_wait=web_display.say_waiting)

    looks = with_app(run)
    if json:
        terminal.print_json(looks)
    else:
        web_display.print_looks(looks, dry_run=dry_run)
    if any(look.problems for look in looks):
        raise typer.Exit(1)


@app.command()
def retry(
    source: SourceOption = None, dry_run: terminal.DryRunOption = False, json: terminal.JsonOption = False
) -> None:
    """Retry pages that failed; with --dry-run, list them and why each failed."""
    retried = with_app(lambda app: app.web.retry(_me(), source, dry_run=dry_run))
    if json:
        terminal.print_json(retried)
    else:
        rows = ([item.source_slug, item.url, item.error] for item in retried)
        terminal.print_table(
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
    json: terminal.JsonOption = False,
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
            terminal.print_json({"evidence": kept, "text": text}) if json else web_display.print_evidence(kept, text)
        else:
            hits = await app.database.read(lambda tx: search(tx, query, app.clock.now(), limit=limit))
            terminal.print_json(hits) if json else web_display.print_hits(hits)

    with_app(run)


async def _all_of(app: App, mode: EndpointMode) -> list[str]:
    """The sources that can be backfilled in this mode."""
    sources = await app.web.sources()
    return [each.slug for each in sources if each.endpoints(mode) and each.slug not in sources.paused]


def _checked(view: EndpointView) -> str:
    return "paused" if view.paused else web_display.cadence_words(view.every) if view.watched else "no"


def _check_times(view: EndpointView) -> list[str]:
    """To the minute, so that the table is not wider than it has to be."""
    return ["-" if each is None else terminal.shown(each)[:16] for each in (view.looked_at, view.next_check)]


def _item_counts(view: EndpointView) -> tuple[int, ...]:
    return view.waiting, view.fetched, view.failed


async def _drive(app: App, run: Run) -> Run:
    with stopped_by_signals(_SAYING) as stop, web_display.progress_of(run) as on_progress:
        return await app.web.drive(run, on_progress, stop)


def _show_end(run: Run, json: bool) -> None:
    if json:
        terminal.print_json(web_display.run_json(run))
    else:
        web_display.print_summary(run)
    if run.status is RunStatus.FAILED:
        raise typer.Exit(1)


def _me() -> Actor:
    return Actor.of(me())


def _mode(text: str, option: str = "mode") -> EndpointMode:
    try:
        return EndpointMode(text.upper())
    except ValueError:
        raise BadInput(option, f"{text!r} is not one of {', '.join(mode.lower() for mode in EndpointMode)}") from None


def _start_of(name: str, text: str | None) -> datetime | None:
    day = terminal.parse_day(name, text)
    return None if day is None else datetime(day.year, day.month, day.day, tzinfo=UTC)


def _end_of(name: str, text: str | None) -> datetime | None:
    start = _start_of(name, text)
    try:
        return None if start is None else start + timedelta(days=1)
    except OverflowError:
        raise BadInput(name, f"{text!r} is out of range") from None

"""`postroom export`: mail out of the archive, byte for byte."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from postroom import settings
from postroom.archive.backend import ArchiveBackend, MailReader
from postroom.archive.exporting import ExportReport, Messages, ShowExport, count_messages, export_eml, export_mbox
from postroom.archive.messages import ArchivedMessage
from postroom.archive.service import open_archive
from postroom.cli.terminal import DryRunOption, JsonOption, console, errors, print_json
from postroom.domain.errors import Fatal

_PAGE = 200

app = typer.Typer(no_args_is_help=True, help="Export archived mail to files, byte for byte: mbox or .eml.")

OutOption = Annotated[Path, typer.Option("--out", help="Where to write; nothing that is there is overwritten.")]
QueryOption = Annotated[str | None, typer.Option("--query", help="Only mail that this search finds; all otherwise.")]
AccountOption = Annotated[
    str | None, typer.Option("--account", help="Only this account's mail; all accounts otherwise.")
]


@app.command()
def mbox(
    out: OutOption,
    query: QueryOption = None,
    account: AccountOption = None,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
) -> None:
    """Write one mbox file; importing it again gives the same bytes."""
    _run(
        lambda archive, messages, show: export_mbox(archive, messages, out, show),
        out,
        query,
        account,
        dry_run=dry_run,
        json=json,
    )


@app.command()
def eml(
    out: OutOption,
    query: QueryOption = None,
    account: AccountOption = None,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
) -> None:
    """Write one .eml file for each message, named by its date, subject and key."""
    _run(
        lambda archive, messages, show: export_eml(archive, messages, out, show),
        out,
        query,
        account,
        dry_run=dry_run,
        json=json,
    )


def _run(
    export: Callable[[MailReader, Messages, ShowExport], ExportReport],
    out: Path,
    query: str | None,
    account: str | None,
    *,
    dry_run: bool,
    json: bool,
) -> None:
    with open_archive(settings.load()) as place, place.reader() as archive:
        report = count_messages(_chosen(place, archive, query, account))
        if not dry_run:
            with _shown(report.exported) as show:
                report = export(archive, _chosen(place, archive, query, account), show)
    if json:
        print_json({"out": out, "dry_run": dry_run, "report": report})
        return
    verb = "Would export" if dry_run else "Exported"
    there = f" {report.already_there:,} were there already." if report.already_there else ""
    console.print(f"{verb} {report.exported:,} messages ({report.bytes:,} bytes) to {out}.{there}", markup=False)


def _chosen(place: ArchiveBackend, archive: MailReader, query: str | None, account: str | None) -> Messages:
    return archive.oldest_first(account) if query is None else _found(place, query, account)


def _found(place: ArchiveBackend, query: str, account: str | None) -> Iterator[ArchivedMessage]:
    """Everything a search finds, page by page. A shard that cannot be searched stops it: an export must be whole."""
    with place.search() as search:
        token: str | None = None
        while True:
            page = search.search(query, accounts=[account] if account else None, limit=_PAGE, after=token)
            if page.problems:
                raise Fatal(f"Not all of the archive could be searched: {page.problems[0]}. Run `postroom verify`.")
            yield from (hit.message for hit in page.hits)
            token = page.next
            if token is None:
                return


@contextmanager
def _shown(total: int) -> Iterator[ShowExport]:
    with Progress(
        "exporting", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=errors, transient=True
    ) as bar:
        task = bar.add_task("", total=total)
        yield lambda report: bar.update(task, completed=report.exported + report.already_there)

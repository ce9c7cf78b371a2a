"""`postroom import` and `postroom export`: mail from files into the archive, and out of it to files or a table."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from postroom import eventloop, settings
from postroom.app import App, archive_tasks
from postroom.archive import exporting
from postroom.archive.backend import ArchiveBackend, MailReader
from postroom.archive.importing.run import count_mail, import_mail
from postroom.archive.importing.sources import MailFormat, looks_like_takeout, open_source
from postroom.archive.importing.state import ImportProgress, ImportReport, ImportSource
from postroom.archive.messages import account_name
from postroom.archive.service import open_archive
from postroom.archive.status import OwnedElsewhere, Owner
from postroom.cli.mail.handed_over import do_elsewhere, server_in
from postroom.cli.mail.search import everything_found
from postroom.cli.session import with_app
from postroom.cli.terminal import DryRunOption, JsonOption, console, errors, print_json, progress_bar

imports = typer.Typer(
    no_args_is_help=True, help="Import mail from files into the archive: mbox, Maildir, .eml, Takeout."
)

SourcePath = Annotated[Path, typer.Argument(metavar="PATH", help="The file or folder to read; it is never changed.")]
OwnerOption = Annotated[str, typer.Option("--account", help="The account that the mail belongs to, by its address.")]
_LINE_EVERY_S = 10.0


@imports.command("mbox")
def import_mbox(
    path: SourcePath,
    account: OwnerOption,
    keep_quotes: Annotated[
        bool, typer.Option("--keep-quotes", help="Keep `>From ` lines as they are, instead of removing one `>`.")
    ] = False,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
) -> None:
    """Import an mbox file."""
    if path.is_file() and looks_like_takeout(path):
        errors.print("This is a Google Takeout: `postroom import takeout` would also keep Gmail's ids and labels.")
    _import(MailFormat.MBOX, path, account, keep_quotes=keep_quotes, dry_run=dry_run, json=json)


@imports.command("takeout")
def import_takeout(
    path: SourcePath, account: OwnerOption, dry_run: DryRunOption = False, json: JsonOption = False
) -> None:
    """Import a Google Takeout with Gmail's ids and labels: the mbox, the .zip or .tgz, or the unpacked folder.

    Any .zip, .tgz or .tar of mbox and .eml files is read as well.
    """
    _import(MailFormat.TAKEOUT, path, account, dry_run=dry_run, json=json)


@imports.command("maildir")
def import_maildir(
    path: SourcePath, account: OwnerOption, dry_run: DryRunOption = False, json: JsonOption = False
) -> None:
    """Import a Maildir with its folders; flags and folder names become labels."""
    _import(MailFormat.MAILDIR, path, account, dry_run=dry_run, json=json)


@imports.command("eml")
def import_eml(path: SourcePath, account: OwnerOption, dry_run: DryRunOption = False, json: JsonOption = False) -> None:
    """Import an .eml file, or all .eml files in a folder and its subfolders."""
    _import(MailFormat.EML, path, account, dry_run=dry_run, json=json)


def _import(
    format: MailFormat, path: Path, account: str, *, keep_quotes: bool = False, dry_run: bool, json: bool
) -> None:
    order = archive_tasks.ImportOrder(format, Path(archive_tasks.absolute(path)), account_name(account), keep_quotes)
    source = open_source(format, path, order.account, keep_quotes=keep_quotes)
    owner = None
    if dry_run:
        report = count_mail(source)
    else:
        try:
            report = _import_here(order, source)
        except OwnedElsewhere as error:
            owner = server_in(error)
            report = with_app(partial(_import_there, order=order, source=source, owner=owner))
    if json:
        done_by = {"done_by": str(owner)} if owner else {}
        print_json({"account": order.account, "path": path, "dry_run": dry_run, **done_by, "report": report})
    else:
        _print_import(report, dry_run=dry_run)
    if report.stopped:
        raise typer.Exit(130)


def _import_here(order: archive_tasks.ImportOrder, source: ImportSource) -> ImportReport:
    loaded = settings.load()
    eventloop.share_heaps()  # before there are threads
    with (
        open_archive(loaded) as place,
        place.writer(f"postroom import {source.format}") as archive,
        _stopped_by_interrupt() as stop,
        _import_progress(source) as progress,
    ):
        report = import_mail(archive, order.account, source, progress=progress.show, stop=stop)
    if report.troubled or (not report.stopped and archive_tasks.has_home_id(loaded.home)):
        with_app(lambda app: _recorded(app, order, report))
    return report


async def _recorded(app: App, order: archive_tasks.ImportOrder, report: ImportReport) -> None:
    """List what could not be parsed; and if a running Postroom was to do this import, it is done."""
    if report.troubled:
        await archive_tasks.list_troubled(app.database, app.clock, order.account, report.troubled)
    if not report.stopped:
        home, now = archive_tasks.home_id(app.settings.home), app.clock.now()
        await app.database.write(lambda tx: archive_tasks.settle_same(tx, home, order.written(), now))


async def _import_there(app: App, order: archive_tasks.ImportOrder, source: ImportSource, owner: Owner) -> ImportReport:
    """In the running Postroom that owns the archive."""
    with _import_progress(source) as progress:
        task = await do_elsewhere(
            app,
            owner,
            archive_tasks.TaskKind.IMPORT,
            order.written(),
            lambda task: progress.show(archive_tasks.progress_read(task.progress or {})),
        )
    return archive_tasks.report_read(task.result or {})


@contextmanager
def _stopped_by_interrupt() -> Iterator[threading.Event]:
    """The first Ctrl-C lets what was read be stored; a second one ends at once, which loses nothing either."""
    stop = threading.Event()
    before = signal.getsignal(signal.SIGINT)

    def interrupt(number: int, frame: FrameType | None) -> None:
        stop.set()
        signal.signal(signal.SIGINT, before)
        errors.print("Stopping: storing what has been read ...")

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


class _Bar:
    """A bar with rate and time left on a terminal."""

    def __init__(self, bar: Progress, task: TaskID) -> None:
        self._bar = bar
        self._task = task

    def show(self, progress: ImportProgress) -> None:
        self._bar.update(self._task, completed=progress.bytes_done, counts=_counts(progress.report))


class _Lines:
    """A line now and then where there is no terminal."""

    def __init__(self) -> None:
        self._next = time.monotonic() + _LINE_EVERY_S

    def show(self, progress: ImportProgress) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _LINE_EVERY_S
        of = f" of {progress.bytes_total:,}" if progress.bytes_total else ""
        left = "" if progress.seconds_left is None else f", {progress.seconds_left:,.0f} s left"
        errors.print(f"{progress.bytes_done:,}{of} bytes: {_counts(progress.report)}{left}", soft_wrap=True)


@contextmanager
def _import_progress(source: ImportSource) -> Iterator[_Bar | _Lines]:
    if not errors.is_terminal:
        yield _Lines()
        return
    columns = ("importing", BarColumn(), DownloadColumn(), TextColumn("{task.fields[counts]}"), TimeRemainingColumn())
    with progress_bar(*columns) as bar:
        yield _Bar(bar, bar.add_task("", total=source.total_bytes, counts=""))


def _counts(report: ImportReport) -> str:
    return f"{report.stored:,} stored, {report.duplicates:,} known, {report.rate:,.0f}/s"


def _print_import(report: ImportReport, *, dry_run: bool) -> None:
    if report.resumed_from:
        console.print(f"Resumed an earlier run ({report.resumed_from}).", markup=False)
    for unreadable in report.unreadable:
        kept = "kept as it is" if unreadable.kept else "NOT stored" if unreadable.is_mail else "skipped"
        console.print(f"{unreadable.where}: {unreadable.problem}; {kept}", markup=False, soft_wrap=True)
    skipped = f", {report.not_mail:,} skipped as not mail" if report.not_mail else ""
    if dry_run:
        console.print(f"Would import {report.found:,} messages ({report.bytes:,} bytes){skipped}; nothing was changed.")
        return
    console.print(
        f"Found {report.found:,} messages ({report.bytes:,} bytes): {report.stored:,} stored, "
        f"{report.duplicates:,} were there already, {report.unreadable_count:,} unreadable{skipped}; "
        f"{report.seconds:,.1f} s, {report.rate:,.0f} messages/s.",
        soft_wrap=True,
    )
    if report.stopped:
        console.print("Stopped before the end; run the same command to continue.")


exports = typer.Typer(
    no_args_is_help=True, help="Export archived mail to files: mbox or .eml, byte for byte, or a table (CSV)."
)

OutOption = Annotated[Path, typer.Option("--out", help="Where to write; existing files are never overwritten.")]
QueryOption = Annotated[str | None, typer.Option("--query", help="Only mail that this search finds; all otherwise.")]
AccountOption = Annotated[
    str | None, typer.Option("--account", help="Only this account's mail; all accounts otherwise.")
]


_Export = Callable[[MailReader, exporting.Messages, Path, exporting.ShowExport], exporting.ExportReport]


@dataclass(frozen=True)
class _Chosen:
    """Which messages to export."""

    query: str | None
    account: str | None

    def messages(self, place: ArchiveBackend, archive: MailReader) -> exporting.Messages:
        if self.query is None:
            return archive.oldest_first(self.account)
        return everything_found(place, self.query, [self.account] if self.account else None)


def _export(
    export: _Export,
    chosen: _Chosen,
    out: Path,
    *,
    dry_run: bool,
    json: bool,
    is_whole: bool = True,
) -> None:
    """`is_whole`: the messages themselves are written, so that their size says what is."""
    with open_archive(settings.load()) as place, place.reader() as archive:
        report = exporting.count_messages(chosen.messages(place, archive))
        if not dry_run:
            with _export_progress(report.exported) as show:
                report = export(archive, chosen.messages(place, archive), out, show)
    if json:
        print_json({"out": out, "dry_run": dry_run, "report": report})
        return
    verb = "Would export" if dry_run else "Exported"
    there = f" {report.already_there:,} were there already." if report.already_there else ""
    size = f" ({report.bytes:,} bytes)" if is_whole else ""
    console.print(f"{verb} {report.exported:,} messages{size} to {out}.{there}", markup=False)


@contextmanager
def _export_progress(total: int) -> Iterator[exporting.ShowExport]:
    with progress_bar("exporting", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()) as bar:
        task = bar.add_task("", total=total)
        yield lambda report: bar.update(task, completed=report.exported + report.already_there)


def _exporting(name: str, export: _Export, help: str, *, is_whole: bool = True) -> None:
    """The command that writes this format."""

    @exports.command(name, help=help)
    def command(
        out: OutOption,
        query: QueryOption = None,
        account: AccountOption = None,
        dry_run: DryRunOption = False,
        json: JsonOption = False,
    ) -> None:
        _export(export, _Chosen(query, account), out, dry_run=dry_run, json=json, is_whole=is_whole)


_exporting("mbox", exporting.export_mbox, "Write one mbox file; importing it again gives the same bytes.")
_exporting("eml", exporting.export_eml, "Write one .eml file for each message, named by its date, subject and key.")
_exporting("csv", exporting.export_csv, "Write a table with a line for each message, without its text.", is_whole=False)

"""`postroom verify`: prove the archive, name every gap, and rebuild what is damaged if asked to."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from postroom import settings
from postroom.archive.reading import ArchiveReader, shards_on_disk
from postroom.archive.salvage import Salvaged, rebuild
from postroom.archive.verify import Flaw, Report
from postroom.archive.verify import verify as verify_archive
from postroom.cli.output import JsonOption, console, errors, print_json
from postroom.domain.errors import Fatal

AccountOption = Annotated[str | None, typer.Option(help="Only this account's mail; all accounts otherwise.")]

_REBUILT_AWAY = (Flaw.SHARD_DAMAGED, Flaw.BYTES_WRONG, Flaw.INDEX_WRONG)


def verify(
    account: AccountOption = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Rebuild damaged shards; the old files are kept in quarantine.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Check every byte of the archive against its hash, and every shard against the catalogue.

    Every gap is printed, and the exit code is 1 if there is one.
    """
    root = settings.load().home / "archive"
    report = _verified(root, account)
    salvaged = _repair(root, report) if repair else []
    if salvaged:
        report = _verified(root, account)
    if json:
        print_json({"sound": report.is_sound, "report": report, "rebuilt": salvaged})
    else:
        _print(report, salvaged)
    if not report.is_sound:
        sys.exit(1)


def _verified(root: Path, account: str | None) -> Report:
    with Progress(
        "verifying", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=errors, transient=True
    ) as bar:
        task = bar.add_task("", total=_expected(root, account))
        return verify_archive(root, account, lambda done: bar.advance(task, done))


def _expected(root: Path, account: str | None) -> int | None:
    """How many messages there are to check; None if a damaged shard will not tell."""
    try:
        with ArchiveReader(root) as reader:
            return reader.count(account)
    except Fatal:
        return None


def _repair(root: Path, report: Report) -> list[Salvaged]:
    broken = {finding.shard for finding in report.findings if finding.flaw in _REBUILT_AWAY}
    return [rebuild(root, name) for name in shards_on_disk(root) if str(name) in broken]


def _print(report: Report, salvaged: list[Salvaged]) -> None:
    for rebuilt in salvaged:
        console.print(
            f"Rebuilt {rebuilt.shard}: {rebuilt.recovered:,} messages recovered, {rebuilt.lost:,} lost. "
            f"The damaged file is kept in {rebuilt.quarantine.parent}.",
            markup=False,
        )
    for note in report.notes:
        console.print(note, markup=False)
    for finding in report.findings:
        where = f"{finding.shard} {finding.key or ''}".rstrip()
        console.print(f"{finding.flaw}: {where}\n    {finding.detail}", markup=False)
    verdict = "All of it is sound." if report.is_sound else f"Found wrong: {len(report.findings)}."
    console.print(
        f"{report.messages:,} messages, {report.bytes:,} bytes in {report.shards} shards checked. {verdict}",
        markup=False,
    )

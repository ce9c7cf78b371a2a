"""`postroom verify`: check the archive, report every gap, and rebuild what is damaged if asked to."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, TimeRemainingColumn

from postroom import settings
from postroom.accounts.account import Account, get_account, list_accounts
from postroom.app import App
from postroom.app.archive_tasks import TaskKind, repair_read
from postroom.archive.backend import ArchiveBackend
from postroom.archive.service import open_archive
from postroom.archive.status import OwnedElsewhere, Owner, Repair, Salvaged, VerifyReport
from postroom.cli.mail.handed_over import do_elsewhere, server_in
from postroom.cli.session import with_app
from postroom.cli.terminal import JsonOption, console, errors, print_json, progress_bar, shown
from postroom.domain.errors import Fatal, NotFound
from postroom.mailboxes.ports import PriorityLane
from postroom.sync.labels import SourceCheck, SourceReport

AccountOption = Annotated[str | None, typer.Option(help="Only this account's mail; all accounts otherwise.")]


def verify(
    account: AccountOption = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Rebuild damaged shards; the old files are kept in quarantine.")
    ] = False,
    against_source: Annotated[
        bool,
        typer.Option(
            "--against-source", help="Also ask the mailbox for every id below the watermark, and list the gaps."
        ),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Check every byte of the archive against its hash, and every shard against the catalogue.

    Every gap is printed, and the exit code is 1 if there is one. `postroom audit verify` checks the audit log.
    """
    with open_archive(settings.load()) as archive:
        report = _verified(archive, account)
        if account is not None and report.is_sound and not report.shards:
            raise NotFound("account", f"the archive has no mail of {account}, so there is nothing to check")
        salvaged: list[Salvaged] = []
        if repair:
            report, salvaged = _repaired(archive, report, account)
    compared = with_app(lambda app: _compared(app, account)) if against_source else []
    is_sound = report.is_sound and all(each.is_complete for each in compared)
    if json:
        result = {"sound": is_sound, "report": report, "rebuilt": salvaged}
        print_json(result | ({"source": compared} if against_source else {}))
    else:
        _print(report, salvaged)
        for each in compared:
            _print_comparison(each)
    if not is_sound:
        sys.exit(1)


async def _compared(app: App, email: str | None) -> list[SourceReport]:
    if email is None:
        accounts = await app.database.read(list_accounts)
    else:
        accounts = [await app.database.read(lambda tx: get_account(tx, email))]
    if not accounts:
        raise NotFound("account", "there is none to compare with; add one with `postroom account add gmail`")
    return [await _compare(app, account) for account in accounts]


async def _compare(app: App, account: Account) -> SourceReport:
    async with app.mailboxes.mailbox(account, PriorityLane.SYNC) as mailbox:
        total = (await mailbox.identity()).messages_total
        with progress_bar(f"asking {account.email}", BarColumn(), MofNCompleteColumn()) as bar:
            task = bar.add_task("", total=total)
            check = SourceCheck(app.database, account, mailbox, app.archive.backend)
            return await check.run(lambda listed: bar.advance(task, listed))


def _print_comparison(report: SourceReport) -> None:
    if not report.watermark:
        console.print(f"{report.account} was never synced: there is nothing to compare yet.", markup=False)
        return
    for gap in report.gaps:
        console.print(f"gap: {report.account} {gap.gmail_id}\n    {gap.lack}", markup=False)
    until = datetime.fromtimestamp(report.watermark, UTC)
    verdict = "No gap." if report.is_complete else f"Gaps: {len(report.gaps):,}."
    console.print(
        f"{report.account}: the source lists {report.listed:,} messages before {shown(until)}. "
        f"Stored: {report.stored:,}, known to be bad: {len(report.bad):,}, "
        f"archived and gone at the source: {len(report.gone):,}. {verdict}",
        markup=False,
    )


def _verified(archive: ArchiveBackend, account: str | None) -> VerifyReport:
    with progress_bar("verifying", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()) as bar:
        task = bar.add_task("", total=_expected(archive, account))
        return archive.verify(account, lambda done: bar.advance(task, done))


def _expected(archive: ArchiveBackend, account: str | None) -> int | None:
    """How many messages there are to check; None if a damaged shard will not tell."""
    try:
        with archive.reader() as reader:
            return reader.count(account)
    except Fatal:
        return None


def _repaired(
    archive: ArchiveBackend, report: VerifyReport, account: str | None
) -> tuple[VerifyReport, list[Salvaged]]:
    """Repair what was found, and check again. A running Postroom that owns the archive does that itself."""
    try:
        done = archive.repair(report)
    except OwnedElsewhere as error:
        owner = server_in(error)
        report, done = with_app(lambda app: _repaired_there(app, owner, account))
    else:
        report = _verified(archive, account) if done.rebuilt else report
    for email in done.to_sync:
        warning = f"{email}: mail was lost. The next `postroom sync run` lists the mailbox again and fetches it."
        errors.print(warning, markup=False, soft_wrap=True)
    return report, done.rebuilt


async def _repaired_there(app: App, owner: Owner, account: str | None) -> tuple[VerifyReport, Repair]:
    with progress_bar("repairing", "{task.completed:,} messages checked") as bar:
        shown = bar.add_task("")
        task = await do_elsewhere(
            app,
            owner,
            TaskKind.REPAIR,
            {"account": account},
            lambda task: bar.update(shown, completed=(task.progress or {}).get("messages", 0)),
        )
    return repair_read(task.result or {})


def _print(report: VerifyReport, salvaged: list[Salvaged]) -> None:
    for rebuilt in salvaged:
        console.print(
            f"Rebuilt {rebuilt.shard}: {rebuilt.recovered:,} messages recovered, {rebuilt.lost:,} lost. "
            f"What was damaged is kept in {rebuilt.quarantine}.",
            markup=False,
        )
    for note in report.notes:
        console.print(note, markup=False)
    for finding in report.findings:
        where = f"{finding.shard} {finding.key or ''}".rstrip()
        console.print(f"{finding.flaw}: {where}\n    {finding.detail}", markup=False)
    verdict = "Everything is sound." if report.is_sound else f"Problems found: {len(report.findings)}."
    shards = "shard" if report.shards == 1 else "shards"
    console.print(
        f"{report.messages:,} messages, {report.bytes:,} bytes in {report.shards} {shards} checked. {verdict}",
        markup=False,
    )

"""`postroom archive`: remove mail at the source that the archive provably holds, show the certificates, and count what
can be searched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

from postroom import settings
from postroom.accounts.account import Account
from postroom.app import App
from postroom.archive.certificates import Certificate, RemovalAction, RemovalResult
from postroom.archive.coverage import PartState, TextCoverage, UnindexedPart, added_up, reader_version
from postroom.archive.indexing import index_conversations
from postroom.archive.messages import account_name
from postroom.archive.service import open_archive
from postroom.cli.mail.search import require_accounts
from postroom.cli.session import AccountOption, chosen_accounts, stopped_by_signals, with_app
from postroom.cli.terminal import (
    DryRunOption,
    JsonOption,
    console,
    errors,
    moment,
    print_json,
    print_table,
    progress_bar,
    size,
)
from postroom.domain.errors import Fatal
from postroom.domain.extras import Extra, require
from postroom.sync.archiver import ArchiveReport
from postroom.sync.removal import ArchivePlan, RemovalPolicy

app = typer.Typer(
    no_args_is_help=True,
    help="Remove mail at the source once the archive holds it, with certificates; count what can be searched.",
)

ActionOption = Annotated[
    RemovalAction | None,
    typer.Option("--action", help="How to remove: remove a label, move to the trash, or delete permanently."),
]
LabelOption = Annotated[
    str | None, typer.Option("--label", help="The label that `--action label` removes.  [default: INBOX]")
]


@app.command()
def plan(
    account: AccountOption = None,
    action: ActionOption = None,
    label: LabelOption = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Also read every byte back, as a run does; takes as long as a run.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Show what `archive run` would remove, and why the rest stays. Changes nothing, and does not call the mailbox."""
    with_app(lambda app: _plan(app, account, action, label, verify=verify, json=json))


@app.command()
def run(
    account: AccountOption = None,
    action: ActionOption = None,
    label: LabelOption = None,
    enable: Annotated[
        bool, typer.Option("--enable", help="Remove mail in this run even though archiver.enabled is not set.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do not ask before mail is moved to the trash or deleted; for scripts.")
    ] = False,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
) -> None:
    """Remove mail at the source: below the watermark only, each message verified and certified on disk first.

    Off until archiver.enabled is set or --enable is given. Asks once before it moves mail to the trash or deletes it.
    Stops on the first doubt, with exit code 1. It can be interrupted and started again at any time.
    """
    if dry_run:
        with_app(lambda app: _plan(app, account, action, label, verify=False, json=json))
        return
    is_complete = with_app(lambda app: _run(app, account, action, label, enable=enable, yes=yes, json=json))
    if not is_complete:
        raise typer.Exit(130)


@app.command()
def certificates(
    account: AccountOption = None,
    message: Annotated[
        str | None, typer.Option("--message", help="Only certificates of the message with this id at its source.")
    ] = None,
    result: Annotated[
        RemovalResult | None, typer.Option("--result", help="Only certificates with this result.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Show at most this many.")] = 50,
    json: JsonOption = False,
) -> None:
    """List the removal certificates, newest first: which bytes were on disk, where, before what was removed."""

    async def run(app: App) -> None:
        found: list[tuple[str, Certificate]] = []
        for each in await chosen_accounts(app, account):
            ledger = app.archive.backend.ledger(each.email)
            listed = ledger.certificates(result=result, gmail_id=message, limit=limit)
            found += ((each.email, certificate) for certificate in listed)
        if json:
            print_json([{"account": email, "certificate": certificate} for email, certificate in found])
            return
        print_table(
            ["message", "removal", "result", "certified", "size", "shard", "sha256"],
            (_row(certificate) for _, certificate in found),
            empty="No certificates: nothing was removed.",
        )

    with_app(run)


@app.command()
def coverage(
    account: Annotated[str | None, typer.Option("--account", help="Only this mailbox; all otherwise.")] = None,
    reason: Annotated[
        PartState | None, typer.Option("--reason", help="List the parts that are not indexed for this reason.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, help="List at most this many.")] = 50,
    json: JsonOption = False,
) -> None:
    """Count what can be found by its words: every message's text and every attachment is indexed, or has a reason.

    Attachments are read in the background, newest first. Those that a newer Postroom may be able to read wait again
    after an upgrade, and pictures once the ocr extra is installed.
    """
    loaded = settings.load()
    version = reader_version(loaded)
    with open_archive(loaded) as place, place.reader() as reader:
        if reason is not None:
            _print_unindexed(reader.unindexed(reason, limit, account, version), json=json)
            return
        counted = {email: reader.coverage(email, version) for email in ([account] if account else reader.accounts())}
    if json:
        print_json([_coverage_written(email, each) for email, each in counted.items()])
        return
    whole = added_up(counted.values())
    print_table(
        ["part", "messages", "attachments", "together"],
        [
            *(_coverage_row(state, whole) for state in PartState if whole.by_state[state]),
            ["all", f"{sum(whole.bodies.values()):,}", f"{sum(whole.attachments.values()):,}", f"{whole.parts:,}"],
        ],
        empty="The archive holds no mail.",
    )


@app.command()
def conversations(json: JsonOption = False) -> None:
    """Index which messages belong together, as far as that is not done, and count the conversations.

    A running Postroom does this by itself every two minutes. Stopped or killed, it goes on where it was.
    """
    with open_archive(settings.load()) as place:
        with place.reader() as reader:
            messages = reader.count()
        with place.conversations() as index:
            waiting = max(messages - index.counts().messages, 0)
        with _bar("Indexing conversations", waiting) as advance:
            done = index_conversations(place, advance)
        with place.conversations() as index:
            counts = index.counts()
    if json:
        print_json({"added": done.added, "messages": counts.messages, "conversations": counts.conversations})
        return
    console.print(
        f"{counts.messages:,} messages are indexed, {done.added:,} of them now. "
        f"Conversations of two messages or more: {counts.conversations:,}."
    )


@app.command()
def vectors(
    account: Annotated[str | None, typer.Option("--account", help="Only this mailbox; all otherwise.")] = None,
    make: Annotated[bool, typer.Option("--make", help="Make those that are lacking now, newest mail first.")] = False,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Make all of them anew.")] = False,
    json: JsonOption = False,
) -> None:
    """Count the messages whose meaning is known, for `similar:` and `--sort best`.

    A worker makes vectors in the background. They can be made anew from the archive at any time.
    """
    require(Extra.MEANING, "similar mail")
    from postroom.archive.meaning.vectors import make_vectors, vector_state  # numpy is slow to load, and is an extra

    with open_archive(settings.load()) as place, place.reader() as reader:
        accounts, root = reader.accounts(), place.vectors
        require_accounts([account] if account else None, accounts)
        if root is None:
            raise Fatal("This archive has no folder for vectors.")
        chosen = [account_name(account)] if account else accounts
        for email in chosen if make or rebuild else ():
            make_vectors(reader, root, email, anew=rebuild)
        states = {email: vector_state(reader, root, email) for email in chosen}
    if json:
        print_json(
            [{"account": email, "messages": each.messages, "vectors": each.vectors} for email, each in states.items()]
        )
        return
    print_table(
        ["account", "messages", "with a vector", "waiting"],
        ([email, f"{each.messages:,}", f"{each.vectors:,}", f"{each.waiting:,}"] for email, each in states.items()),
        empty="The archive holds no mail.",
    )


def _coverage_row(state: PartState, whole: TextCoverage) -> list[object]:
    counts = (whole.bodies.get(state, 0), whole.attachments.get(state, 0), whole.by_state[state])
    return [state.value, *(f"{count:,}" for count in counts)]


def _coverage_written(email: str, coverage: TextCoverage) -> dict[str, object]:
    states = {
        state.value: {"messages": coverage.bodies.get(state, 0), "attachments": coverage.attachments.get(state, 0)}
        for state in PartState
    }
    return {"account": email, "parts": coverage.parts, "states": states}


def _print_unindexed(parts: list[UnindexedPart], *, json: bool) -> None:
    if json:
        print_json(
            [
                {
                    "account": part.message.account,
                    "message": part.message.key,
                    "part": part.kind,
                    "number": part.number,
                    "filename": part.filename,
                    "state": part.state,
                    "note": part.note,
                }
                for part in parts
            ]
        )
        return
    print_table(
        ["message", "part", "file", "note"],
        ([part.message.key, part.kind.value, part.filename, part.note] for part in parts),
        empty="No part has this reason.",
    )


async def _plan(
    app: App, email: str | None, action: RemovalAction | None, label: str | None, *, verify: bool, json: bool
) -> None:
    chosen = action or (None if app.settings.archiver.action else RemovalAction.LABEL)
    policy = app.archiver.policy(chosen, label)
    plans = [plan for _, plan in await _planned(app, email, policy, verify=verify)]
    if json:
        print_json(plans)
        return
    for each in plans:
        _print_plan(each, verified=verify)


async def _planned(
    app: App, email: str | None, policy: RemovalPolicy, *, verify: bool = False
) -> list[tuple[Account, ArchivePlan]]:
    plans = []
    for account in await chosen_accounts(app, email):
        with _bar("looking", _stored(app, account)) as advance:
            plans.append((account, await app.archiver.plan(account, policy, verify=verify, progress=advance)))
    return plans


def _confirm(plans: list[ArchivePlan]) -> None:
    """Ask once for all accounts; nothing is asked where nothing would be removed."""
    concerned = [plan for plan in plans if plan.messages + plan.interrupted]
    for plan in concerned:
        rest = f", and {plan.interrupted:,} of an interrupted run" if plan.interrupted else ""
        what = f"{plan.account}: {plan.removal}: {plan.messages:,} messages, {size(plan.bytes)}{rest}"
        errors.print(what, markup=False, soft_wrap=True)
    if concerned:
        count = sum(plan.messages + plan.interrupted for plan in concerned)
        typer.confirm(f"Remove {count:,} messages at the source?", abort=True, err=True)


async def _run(
    app: App,
    email: str | None,
    action: RemovalAction | None,
    label: str | None,
    *,
    enable: bool,
    yes: bool,
    json: bool,
) -> bool:
    app.archiver.require_enabled(enabled_now=enable)
    policy = app.archiver.policy(action, label)
    plans = await _planned(app, email, policy)
    if not yes and policy.removal.action is not RemovalAction.LABEL:
        _confirm([plan for _, plan in plans])
    reports: dict[str, ArchiveReport] = {}
    try:
        for account, plan in plans:
            await _run_one(app, account, policy, plan, reports)
            if not reports[account.email].is_complete:
                break
    finally:
        if json:
            print_json([{"account": email, "report": report} for email, report in reports.items()])
        else:
            for email, report in reports.items():
                _print_report(email, policy, report)
    return all(report.is_complete for report in reports.values())


async def _run_one(
    app: App, account: Account, policy: RemovalPolicy, expected: ArchivePlan, reports: dict[str, ArchiveReport]
) -> None:
    async with app.archiver.opened(account, policy) as archiver:
        reports[account.email] = archiver.report
        shown = _Shown(archiver.report)
        with (
            stopped_by_signals("Stopping after this batch ...") as stop,
            _bar("archiving", expected.messages + expected.interrupted) as advance,
        ):
            await archiver.run(stop.is_set, lambda report: advance(shown.news()))


class _Shown:
    """How much of a report a bar has not yet shown."""

    def __init__(self, report: ArchiveReport) -> None:
        self._report = report
        self._before = 0

    def news(self) -> int:
        new = self._report.removed - self._before
        self._before = self._report.removed
        return new


@contextmanager
def _bar(what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with progress_bar(*columns) as bar:
        task = bar.add_task("", total=total)
        yield lambda done: bar.advance(task, done)


def _stored(app: App, account: Account) -> int | None:
    """How many messages there are to look at; None if a damaged shard will not tell."""
    try:
        with app.archive.backend.reader() as reader:
            return reader.count(account.email)
    except Fatal:
        return None


def _print_plan(plan: ArchivePlan, *, verified: bool) -> None:
    console.print(f"{plan.account}: {plan.removal}", markup=False)
    lines = {
        "watermark": moment(plan.watermark),
        "would be removed": f"{plan.messages:,} messages, {size(plan.bytes)}",
        "dated": f"{plan.oldest:%Y-%m-%d} to {plan.newest:%Y-%m-%d}" if plan.oldest and plan.newest else "",
        "compared first": f"{plan.to_compare:,} of them came from files, not from the mailbox"
        if plan.to_compare
        else "",
        "interrupted": f"{plan.interrupted:,} removals of an earlier run; the mailbox is asked first"
        * bool(plan.interrupted),
    }
    for name, value in lines.items():
        if value:
            console.print(f"  {name:<17} {value}", markup=False, soft_wrap=True)
    for reason, count in plan.stays.most_common():
        console.print(f"  {'stays':<17} {count:,}: {reason}", markup=False, soft_wrap=True)
    for key in plan.damaged:
        console.print(f"  {'damaged':<17} {key}; run `postroom verify`", markup=False)
    bytes_ = "Every byte was checked." if verified else "A run checks every byte first; so does `plan --verify`."
    console.print(f"  Nothing was changed. {bytes_}", markup=False, soft_wrap=True)


def _print_report(email: str, policy: RemovalPolicy, report: ArchiveReport) -> None:
    console.print(
        f"{email}: {report.removed:,} messages removed ({policy.removal}), {size(report.bytes)}, in "
        f"{report.batches:,} batches.",
        markup=False,
        soft_wrap=True,
    )
    if report.resumed:
        console.print(f"  {report.resumed:,} removals of an interrupted run were completed first.", markup=False)
    if report.compared:
        replaced = (
            f"{report.compared:,} messages from files were compared with the mailbox, {report.replaced:,} replaced."
        )
        console.print(f"  {replaced}", markup=False)
    for reason, count in report.stays.most_common():
        console.print(f"  {count:,} stay: {reason}", markup=False)
    for note in report.notes:
        console.print(f"  {note}", markup=False, soft_wrap=True)
    if not report.is_complete:
        console.print("  Stopped before the end; run the same command to continue.", markup=False)


def _row(certificate: Certificate) -> list[object]:
    proof = certificate.proof
    result = (
        f"{certificate.result} ({certificate.detail})"
        if certificate.result is RemovalResult.LEFT
        else certificate.result
    )
    return [
        proof.gmail_id,
        str(certificate.removal),
        result,
        certificate.certified_at,
        f"{proof.size:,}",
        proof.shard,
        proof.sha256,
    ]

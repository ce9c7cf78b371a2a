"""`postroom sync`: bring whole accounts into the archive and keep them up to date.

While it runs it shows one live table on a terminal, and a line now and then elsewhere.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from postroom.accounts.account import Account, ArchivedMailbox, find_mailbox, list_accounts
from postroom.accounts.troubled import troubled_archives, troubled_of
from postroom.app import App
from postroom.app.series import recording
from postroom.archive.status import UP, OwnedElsewhere
from postroom.cli.session import AccountOption, chosen_accounts, stopped_by_signals, with_app
from postroom.cli.terminal import (
    DryRunOption,
    JsonOption,
    age,
    console,
    duration,
    errors,
    moment,
    print_json,
    print_table,
    printable,
    size,
)
from postroom.domain.errors import NotFound, PostroomError
from postroom.sync.fetch import RetriedMessages
from postroom.sync.service import AccountSync
from postroom.sync.status import SyncEstimate, SyncPhase, SyncProgress, SyncStatus, status_of
from postroom.telemetry.logs import clean

if TYPE_CHECKING:
    from postroom.cli.mail.handed_over import SyncedThere

_REFRESH_S = 0.5
_LINE_EVERY_S = 10.0


@asynccontextmanager
async def shown(syncs: Sequence[AccountSync], *, quiet: bool = False) -> AsyncIterator[None]:
    """Shows how the syncs are doing while the block lasts."""
    showing = asyncio.create_task(_show(syncs, quiet=quiet), name="sync display")
    try:
        yield
    finally:
        showing.cancel()
        with suppress(asyncio.CancelledError):
            await showing


async def _show(syncs: Sequence[AccountSync], *, quiet: bool) -> None:
    if quiet:
        return
    if not errors.is_terminal:
        await _print_lines(syncs)
        return
    from rich.live import Live

    with Live(_table(syncs), console=errors, auto_refresh=False) as live:
        try:
            while True:
                await asyncio.sleep(_REFRESH_S)
                live.update(_table(syncs), refresh=True)
        finally:
            live.update(_table(syncs), refresh=True)


async def _print_lines(syncs: Sequence[AccountSync]) -> None:
    said: dict[str, tuple[float, SyncPhase]] = {}
    while True:
        for sync in syncs:
            progress, now = sync.progress(), time.monotonic()
            at, phase = said.get(sync.account.email, (now, None))
            if phase is None or phase is not progress.phase or now - at >= _LINE_EVERY_S:
                errors.print(line(sync.account.email, progress), markup=False, soft_wrap=True)
                said[sync.account.email] = (now, progress.phase)
        await asyncio.sleep(_REFRESH_S)


def line(email: str, progress: SyncProgress) -> str:
    return f"{email}: " + ", ".join(f"{name} {value}" for name, value in _facts(progress).items())


def _table(syncs: Sequence[AccountSync]) -> Table:
    from rich.progress_bar import ProgressBar

    table = Table.grid(padding=(0, 2))
    for sync in syncs:
        progress = sync.progress()
        table.add_row(Text(sync.account.email, style="bold"), ProgressBar(_total(progress), _done(progress), width=40))
        for name, value in _facts(progress).items():
            table.add_row(Text(f"  {name}", style="dim"), Text(value))
    return table


def _total(progress: SyncProgress) -> float:
    return max(progress.messages_total, progress.settled, 1)


def _done(progress: SyncProgress) -> float:
    return _total(progress) if progress.phase is SyncPhase.FOLLOWING else progress.settled


def _facts(progress: SyncProgress) -> dict[str, str]:
    """The same words on a terminal and in a log."""
    slices = f"{progress.slices_done:,} of {progress.slices_total:,}"
    facts = {
        "phase": str(progress.phase),
        **({"progress": progress.words} if progress.messages_total else {}),
        **({"slices": slices} if progress.slices_total else {}),
        "watermark": moment(progress.watermark),
        "messages": _messages(progress),
        "quota": _quota(progress),
        "throttled": f"{progress.throttles:,} times",
        "bad": f"{progress.bad:,}",
    }
    trouble = {"retries": progress.retries, "splits": progress.splits, "stalls": progress.stalls}
    return facts | {name: f"{count:,}" for name, count in trouble.items() if count}


def _messages(progress: SyncProgress) -> str:
    parts = {"stored": progress.stored, "known": progress.known, "gone": progress.gone}
    return ", ".join(f"{count:,} {name}" for name, count in parts.items() if count or name == "stored")


def _quota(progress: SyncProgress) -> str:
    used = f"{progress.units_per_minute:,} units in the last minute"
    if progress.allowance is None:
        return f"limit not known; {progress.rps:.1f} requests/s allowed"
    return f"{used}, {progress.units_per_minute / progress.allowance:.0%} of {progress.allowance:,}"


app = typer.Typer(no_args_is_help=True, help="Copy whole mailboxes into the archive: plan, run, status, bad messages.")
bad_app = typer.Typer(no_args_is_help=True, help="Messages that could not be fetched or read: list them, retry them.")
app.add_typer(bad_app, name="bad")


@dataclass(frozen=True, slots=True)
class SyncEnd:
    """How an account's sync ended."""

    account: str
    error: str | None
    progress: SyncProgress
    words: str
    """`12,400 of 98,000 · 5/s · 4 h left`"""


@app.command()
def plan(account: AccountOption = None, json: JsonOption = False) -> None:
    """Show what a sync will take, before anything is fetched: messages, quota units, time, disk space."""

    async def run(app: App) -> None:
        chosen = await chosen_accounts(app, account)
        with errors.status("asking the mailbox ..."):
            found = [await app.sync.estimate(each) for each in chosen]
        if json:
            print_json([_estimate_json(each) for each in found])
            return
        for each in found:
            _print_estimate(each)

    with_app(run)


@app.command()
def run(
    account: AccountOption = None,
    once: Annotated[bool, typer.Option("--once", help="Exit when all current mail is stored.")] = False,
    json: JsonOption = False,
) -> None:
    """Bring all mail into the archive, then follow changes until stopped.

    Beside a running `postroom up`, which follows changes anyway, or `postroom switchboard`, it has the sync done
    there and ends with it.
    Ctrl-C or SIGTERM stops it cleanly at any time; the same command continues from there.
    """
    ended, was_stopped = with_app(lambda app: _run(app, account, once=once, json=json))
    if json:
        print_json({"stopped": was_stopped, "accounts": ended})
    if any(each.error is not None for each in ended):
        sys.exit(1)
    if was_stopped and once:
        sys.exit(130)


@app.command()
def status(account: AccountOption = None, json: JsonOption = False) -> None:
    """Show each account's sync progress, what reads it, and any problems."""

    async def run(app: App) -> None:
        now = app.clock.now()
        chosen = await chosen_accounts(app, account)
        found = [await app.database.read(partial(status_of, account=each, now=now)) for each in chosen]
        if json:
            print_json(found)
            return
        for each in found:
            _print_status(each, age(each.history_read_at, now))

    with_app(run)


@bad_app.command("list")
def bad_list(account: AccountOption = None, json: JsonOption = False) -> None:
    """List messages that could not be fetched, read or processed, with the reason.

    Of those that are archived, the exact bytes are kept: `postroom show --raw` writes them.
    """

    async def run(app: App) -> None:
        rows = []
        for each in await _chosen_mailboxes(app, account):
            found = await app.database.read(partial(troubled_of, account_id=each.id))
            rows += [(each.email, message) for message in found]
        if json:
            print_json([{"account": email, "message": message} for email, message in rows])
            return
        print_table(
            ["message", "account", "lane", "archived", "tries", "first seen", "last tried", "reason"],
            (
                [m.key, email, m.lane, "yes" if m.archived else "no", m.tries, m.first_seen, m.last_tried, m.reason]
                for email, m in rows
            ),
            empty="No bad messages.",
        )

    with_app(run)


@bad_app.command("retry")
def bad_retry(
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]...", help="Only these messages; default: all.")
    ] = None,
    account: AccountOption = None,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
) -> None:
    """Try bad messages again now. Exit code 1 if some are still bad."""

    async def run(app: App) -> dict[str, RetriedMessages]:
        listed = await _listed_bad(app, await _chosen_mailboxes(app, account), ids)
        if dry_run:
            return {each.email: RetriedMessages(still_bad=frozenset(found)) for each, found in listed}
        purpose = "postroom sync bad retry"
        return {each.email: await app.sync.retry_bad(each, found, purpose) for each, found in listed}

    retried = with_app(run)
    if json:
        print_json({"dry_run": dry_run, "accounts": retried})
    else:
        _print_retried(retried, dry_run=dry_run)
    if not dry_run and any(each.still_bad for each in retried.values()):
        sys.exit(1)


async def _run(app: App, email: str | None, *, once: bool, json: bool) -> tuple[Sequence[SyncEnd | SyncedThere], bool]:
    accounts = await chosen_accounts(app, email)
    try:
        return await _run_here(app, accounts, once=once, json=json)
    except OwnedElsewhere as error:
        from postroom.cli.mail.handed_over import server_in, sync_elsewhere  # only needed here, and slow to import

        owner = server_in(error)
        there = await sync_elsewhere(app, owner, accounts)
    if not json:
        _print_synced_there(there, follows=owner.purpose == UP)
    return there, False


def _print_synced_there(ended: Sequence[SyncedThere], *, follows: bool) -> None:
    for each in ended:
        if each.error is not None:
            errors.print(f"error: {each.account}: {printable(each.error)}", markup=False, soft_wrap=True)
            continue
        counts = ", ".join(f"{each.result.get(name, 0):,} {name}" for name in ("stored", "known", "bad"))
        console.print(f"{each.account}: {counts}, watermark {moment(each.result.get('watermark') or 0)}", markup=False)
    alone = "A Switchboard follows no new mail: run the same command again, or `postroom up` in its place."
    console.print("`postroom up` goes on following new mail." if follows else alone, markup=False, soft_wrap=True)


async def _run_here(
    app: App, accounts: Sequence[Account], *, once: bool, json: bool
) -> tuple[Sequence[SyncEnd | SyncedThere], bool]:
    async with recording(app), app.sync.opened(accounts, "postroom sync run") as syncs:
        with stopped_by_signals("Stopping: storing what was fetched ...") as stop:
            async with shown(syncs):
                was_stopped = await _until_over(tasks := _start(syncs, once=once), stop)
        ended = [_ended(sync, task) for sync, task in zip(syncs, tasks, strict=True)]
    if not json:
        _print_ended(ended, was_stopped=was_stopped)
    return ended, was_stopped


def _start(syncs: Sequence[AccountSync], *, once: bool) -> list[asyncio.Task[None]]:
    return [asyncio.create_task(sync.engine.run(once=once), name=f"sync {sync.account.id}") for sync in syncs]


async def _until_over(tasks: Sequence[asyncio.Task[None]], stop: asyncio.Event) -> bool:
    """Wait for all of them; an account that fails does not stop the others. True if it was asked to stop."""
    stopping = asyncio.create_task(stop.wait())
    over = asyncio.create_task(asyncio.wait(tasks))
    await asyncio.wait([stopping, over], return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    was_stopped = stop.is_set() and not all(task.done() for task in tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return was_stopped


def _ended(sync: AccountSync, task: asyncio.Task[None]) -> SyncEnd:
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, PostroomError):
        raise error
    progress = sync.progress()
    return SyncEnd(sync.account.email, None if error is None else clean(error.message), progress, progress.words)


def _print_ended(ended: Sequence[SyncEnd], *, was_stopped: bool) -> None:
    for each in ended:
        console.print(line(each.account, each.progress), markup=False, soft_wrap=True)
        if each.error is not None:
            errors.print(f"error: {each.account}: {printable(each.error)}", markup=False, soft_wrap=True)
    if was_stopped:
        console.print("Stopped. Nothing is lost; `postroom sync run` continues from here.", markup=False)


async def _chosen_mailboxes(app: App, email: str | None) -> Sequence[Account | ArchivedMailbox]:
    """The accounts, and the mailboxes without a login that have bad messages."""
    if email is not None:
        named = await app.database.read(lambda tx: find_mailbox(tx, email))
        return await chosen_accounts(app, email) if named is None else [named]
    archives = [mailbox for mailbox, _ in await app.database.read(troubled_archives)]
    return [*await app.database.read(list_accounts), *archives] or await chosen_accounts(app, None)


async def _listed_bad(
    app: App, mailboxes: Sequence[Account | ArchivedMailbox], ids: Sequence[str] | None
) -> list[tuple[Account | ArchivedMailbox, list[str]]]:
    """Of each mailbox, those of these messages that are listed as bad; all of them where none are named."""
    found = []
    for mailbox in mailboxes:
        listed = [each.key for each in await app.database.read(partial(troubled_of, account_id=mailbox.id))]
        found.append((mailbox, [each for each in listed if not ids or each in ids]))
    unknown = set(ids or ()) - {each for _, listed in found for each in listed}
    if unknown:
        raise NotFound("id", f"{min(unknown)} is not among the bad messages; `postroom sync bad list` shows them")
    return [(mailbox, listed) for mailbox, listed in found if listed]


def _print_retried(retried: Mapping[str, RetriedMessages], *, dry_run: bool) -> None:
    if not retried:
        console.print("No bad messages.")
    for email, each in retried.items():
        if dry_run:
            summary = f"would try {len(each.still_bad):,} messages again; nothing was changed"
        else:
            summary = (
                f"{len(each.stored):,} stored, {len(each.gone):,} gone at the source, {len(each.still_bad):,} still bad"
            )
        console.print(f"{email}: {summary}.", markup=False, soft_wrap=True)


def _estimate_json(estimate: SyncEstimate) -> dict[str, object]:
    return {**asdict(estimate), "units": estimate.units, "fits": estimate.fits}


def _print_estimate(estimate: SyncEstimate) -> None:
    assumed = " (assumed; set it with `account add --quota`)" if estimate.is_profile_assumed else ""
    each, basis = estimate.sizes.bytes_each, estimate.sizes.basis
    fits = "" if estimate.fits else "  NOT ENOUGH: free some space, or set POSTROOM_HOME to a larger disk"
    free = " in the database" if estimate.free_bytes is None else f" of {size(estimate.free_bytes)} free{fits}"
    facts = {
        "at the source": f"{estimate.messages:,} messages, as it counts them",
        "in the archive": f"{estimate.stored:,} already; {estimate.bad:,} listed as bad",
        "to fetch": f"about {estimate.to_fetch:,} messages",
        "slices": f"{estimate.slices:,}, one a {estimate.granularity}",
        "quota units": f"{estimate.units:,}: {estimate.list_units:,} to list, {estimate.get_units:,} to fetch",
        "profile": f"{estimate.profile}{assumed}: {estimate.units_per_minute:,} units a minute after the reserve",
        "time": f"{duration(estimate.seconds)}; {duration(estimate.seconds_when_busy)} if live mail is always busy",
        "disk": f"about {size(estimate.disk_bytes)}{free}",
        "message size": f"{size(each)} on average of {estimate.sizes.messages:,} messages, {basis}",
        "watermark": moment(estimate.watermark),
    }
    _print_facts(estimate.account, facts)


def _print_status(status: SyncStatus, read_ago: str) -> None:
    slices = f"{status.slices_open:,} open" + (f", {status.slices_done:,} done ahead" if status.slices_done else "")
    counters = ", ".join(f"{count:,} {name}" for name, count in status.counters.items())
    facts = {
        "phase": status.phase,
        "progress": status.progress.words if status.progress else "",
        "gap": f"mail since {status.gap_since:%Y-%m-%d} is being compared: the mailbox no longer tells its changes"
        if status.gap_since
        else "",
        "watermark": moment(status.watermark),
        "slices": slices if status.slices_open else "",
        "counted": counters,
        "bad": f"{status.bad:,}" + ("; `postroom sync bad list` shows them" if status.bad else ""),
        "history": f"id {status.history_id}, read {read_ago} ago" if status.history_id else "",
        "read by": status.reader or "",
    }
    _print_facts(status.account, facts)
    if status.live_trouble:
        console.print(f"  error: {printable(status.live_trouble)}", markup=False, soft_wrap=True)
    for alert in status.alerts:
        console.print(f"  {alert.level}: {alert.message}", markup=False, soft_wrap=True)


def _print_facts(heading: str, facts: Mapping[str, str]) -> None:
    console.print(heading, markup=False, style="bold")
    for name, value in facts.items():
        if value:
            console.print(f"  {name:<15} {value}", markup=False, soft_wrap=True)

"""`postroom restore`: put archived mail back into a mailbox, watch it, stop it, undo it, and show its certificate."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

from postroom import kill_switch
from postroom.actions.restore import runs
from postroom.actions.restore.items import RestoreItem, but_for_line_ends, said_of
from postroom.actions.restore.runs import AT_WORK, RestoreOrder, RestorePlan, RestoreProgress, RestoreRun, RunState
from postroom.app import App
from postroom.audit import Actor
from postroom.cli.session import change, change_queue, me, read, rehearse, stopped_by_signals, with_app
from postroom.cli.terminal import (
    DryRunOption,
    JsonOption,
    age,
    console,
    errors,
    print_json,
    print_table,
    printable,
    progress_bar,
    shown,
    size,
)
from postroom.db import Tx
from postroom.domain.actions import ItemState
from postroom.domain.clock import SystemClock
from postroom.domain.errors import BadInput

app = typer.Typer(help="Put archived mail back into a mailbox, with a certificate; watch, stop and undo that.")

RunId = Annotated[str, typer.Argument(metavar="RUN", help="As `restore status` shows it.")]
WaitOption = Annotated[bool, typer.Option("--wait", help="Show the progress until it is over.")]
_LOOK_EVERY_S = 0.5


class SwitchPosition(StrEnum):
    ON = "on"
    OFF = "off"


@app.callback(invoke_without_command=True)
def restore(
    context: typer.Context,
    account: Annotated[str | None, typer.Option("--account", help="Whose archived mail to put back.")] = None,
    query: Annotated[str, typer.Option("--query", help="Only mail that this search finds.")] = "",
    to_account: Annotated[
        str | None, typer.Option("--to-account", help="The account to put it into; default: the same.")
    ] = None,
    folder: Annotated[
        str | None, typer.Option("--folder", help="Put all of it into this folder or label, not where it was.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    wait: WaitOption = False,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
) -> None:
    """Put archived mail back into a mailbox: exact bytes, date, flags and labels, each message once.

    A worker does it; mail that is there already is found first and left alone. At the end every message is read back
    from the mailbox and compared: `restore certificate` shows the result. `restore undo` moves what was added to the
    trash. `--dry-run` counts what would be put back.
    """
    if context.invoked_subcommand is not None:
        return
    if account is None:
        raise BadInput("account", "say whose archived mail to put back, for example --account ann@example.org")
    order = RestoreOrder.of(account, query, to_account, folder)
    found = with_app(lambda app: _planned(app, order))
    if dry_run:
        _print_plan(order, found, json=json)
        return
    if not found.messages:
        raise BadInput("query", f"finds no mail of {order.source} in the archive")
    if not yes:
        which = f"{found.messages:,} messages ({size(found.bytes)}) of {order.source}"
        typer.confirm(f"Put {which} into {order.target}?", abort=True, err=True)
    begun = change_queue(lambda tx, queue, who: runs.begin(tx, queue, order, who), dry_run=False)
    _begun(begun, wait=wait, json=json)


async def _planned(app: App, order: RestoreOrder) -> RestorePlan:
    """Everything that would be refused is refused here too."""
    who = Actor.of(me())
    await rehearse(app.database, lambda tx: runs.begin(tx, app.queue, order, who))
    return await asyncio.to_thread(runs.plan, app.archive.backend, order, app.settings.restore)


def _print_plan(order: RestoreOrder, found: RestorePlan, *, json: bool) -> None:
    if json:
        print_json({"source": order.source, "target": order.target, **_fields(found), "dry_run": True})
        return
    console.print(
        f"{found.messages:,} messages ({size(found.bytes)}) of {order.source} would be put into {order.target}.",
        markup=False,
        soft_wrap=True,
    )
    if found.oldest is not None:
        console.print(f"They are from {shown(found.oldest)} to {shown(found.newest)}.", markup=False)
    if found.at_source:
        console.print(f"{found.at_source:,} of them are probably there still; those are left alone.")
    if found.left_out:
        console.print(f"{found.left_out:,} more are drafts, chats or equal copies, and are left out.")
    console.print("Nothing was done.")


def _begun(begun: RestoreRun, *, wait: bool, json: bool) -> None:
    if wait:
        _follow(begun.id, json=json)
    elif json:
        print_json(_plain(read(lambda tx: runs.progress_of(tx, begun))))
    else:
        console.print(f"Queued as {begun.id}. A worker does it; `postroom restore status` shows how far it is.")


@app.command()
def status(
    run_id: Annotated[str | None, typer.Argument(metavar="RUN", help="Only this one.")] = None,
    wait: WaitOption = False,
    json: JsonOption = False,
) -> None:
    """List restores, newest first, with their progress; or show one."""
    if run_id is None:
        if wait:
            raise BadInput("wait", "goes with the RUN to wait for")
        _print_runs(read(runs.list_runs), json=json)
    elif wait:
        _follow(run_id, json=json)
    else:
        _print_one(_progress(run_id), json=json)


@app.command()
def certificate(
    run_id: RunId,
    all_messages: Annotated[bool, typer.Option("--all", help="Every message, not only those that differ.")] = False,
    json: JsonOption = False,
) -> None:
    """Show what was read back from the mailbox: every message compared with the archive."""
    found = _progress(run_id)
    if found.run.certificate is None:
        raise BadInput("run", f"{found.run.id} is {found.run.state}; its certificate is issued when it is completed")
    items = read(lambda tx: list(runs.all_items(tx, found.run.id)))
    shown_items = [item for item in items if all_messages or item.state is ItemState.FAILED or item.differences]
    if json:
        print_json({**_plain(found), "items": [_item(item) for item in (items if all_messages else shown_items)]})
        return
    for line in certificate_lines(found.run.certificate):
        console.print(line, markup=False, soft_wrap=True)
    if shown_items:
        rows = ([item.key, item.state, _said(item)] for item in shown_items)
        print_table(["message", "state", "what is not as it was"], rows, empty="")


def certificate_lines(said: Mapping[str, Any]) -> list[str]:
    differing, rewritten = said["differences"], but_for_line_ends(said)
    lines = [
        f"{said['verified'] - rewritten:,} messages were put back and read back with equal SHA-256, {rewritten:,} "
        f"equal except for line ends, {said['already_there']:,} were there already, {said['failed']:,} failed; "
        f"{said['messages']:,} in all ({size(said['bytes'])}).",
        f"Dates that differ: {differing['date']:,}. Labels missing: {differing['labels_missing']:,}, added: "
        f"{differing['labels_added']:,}. Line ends rewritten by the mailbox: {differing['line_ends']:,}. "
        f"Conversations split: {said['threads_split']:,}.",
        f"Issued {said['issued_at']}, digest {said['digest']}.",
    ]
    return lines


@app.command()
def stop(run_id: RunId, dry_run: DryRunOption = False) -> None:
    """Stop a restore. What it put back stays; `restore resume` goes on, `restore undo` takes it back."""
    change_queue(lambda tx, queue, who: runs.stop(tx, queue, run_id, who), dry_run=dry_run)
    console.print("It would be stopped." if dry_run else "Stopped.")


@app.command()
def resume(run_id: RunId, wait: WaitOption = False, dry_run: DryRunOption = False) -> None:
    """Go on with one that was stopped or has failed, and try again what failed."""
    run = change_queue(lambda tx, queue, who: runs.resume(tx, queue, run_id, who), dry_run=dry_run)
    _changed(run, "It would go on." if dry_run else "It goes on.", wait=wait and not dry_run)


@app.command()
def undo(
    run_id: RunId,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    wait: WaitOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Move exactly what a restore added to the mailbox's trash. Mail that was there before stays."""
    found = _progress(run_id)
    if not (yes or dry_run):
        typer.confirm(f"Move what it added to the trash of {found.run.target}?", abort=True, err=True)
    run = change_queue(lambda tx, queue, who: runs.undo(tx, queue, run_id, who), dry_run=dry_run)
    _changed(run, "It would be undone." if dry_run else "A worker undoes it.", wait=wait and not dry_run)


@app.command()
def approve(run_id: RunId, wait: WaitOption = False, dry_run: DryRunOption = False) -> None:
    """Start a restore that an assistant proposed."""
    run = change_queue(lambda tx, queue, who: runs.start(tx, queue, run_id, who), dry_run=dry_run)
    _changed(run, "It would start." if dry_run else "It starts.", wait=wait and not dry_run)


@app.command()
def reject(run_id: RunId, dry_run: DryRunOption = False) -> None:
    """Reject a restore that an assistant proposed."""
    change_queue(lambda tx, queue, who: runs.reject(tx, queue, run_id, who), dry_run=dry_run)
    console.print("It would be rejected." if dry_run else "Rejected. Nothing was put back.")


@app.command()
def switch(position: Annotated[SwitchPosition, typer.Argument()], dry_run: DryRunOption = False) -> None:
    """Turn putting mail back off in every process, or on again. Running restores wait; nothing is lost."""
    on = position is SwitchPosition.ON
    change(lambda tx, who, now: kill_switch.turn_restore(tx, on, who, now), dry_run=dry_run)
    console.print(f"Putting mail back {'would be' if dry_run else 'is'} {position}.")


def _changed(run: RestoreRun, said: str, *, wait: bool) -> None:
    console.print(said)
    if wait:
        _follow(run.id, json=False)


def _progress(run_id: str) -> RestoreProgress:
    return read(lambda tx: runs.progress_of(tx, runs.get_run(tx, run_id)))


def _follow(run_id: str, *, json: bool) -> None:
    """Until it is over. Ctrl-C ends the command and not the restore."""
    over = with_app(lambda app: _watched(app, run_id))
    _print_one(over, json=json)
    if over.run.state not in (RunState.COMPLETED, RunState.UNDONE) or over.counts.get(ItemState.FAILED):
        raise typer.Exit(1)


async def _watched(app: App, run_id: str) -> RestoreProgress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with (
        progress_bar(*columns) as bar,
        stopped_by_signals(f"It goes on in the worker; `postroom restore status {run_id}` shows it.") as stop,
    ):
        task, reported = bar.add_task("finding messages", total=None), None
        while True:
            now, held_up = await app.database.read(lambda tx: _look(tx, run_id))
            if now.run.state not in AT_WORK:
                return now
            doing = "putting back" if now.run.state is RunState.RUNNING else "undoing"
            total = now.total if now.run.is_planned else None
            bar.update(task, description=doing if total else "finding messages", total=total, completed=now.done)
            if held_up is not None and held_up != reported:
                reported = held_up
                errors.print(printable(f"It waits: {held_up}."), markup=False, soft_wrap=True)
            try:
                await asyncio.wait_for(stop.wait(), _LOOK_EVERY_S)
            except TimeoutError:
                continue
            raise typer.Exit(130)


def _look(tx: Tx, run_id: str) -> tuple[RestoreProgress, str | None]:
    found = runs.progress_of(tx, runs.get_run(tx, run_id))
    return found, runs.may_work(tx) if found.run.state is RunState.RUNNING else None


def _print_runs(found: list[RestoreProgress], *, json: bool) -> None:
    if json:
        print_json([_plain(each) for each in found])
        return
    now = SystemClock().now()
    rows = (
        [each.run.id, each.run.source, each.run.target, each.run.state, age(each.run.created_at, now), _counted(each)]
        for each in found
    )
    print_table(["id", "from", "to", "state", "age", "progress"], rows, empty="Nothing was put back yet.")


def _print_one(found: RestoreProgress, *, json: bool) -> None:
    if json:
        print_json(_plain(found))
        return
    run = found.run
    console.print(f"{run.id}: {run.state}, {_counted(found)}.", markup=False, soft_wrap=True)
    if run.reason:
        console.print(printable(run.reason), markup=False, soft_wrap=True)
    if run.certificate is not None and run.state is RunState.COMPLETED:
        for line in certificate_lines(run.certificate):
            console.print(line, markup=False, soft_wrap=True)


def _counted(found: RestoreProgress) -> str:
    if not found.run.is_planned and found.run.state is RunState.RUNNING:
        return f"{found.total:,} messages found so far"
    kinds = ((ItemState.ALREADY_THERE, "there already"), (ItemState.FAILED, "failed"), (ItemState.TRASHED, "undone"))
    more = [f"{found.counts[state]:,} {words}" for state, words in kinds if found.counts.get(state)]
    put_back = found.counts.get(ItemState.VERIFIED, 0)
    return ", ".join([f"{put_back:,} of {found.total:,} messages put back and verified", *more])


def _said(item: RestoreItem) -> str:
    return "; ".join([*([item.detail] if item.detail else []), *said_of(item.differences)])


def _fields(value: Any) -> dict[str, object]:
    return {name: getattr(value, name) for name in type(value).__slots__}


def _plain(found: RestoreProgress) -> dict[str, object]:
    run = {name: value for name, value in _fields(found.run).items() if name not in ("cursor", "target_account_id")}
    counts = {state.value: found.counts.get(state, 0) for state in ItemState}
    return {**run, "messages": found.total, "bytes": found.bytes, "done": found.done, "counts": counts}


def _item(item: RestoreItem) -> dict[str, object]:
    return {name: value for name, value in _fields(item).items() if name not in ("run_id", "since", "source_id")}

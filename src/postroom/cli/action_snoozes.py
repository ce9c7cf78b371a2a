"""`postroom actions snoozed`, `wake` and `reschedule`: mail that is away for a while."""

from __future__ import annotations

from typing import Annotated

import typer

from postroom.accounts.store import get_account
from postroom.actions import snoozes, waking
from postroom.actions.snoozes import Snooze
from postroom.app import App
from postroom.audit import Actor
from postroom.cli.accounts_chosen import AccountOption
from postroom.cli.moments import instant
from postroom.cli.output import DryRunOption, JsonOption, console, print_json, print_table
from postroom.cli.session import me, with_app
from postroom.domain.errors import BadInput

SnoozeId = Annotated[str, typer.Argument(metavar="ID", help="The snooze's action, as `actions snoozed` shows it.")]


def snoozed(account: AccountOption = None, json: JsonOption = False) -> None:
    """List snoozed mail, the next to come back first."""

    async def run(app: App) -> list[Snooze]:
        chosen = None if account is None else await app.database.read(lambda tx: get_account(tx, account))
        return await app.database.read(lambda tx: snoozes.waiting(tx, None if chosen is None else chosen.id))

    found = with_app(run)
    if json:
        print_json(found)
        return
    rows = ([each.action_id, each.until, each.subject or each.gmail_id, each.label_name] for each in found)
    print_table(["id", "comes back (UTC)", "message", "label"], rows, empty="No mail is snoozed.")


def wake(action_id: SnoozeId, dry_run: DryRunOption = False) -> None:
    """Bring snoozed mail back now."""

    async def run(app: App) -> None:
        who = Actor.of(me())
        await app.database.write(lambda tx: waking.wake_now(tx, app.queue, action_id, who, dry_run=dry_run))

    with_app(run)
    console.print("It would come back now." if dry_run else "It comes back as soon as a worker is free.")


def reschedule(
    action_id: SnoozeId,
    until: Annotated[str, typer.Argument(metavar="UNTIL", help="When to come back, with its zone.")],
    dry_run: DryRunOption = False,
) -> None:
    """Bring snoozed mail back at another time."""
    moment = instant("until", until)
    if moment is None:
        raise BadInput("until", "is missing")

    async def run(app: App) -> Snooze:
        who = Actor.of(me())
        return await app.database.write(
            lambda tx: waking.reschedule(tx, app.queue, action_id, moment, who, dry_run=dry_run)
        )

    with_app(run)
    console.print(f"It {'would come' if dry_run else 'comes'} back at {moment:%Y-%m-%d %H:%M} UTC.")

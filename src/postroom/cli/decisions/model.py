"""`postroom model`: check, stop and start the language model, and bound what it may cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from postroom import kill_switch
from postroom.app import App
from postroom.audit import Actor
from postroom.cli.session import change, me, read, with_app
from postroom.cli.terminal import DryRunOption, JsonOption, console, print_json, printable, shown
from postroom.cli.upkeep.doctor import print_finding
from postroom.domain.checkups import Finding, first_failure
from postroom.domain.money import format_dollars, from_cents, parse_dollars, to_cents
from postroom.kill_switch import KillSwitch

if TYPE_CHECKING:
    from postroom.switchboard.spending import CeilingInForce, DaySpending

app = typer.Typer(no_args_is_help=True, help="The language model: check it, switch it off and on, limit its cost.")

_OFF = (
    "The model is no longer called, in any process. What no rule decides goes to review, and whatever the model had "
    "wanted and is not done yet needs approval."
)
_UNDO = "What it did can be undone: `postroom actions undo --by model --since 1h --dry-run`."


@app.command()
def off(dry_run: DryRunOption = False, json: JsonOption = False) -> None:
    """Stop the model at once, in every process. Rules keep working."""
    _turn(False, dry_run=dry_run, json=json)
    if not json:
        console.print("The model would be stopped." if dry_run else f"{_OFF} {_UNDO}", soft_wrap=True)


@app.command()
def on(dry_run: DryRunOption = False, json: JsonOption = False) -> None:
    """Switch the model on again."""
    _turn(True, dry_run=dry_run, json=json)
    if not json:
        console.print("The model would be switched on." if dry_run else "The model is on again.")


@app.command()
def status(json: JsonOption = False) -> None:
    """Show whether the model is on, and who switched it on or off."""
    switch = read(kill_switch.model_switch)
    if json:
        print_json(_as_json(switch))
        return
    by = f", switched by {switch.changed_by} at {shown(switch.changed_at)}" if switch.changed_by else ""
    console.print(printable(f"The model is {'on' if switch.on else 'off'}{by}."), markup=False, soft_wrap=True)


@app.command()
def ceiling(
    dollars: Annotated[str | None, typer.Argument(metavar="[DOLLARS]", help="The new ceiling, for example 10.")] = None,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
) -> None:
    """Show or set the daily ceiling of all model calls together."""
    cents = None if dollars is None else to_cents(parse_dollars(dollars, "dollars"))

    async def run(app: App) -> tuple[DaySpending, CeilingInForce]:
        budget = app.budget
        if cents is not None and not dry_run:
            await app.database.write(lambda tx: budget.set_ceiling(tx, cents, Actor.of(me())))
        return await app.database.read(lambda tx: (budget.today(tx), budget.ceiling(tx)))

    today, limits = with_app(run)
    if json:
        shown_now = {"ceiling_cents": to_cents(limits.ceiling), "backfill_share_cents": to_cents(limits.backfill_share)}
        spent = {"spent_microdollars": today.settled, "reserved_microdollars": today.reserved}
        print_json({**shown_now, **spent, "changed_by": limits.changed_by, "dry_run": dry_run})
        return
    if dry_run and cents is not None:
        console.print(f"The ceiling would be {format_dollars(from_cents(cents))} a day.")
        return
    by = f" (set by {limits.changed_by})" if limits.changed_by else ""
    console.print(
        printable(
            f"All model calls together may cost {format_dollars(limits.ceiling)} a day{by}, backfill at most "
            f"{format_dollars(limits.backfill_share)} of it. Today: {format_dollars(today.settled)} spent."
        ),
        markup=False,
        soft_wrap=True,
    )


def _turn(on: bool, *, dry_run: bool, json: bool) -> None:
    switch = change(lambda tx, who, now: kill_switch.turn_model(tx, on, who, now), dry_run=dry_run)
    if json:
        print_json({**_as_json(switch), "dry_run": dry_run})


def _as_json(switch: KillSwitch) -> dict[str, object]:
    return {"on": switch.on, "changed_by": switch.changed_by, "changed_at": switch.changed_at}


@app.command()
def check(json: JsonOption = False) -> None:
    """Check the model: settings, key, price, then one tiny call, which costs money. Exit code 1 if anything failed."""

    async def run(app: App) -> list[Finding]:
        from postroom.triage.model import try_model

        findings: list[Finding] = []
        async for finding in try_model(app.settings.model, app.vault, app.database, app.clock, app.budget):
            if not json:
                print_finding(finding)
            findings.append(finding)
        return findings

    findings = with_app(run)
    if json:
        print_json(findings)
    if first_failure(findings):
        raise typer.Exit(1)

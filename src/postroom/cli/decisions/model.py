"""`postroom model`: check, stop and start the language model."""

from __future__ import annotations

import typer

from postroom import kill_switch
from postroom.app import App
from postroom.cli.doctor import print_finding
from postroom.cli.session import change, read, with_app
from postroom.cli.terminal import DryRunOption, JsonOption, console, print_json, printable, shown
from postroom.domain.checkups import Finding, first_failure
from postroom.kill_switch import KillSwitch

app = typer.Typer(no_args_is_help=True, help="The language model: check it, switch it off and on, show its state.")

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
    """Show whether the model is on, and who switched it."""
    switch = read(kill_switch.model_switch)
    if json:
        print_json(_as_json(switch))
        return
    by = f", switched by {switch.changed_by} at {shown(switch.changed_at)}" if switch.changed_by else ""
    console.print(printable(f"The model is {'on' if switch.on else 'off'}{by}."), markup=False, soft_wrap=True)


def _turn(on: bool, *, dry_run: bool, json: bool) -> None:
    switch = change(lambda tx, who, now: kill_switch.turn_model(tx, on, who, now), dry_run=dry_run)
    if json:
        print_json({**_as_json(switch), "dry_run": dry_run})


def _as_json(switch: KillSwitch) -> dict[str, object]:
    return {"on": switch.on, "changed_by": switch.changed_by, "changed_at": switch.changed_at}


@app.command()
def check(json: JsonOption = False) -> None:
    """Try the model: settings, key, price, then one tiny call, which costs money. Exit code 1 if anything failed."""

    async def run(app: App) -> list[Finding]:
        from postroom.triage.model import try_model

        findings: list[Finding] = []
        async for finding in try_model(app.settings.model, app.vault, app.database, app.clock):
            if not json:
                print_finding(finding)
            findings.append(finding)
        return findings

    findings = with_app(run)
    if json:
        print_json(findings)
    if first_failure(findings):
        raise typer.Exit(1)

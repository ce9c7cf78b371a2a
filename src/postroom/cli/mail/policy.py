"""`postroom policy`: how much of which mail is kept and read."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import Annotated, Any

import typer

from postroom.app import App
from postroom.audit import Actor
from postroom.cli.session import me, read, with_app
from postroom.cli.terminal import DryRunOption, JsonOption, console, print_json, print_table, read_file
from postroom.domain.errors import BadInput
from postroom.mail.tier_policy import TierPolicy, parse_rules
from postroom.switchboard import tier_policy

app = typer.Typer(
    no_args_is_help=True, help="The tier policy: which mail is taken in whole, by its headers only, or not at all."
)


@app.command()
def show(json: JsonOption = False) -> None:
    """Show the rules in order. The first that matches a message decides; mail that none matches is taken in whole."""
    rules = read(tier_policy.all_policy_rules)
    if json:
        print_json(rules)
        return
    rows = ([number, rule["tier"], "" if rule["enabled"] else "off", rule["note"]] for number, rule in enumerate(rules))
    print_table(["#", "tier", "", "what it is for"], rows, empty="No rules: all mail is taken in whole.")


@app.command("set")
def set_(
    file: Annotated[Path, typer.Argument(help="JSON as `postroom policy show --json` prints it.")],
    dry_run: DryRunOption = False,
) -> None:
    """Replace all rules by those of a file. If there is a mistake, it is named and nothing changes."""
    rules = _read(file)
    parse_rules(rules)

    async def run(app: App) -> TierPolicy:
        if dry_run:
            return await app.database.read(tier_policy.policy_in_force)
        return await app.database.write(
            lambda tx: tier_policy.replace_policy(tx, rules, Actor.of(me()), app.clock.now())
        )

    in_force = with_app(run)
    if dry_run:
        console.print(f"{len(rules)} rules can be read; {len(in_force.rules)} are in force.")
    else:
        console.print(f"{len(in_force.rules)} rules are in force; connectors get them with their next heartbeat.")


def _read(file: Path) -> list[Any]:
    try:
        rules = jsonlib.loads(read_file("file", file))
    except (ValueError, RecursionError):
        raise BadInput("file", f"{file} is not JSON") from None
    if not isinstance(rules, list):
        raise BadInput("file", f"{file} does not hold a list of rules")
    return rules

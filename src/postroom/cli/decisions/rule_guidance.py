"""`postroom rules directions` and `guidance`: instructions to the model, in the owner's words."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any

import typer

from postroom.accounts.account import get_account
from postroom.audit import Actor
from postroom.cli.session import change, read
from postroom.cli.terminal import DryRunOption, JsonOption, console, print_json, print_table
from postroom.db import Tx
from postroom.domain.errors import BadInput
from postroom.triage import guidance as store
from postroom.triage.guidance import Guidance, guidance_for
from postroom.triage.rules.rows import account_addresses, named
from postroom.triage.rules.rule import RuleScope, parse_scope

directions = typer.Typer(
    no_args_is_help=True, help="Instructions to the model for all mail, one or two sentences each."
)
guidance = typer.Typer(no_args_is_help=True, help="Instructions to the model for one account, domain or sender.")

NumberArgument = Annotated[int, typer.Argument(help="Its number in the list.")]
NameArgument = Annotated[str, typer.Argument(help="Its name, or its id.")]
TextArgument = Annotated[str, typer.Argument(help="The instruction, in your words.")]
ScopeOption = Annotated[
    str | None, typer.Option("--scope", help="account:E, domain:D or sender:A; all mail otherwise.", metavar="SCOPE")
]


@directions.command("list")
def list_directions(json: JsonOption = False) -> None:
    """List the directions in the order in which the model is given them."""
    found = read(store.list_directions)
    if json:
        print_json(found)
        return
    rows = ([number, "on" if each.enabled else "off", each.text] for number, each in enumerate(found, 1))
    print_table(["#", "state", "text"], rows, empty="There are none. `postroom rules directions add TEXT` adds one.")


@directions.command("add")
def add_direction(text: TextArgument, dry_run: DryRunOption = False) -> None:
    """Add a direction at the end."""
    added = change(lambda tx, who, now: store.add_direction(tx, text, who, now), dry_run=dry_run)
    _say("Would add" if dry_run else "Added", added.text)


@directions.command("edit")
def edit_direction(number: NumberArgument, text: TextArgument, dry_run: DryRunOption = False) -> None:
    """Replace the text of a direction."""
    before = _change_direction(number, {"text": text}, dry_run=dry_run)
    _say("Would replace" if dry_run else "Replaced", before.text)


@directions.command("remove")
def remove_direction(number: NumberArgument, dry_run: DryRunOption = False) -> None:
    """Remove a direction. The numbers of those after it change."""

    def remove(tx: Tx, who: Actor, now: datetime) -> store.Direction:
        found = store.get_direction(tx, number)
        store.remove_direction(tx, found, who, now)
        return found

    _say("Would remove" if dry_run else "Removed", change(remove, dry_run=dry_run).text)


@guidance.command("list")
def list_guidance(json: JsonOption = False) -> None:
    """List the guidance for all scopes."""
    found, addresses = read(lambda tx: (store.list_model_rules(tx), account_addresses(tx)))
    if json:
        print_json([{**_fields(rule), "scope": str(named(rule.scope, addresses))} for rule in found])
        return
    rows = (
        [rule.name, str(named(rule.scope, addresses)), "on" if rule.enabled else "off", rule.text] for rule in found
    )
    print_table(
        ["name", "scope", "state", "text"],
        rows,
        empty="There is none. `postroom rules guidance add NAME TEXT --scope domain:D` adds some.",
    )


@guidance.command("add")
def add_guidance(
    name: Annotated[str, typer.Argument(help="What to call it.")],
    text: TextArgument,
    scope: ScopeOption = None,
    dry_run: DryRunOption = False,
) -> None:
    """Add guidance for mail of a scope."""
    wanted = parse_scope(scope, "--scope") if scope is not None else RuleScope()
    change(lambda tx, who, now: store.add_model_rule(tx, name, wanted, text, who, now), dry_run=dry_run)
    _say("Would add" if dry_run else "Added", name)


@guidance.command("edit")
def edit_guidance(
    name: NameArgument,
    text: Annotated[str | None, typer.Option("--text", help="The new text.")] = None,
    rename: Annotated[str | None, typer.Option("--name", help="A new name.")] = None,
    scope: ScopeOption = None,
    dry_run: DryRunOption = False,
) -> None:
    """Change the text, the name or the scope."""
    given = {"text": text, "name": rename, "scope": None if scope is None else parse_scope(scope, "--scope")}
    changes = {field: value for field, value in given.items() if value is not None}
    if not changes:
        raise BadInput("guidance", "give --text, --name or --scope")
    after = _change_guidance(name, changes, dry_run=dry_run)
    _say("Would be changed" if dry_run else "Changed", after.name)


@guidance.command("remove")
def remove_guidance(name: NameArgument, dry_run: DryRunOption = False) -> None:
    """Remove guidance."""

    def remove(tx: Tx, who: Actor, now: datetime) -> store.StoredModelRule:
        found = store.get_model_rule(tx, name)
        store.remove_model_rule(tx, found, who, now)
        return found

    _say("Would remove" if dry_run else "Removed", change(remove, dry_run=dry_run).name)


@guidance.command("for")
def guidance_for_sender(
    sender: Annotated[str, typer.Argument(help="A sender's address.")],
    account: Annotated[str | None, typer.Option("--account", help="Mail to this account.")] = None,
    json: JsonOption = False,
) -> None:
    """Show all instructions that the model is given with mail from this sender."""

    def wanted(tx: Tx) -> Guidance:
        return guidance_for(tx, None if account is None else get_account(tx, account).id, sender)

    found = read(wanted)
    if json:
        print_json(found)
        return
    for text in found.directions:
        console.print(f"- {text}", markup=False)
    for rule in found.rules:
        console.print(f"- {rule.text} ({rule.name})", markup=False)
    if found.left_out:
        left_out = ", ".join(found.left_out)
        warning = (
            f"The model does NOT get these, because there is no room for more: {left_out}. Shorten or disable some."
        )
        console.print(warning, markup=False, soft_wrap=True)
    if not (found.directions or found.rules):
        console.print("Nothing.")


def _say(what: str, of: str) -> None:
    console.print(f"{what}: {of}", markup=False, soft_wrap=True)


def _add_switches(app: typer.Typer, argument: Any, switch: Callable[[Any, bool, bool], str]) -> None:
    """`enable` and `disable`, which differ in nothing but what they name."""

    def enable(which: Any, dry_run: DryRunOption = False) -> None:
        """Switch it on."""
        _say("Would be on" if dry_run else "It is on", switch(which, True, dry_run))

    def disable(which: Any, dry_run: DryRunOption = False) -> None:
        """Switch it off without removing it."""
        _say("Would be off" if dry_run else "It is off", switch(which, False, dry_run))

    for command in (enable, disable):
        command.__annotations__["which"] = argument
        app.command()(command)


def _change_direction(number: int, changes: dict[str, Any], *, dry_run: bool) -> store.Direction:
    """What it was before."""

    def put(tx: Tx, who: Actor, now: datetime) -> store.Direction:
        before = store.get_direction(tx, number)
        store.change_direction(tx, before, changes, who, now)
        return before

    return change(put, dry_run=dry_run)


def _change_guidance(name: str, changes: dict[str, Any], *, dry_run: bool) -> store.StoredModelRule:
    def put(tx: Tx, who: Actor, now: datetime) -> store.StoredModelRule:
        return store.change_model_rule(tx, store.get_model_rule(tx, name), changes, who, now)

    return change(put, dry_run=dry_run)


def _fields(rule: store.StoredModelRule) -> dict[str, Any]:
    return {"id": rule.id, "name": rule.name, "text": rule.text, "enabled": rule.enabled}


_add_switches(
    directions,
    NumberArgument,
    lambda number, on, dry_run: _change_direction(number, {"enabled": on}, dry_run=dry_run).text,
)
_add_switches(
    guidance,
    NameArgument,
    lambda name, on, dry_run: _change_guidance(name, {"enabled": on}, dry_run=dry_run).name,
)

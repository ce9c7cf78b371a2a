"""`postroom rules`: rules that act on mail, without a model. The first that matches a message decides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import click
import typer

from postroom import settings
from postroom.app import App
from postroom.audit import Actor
from postroom.cli.decisions import rule_files, rule_guidance, rule_trying
from postroom.cli.decisions.rule_options import RuleOptions, takes_rule_options
from postroom.cli.session import change, with_app
from postroom.cli.terminal import DryRunOption, JsonOption, console, print_json, print_table
from postroom.db import Tx
from postroom.domain.errors import BadInput
from postroom.triage.decision import DecidedBy
from postroom.triage.rules import store
from postroom.triage.rules.files import (
    RulesDocument,
    RulesFileFormat,
    as_written,
    parse_text,
    read_file,
    written,
    written_rule,
)
from postroom.triage.rules.rows import StoredRule, account_addresses, rule_named
from postroom.triage.rules.rule import RuleDraft, described, parse_draft, parse_name
from postroom.triage.rules.store import MoveDirection, move_rule
from postroom.triage.rules.wording import in_words
from postroom.triage.safety import reasons_for

app = typer.Typer(no_args_is_help=True, help="Rules that act on mail without a model; the first match decides.")

NameArgument = Annotated[str, typer.Argument(help="The rule's name, or its id.")]
FileOption = Annotated[
    Path | None, typer.Option("--file", help="A TOML or YAML file with this one rule, instead of options.")
]


@app.command("list")
def list_(json: JsonOption = False) -> None:
    """List the rules in the order in which they are tried."""

    async def run(app: App) -> list[StoredRule]:
        return await app.database.read(_readable)

    rules = with_app(run)
    if json:
        print_json([as_json(rule) for rule in rules])
        return
    rows = ([rule.name, rule.priority, _state(rule), rule.scope, _does(rule), _asks(rule)] for rule in rules)
    print_table(
        ["name", "priority", "state", "scope", "does", "where"],
        rows,
        empty="There are no rules. `postroom rules add NAME --from ADDRESS --do archive` adds one.",
    )
    for rule in rules:
        if why := rule.disabled_reason or rule.problem:
            console.print(f"{rule.name}: {why}", markup=False, soft_wrap=True)


@app.command()
def show(name: NameArgument, json: JsonOption = False) -> None:
    """Show a rule as it would stand in a file."""

    async def run(app: App) -> StoredRule:
        return await app.database.read(lambda tx: _named(tx, name))

    rule = with_app(run)
    if json:
        print_json(as_json(rule))
        return
    _print_rule(rule)


@app.command()
@takes_rule_options
def add(
    name: Annotated[str | None, typer.Argument(help="What to call it; not needed with --file.")] = None,
    *,
    file: FileOption = None,
    disabled: Annotated[bool, typer.Option("--disabled", help="Keep it switched off for now.")] = False,
    dry_run: DryRunOption = False,
    options: RuleOptions,
) -> None:
    """Add a rule. Try it before: `postroom rules try` takes the same options."""
    draft = draft_from(name, file, options)
    if disabled:
        draft = replace(draft, enabled=False)

    change(lambda tx, who, now: store.add_rule(tx, draft, who, now), dry_run=dry_run)
    if dry_run:
        console.print(written_rule(draft), markup=False, end="", soft_wrap=True)
    console.print(f"{'Would add' if dry_run else 'Added'} {draft.name}.", markup=False)
    _print_what_waits(draft)


@app.command()
@takes_rule_options
def edit(
    name: NameArgument,
    *,
    rename: Annotated[str | None, typer.Option("--name", help="Give it another name.")] = None,
    file: FileOption = None,
    dry_run: DryRunOption = False,
    options: RuleOptions,
) -> None:
    """Change a rule: what the options speak of, all of it from a file, or by hand in $EDITOR.

    Options about the message take the place of the whole condition.
    """

    async def read(app: App) -> StoredRule:
        return await app.database.read(lambda tx: _named(tx, name))

    before = with_app(read)
    draft = _edited(before, rename, file, options)
    if draft is None or draft == before.draft:
        console.print("Nothing was changed.")
        return

    def put(tx: Tx, who: Actor, now: datetime) -> StoredRule:
        current = store.get_rule(tx, before.id)
        changed = store.edit_rule(tx, replace(current, stamp=before.stamp), draft, who, now)
        return rule_named(changed, account_addresses(tx))

    after = change(put, dry_run=dry_run)
    _print_rule(after)
    _print_what_waits(draft)
    if dry_run:
        console.print("Nothing was changed (--dry-run).")


@app.command()
def remove(name: NameArgument, dry_run: DryRunOption = False) -> None:
    """Remove a rule. What it did stays done, and can be undone."""
    rule = _change(name, store.remove_rule, dry_run=dry_run)
    console.print(f"{'Would remove' if dry_run else 'Removed'} {rule.name}.", markup=False)


@app.command()
def enable(name: NameArgument, dry_run: DryRunOption = False) -> None:
    """Switch a rule on."""
    rule = _change(name, store.enable_rule, dry_run=dry_run)
    console.print(f"{rule.name} {'would be' if dry_run else 'is'} enabled.", markup=False)


@app.command()
def disable(name: NameArgument, dry_run: DryRunOption = False) -> None:
    """Switch a rule off, and keep it."""
    rule = _change(name, lambda tx, rule, who, now: store.disable_rule(tx, rule, None, who, now), dry_run=dry_run)
    console.print(f"{rule.name} {'would be' if dry_run else 'is'} disabled.", markup=False)


@app.command()
def move(
    name: NameArgument,
    direction: Annotated[MoveDirection, typer.Argument(help="Up: it is tried before the one above it.")],
    dry_run: DryRunOption = False,
) -> None:
    """Move a rule one place up or down in the order in which rules are tried."""
    rule = change(lambda tx, who, now: move_rule(tx, store.get_rule(tx, name), direction, who, now), dry_run=dry_run)
    console.print(f"{rule.name} {'would have' if dry_run else 'has'} priority {rule.priority}.", markup=False)


app.command("try")(rule_trying.try_)
app.command("import")(rule_files.import_)
app.command("export")(rule_files.export)
app.add_typer(rule_guidance.directions, name="directions")
app.add_typer(rule_guidance.guidance, name="guidance")


def draft_from(name: str | None, file: Path | None, options: RuleOptions) -> RuleDraft:
    """The rule that a command was given, from options or from a file."""
    given = options.given()
    if file is not None:
        if given:
            raise BadInput("--file", "holds the whole rule; give either it or options")
        drafts = [draft for draft in read_file(file) if name is None or draft.name.lower() == name.lower()]
        if len(drafts) != 1:
            hint = "name one of them" if drafts else f"none named {name!r}" if name else "none"
            raise BadInput("--file", f"{file} holds {len(drafts)} rules; {hint}")
        return drafts[0]
    if "condition" not in given:
        raise BadInput("rule", "needs something to ask of a message, such as --from, --domain or --subject; see --help")
    if "actions" not in given:
        raise BadInput("rule", "needs something to do, such as --do archive or --do apply_label=Receipts")
    return parse_draft({"name": parse_name(name or "", "name"), **given})


def as_json(rule: StoredRule) -> dict[str, Any]:
    return {
        "id": rule.id,
        "name": rule.name,
        "scope": str(rule.scope),
        "priority": rule.priority,
        "condition": None if rule.draft is None else dict(rule.draft.condition),
        "actions": None if rule.draft is None else [wanted.to_json() for wanted in rule.draft.actions],
        "unattended": rule.unattended,
        "enabled": rule.enabled,
        "disabled_reason": rule.disabled_reason,
        "problem": rule.problem,
        "created_at": rule.created_at,
        "updated_at": rule.updated_at,
    }


def _change(name: str, action: Callable[..., Any], *, dry_run: bool) -> StoredRule:
    def transaction(tx: Tx, who: Actor, now: datetime) -> StoredRule:
        rule = store.get_rule(tx, name)
        action(tx, rule, who, now)
        return rule

    return change(transaction, dry_run=dry_run)


def _edited(before: StoredRule, rename: str | None, file: Path | None, options: RuleOptions) -> RuleDraft | None:
    given = options.given()
    if rename is not None:
        given["name"] = rename
    if file is not None:
        return replace(draft_from(None, file, options), name=parse_name(rename or before.name))
    if before.draft is None:
        raise BadInput(f"rule {before.name}", f"{before.problem}. Give a whole one with --file, or remove it")
    if given:
        return parse_draft({**as_written(before.draft), **given})
    return _by_hand(before.draft)


def _by_hand(draft: RuleDraft) -> RuleDraft | None:
    """In the person's editor; None if it was left as it was."""
    text = click.edit(written(RulesDocument(rules=[draft]), RulesFileFormat.TOML), extension=".toml")
    if text is None:
        return None
    document = parse_text(text, RulesFileFormat.TOML)
    if document.directions is not None or document.guidance is not None or len(document.rules or ()) != 1:
        raise BadInput("rule", "is one rule; use `postroom rules import` for more")
    return (document.rules or ())[0]


def _readable(tx: Tx) -> list[StoredRule]:
    addresses = account_addresses(tx)
    return [rule_named(rule, addresses) for rule in store.list_rules(tx)]


def _named(tx: Tx, name: str) -> StoredRule:
    return rule_named(store.get_rule(tx, name), account_addresses(tx))


def _does(rule: StoredRule) -> str:
    if rule.draft is None:
        return "?"
    return ", ".join(map(described, rule.draft.actions)) + (" (unattended)" if rule.unattended else "")


def _asks(rule: StoredRule) -> str:
    return "?" if rule.draft is None else in_words(rule.draft.condition)


def _print_what_waits(draft: RuleDraft) -> None:
    """What the rule will not do at once, which is better known now than when mail lies there."""
    safety = settings.load().safety
    for wanted in draft.actions:
        if why := reasons_for(wanted, DecidedBy.RULE, 1.0, safety, unattended=draft.unattended):
            console.print(f"{wanted.type} will wait for your approval each time: {', '.join(why)}.", markup=False)


def _state(rule: StoredRule) -> str:
    if rule.problem is not None:
        return "broken"
    return "on" if rule.enabled else "off"


def _print_rule(rule: StoredRule) -> None:
    if rule.draft is None:
        console.print(f"{rule.name} cannot be used. {rule.problem}", markup=False, soft_wrap=True)
        return
    console.print(written_rule(rule.draft), markup=False, end="", soft_wrap=True)
    if rule.disabled_reason:
        console.print(
            f"It is off: {rule.disabled_reason}. `postroom rules enable` switches it on.", markup=False, soft_wrap=True
        )

"""`postroom rules`: rules that act on mail without a model; the first that matches a message decides. Also `import` and
`export`: rules, directions and guidance as a file under version control.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import click
import typer

from postroom import settings
from postroom.actions.requests import find_target
from postroom.app import App
from postroom.archive.service import read_apart
from postroom.audit import Actor
from postroom.cli.decisions import rule_guidance, rule_trying
from postroom.cli.decisions.rule_trying import RuleOptions, takes_rule_options
from postroom.cli.session import change, read, with_app
from postroom.cli.terminal import DryRunOption, JsonOption, console, errors, print_json, print_table
from postroom.db import Tx
from postroom.domain.errors import BadInput
from postroom.triage.decision import DecidedBy
from postroom.triage.guidance import list_directions, list_model_rules
from postroom.triage.rules import files, store
from postroom.triage.rules.facts import facts_of_message
from postroom.triage.rules.rows import StoredRule, account_addresses, draft_named, named, rule_named
from postroom.triage.rules.rule import RuleDraft, described, parse_draft, parse_name
from postroom.triage.rules.store import MoveDirection, RuleFileChange, RulesDifference, move_rule
from postroom.triage.rules.trial import facts_in
from postroom.triage.rules.wording import in_words, simple_like
from postroom.triage.safety import reasons_for

app = typer.Typer(no_args_is_help=True, help="Rules that act on mail without a model; the first match decides.")

NameArgument = Annotated[str, typer.Argument(help="The rule's name, or its id.")]
FileOption = Annotated[
    Path | None, typer.Option("--file", help="A TOML or YAML file with this one rule, instead of options.")
]


@app.command("list")
def list_(json: JsonOption = False) -> None:
    """List the rules in the order in which they are tried."""
    rules = read(_readable)
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
        for why in filter(None, (rule.disabled_reason or rule.problem, *rule.off_for.values())):
            console.print(f"{rule.name}: {why}", markup=False, soft_wrap=True)


@app.command()
def show(name: NameArgument, json: JsonOption = False) -> None:
    """Show a rule as it would be written in a file."""
    rule = read(lambda tx: _named(tx, name))
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
    like: Annotated[
        str | None,
        typer.Option("--like", metavar="MESSAGE", help="For mail such as this message: of its list, else its sender."),
    ] = None,
    disabled: Annotated[bool, typer.Option("--disabled", help="Add it switched off.")] = False,
    dry_run: DryRunOption = False,
    options: RuleOptions,
) -> None:
    """Add a rule. Try it first: `postroom rules try` takes the same options."""
    draft = draft_from(name, file, options, None if like is None else _condition_like(like))
    if disabled:
        draft = replace(draft, enabled=False)

    change(lambda tx, who, now: store.add_rule(tx, draft, who, now), dry_run=dry_run)
    if dry_run:
        console.print(files.written_rule(draft), markup=False, end="", soft_wrap=True)
    console.print(f"{'Would add' if dry_run else 'Added'} {draft.name}.", markup=False)
    _print_what_waits(draft)


@app.command()
@takes_rule_options
def edit(
    name: NameArgument,
    *,
    rename: Annotated[str | None, typer.Option("--name", help="A new name.")] = None,
    file: FileOption = None,
    dry_run: DryRunOption = False,
    options: RuleOptions,
) -> None:
    """Change a rule: the parts that options name, all of it from a file, or by hand in $EDITOR.

    Options about the message replace the whole condition.
    """
    before = read(lambda tx: _named(tx, name))
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
    """Remove a rule. What it did stays, and can still be undone."""
    rule = _change(name, store.remove_rule, dry_run=dry_run)
    console.print(f"{'Would remove' if dry_run else 'Removed'} {rule.name}.", markup=False)


@app.command()
def enable(name: NameArgument, dry_run: DryRunOption = False) -> None:
    """Switch a rule on."""
    rule = _change(name, store.enable_rule, dry_run=dry_run)
    console.print(f"{rule.name} {'would be' if dry_run else 'is'} enabled.", markup=False)


@app.command()
def disable(name: NameArgument, dry_run: DryRunOption = False) -> None:
    """Switch a rule off without removing it."""
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


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="TOML or YAML, as `postroom rules export` writes it.")],
    dry_run: DryRunOption = False,
    json: JsonOption = False,
) -> None:
    """Make rules, directions and guidance match a file: add, change and remove as needed, all or nothing.

    A section that the file does not have stays as it is.
    """
    document = files.read_document(file)
    found = change(lambda tx, who, now: _made_equal(tx, document, who, now), dry_run=dry_run)
    if json:
        print_json({"dry_run": dry_run, **{name: asdict(part) for name, part in found.items()}})
        return
    _print_changes(found, dry_run=dry_run)


def _made_equal(tx: Tx, document: files.RulesDocument, who: Actor, now: datetime) -> dict[str, files.GuidanceChanges]:
    found: dict[str, files.GuidanceChanges] = {}
    if document.directions is not None:
        found["directions"] = files.make_directions_equal(tx, document.directions, who, now)
    if document.rules is not None:
        found["rules"] = _tally(store.make_equal(tx, document.rules, who, now))
    if document.guidance is not None:
        found["guidance"] = files.make_guidance_equal(tx, document.guidance, who, now)
    return found


def _tally(found: RulesDifference) -> files.GuidanceChanges:
    return files.GuidanceChanges(
        tuple(draft.name for draft in found.added),
        tuple(map(_described_change, found.changed)),
        tuple(rule.name for rule in found.removed),
        found.unchanged,
    )


def _described_change(change: RuleFileChange) -> str:
    was = f" (was off: {change.before.disabled_reason})" if change.before.disabled_reason else ""
    return f"{change.after.name}: {', '.join(change.fields)}{was}"


@app.command()
def export(
    file: Annotated[Path | None, typer.Argument(help="The file to write; default: the screen.")] = None,
    format: Annotated[
        files.RulesFileFormat | None, typer.Option("--format", help="Default: by the file's name, else TOML.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write all rules, directions and guidance to a file that `postroom rules import` reads."""
    wanted = format or (files.format_of(file) if file is not None else files.RulesFileFormat.TOML)

    document, unreadable = read(_exported)
    text = files.written(document, wanted)
    if file is None:
        typer.echo(text, nl=False)
    else:
        _write(file, text, force=force)
        console.print(f"Wrote {_counted(document)} to {file}.", markup=False)
    for name in unreadable:
        errors.print(f"skipped, because it cannot be read: {name}", markup=False)


def _counted(document: files.RulesDocument) -> str:
    parts = {"rules": document.rules, "directions": document.directions, "guidance": document.guidance}
    return ", ".join(f"{len(part or ()):,} {name}" for name, part in parts.items())


def _exported(tx: Tx) -> tuple[files.RulesDocument, list[str]]:
    """Accounts by their addresses, which another installation knows as well; and the names of what cannot be read."""
    addresses = account_addresses(tx)
    stored = store.list_rules(tx)
    drafts = [rule.draft for rule in stored if rule.draft is not None]
    document = files.RulesDocument(
        rules=[draft_named(draft, addresses) for draft in drafts],
        directions=[files.DirectionDraft(each.text, each.enabled) for each in list_directions(tx)],
        guidance=[
            files.GuidanceDraft(each.name, each.text, named(each.scope, addresses), each.enabled)
            for each in list_model_rules(tx)
        ],
    )
    return document, [rule.name for rule in stored if rule.draft is None]


def _write(file: Path, text: str, *, force: bool) -> None:
    try:
        with file.open("w" if force else "x", encoding="utf-8") as out:
            out.write(text)
    except FileExistsError:
        raise BadInput("file", f"{file} exists; --force overwrites it") from None
    except OSError as error:
        raise BadInput("file", f"{file} cannot be written: {error.strerror}") from None


def _print_changes(found: Mapping[str, files.GuidanceChanges], *, dry_run: bool) -> None:
    for name, part in found.items():
        for mark, lines in (("+", part.added), ("~", part.changed), ("-", part.removed)):
            for line in lines:
                console.print(f"{mark} {line}", markup=False, soft_wrap=True)
        console.print(f"{name}: {_summary(part, dry_run=dry_run)}", markup=False)


def _summary(part: files.GuidanceChanges, *, dry_run: bool) -> str:
    if part.is_empty:
        return f"all {part.unchanged:,} are as in the file."
    verbs = ("would add", "change", "remove") if dry_run else ("added", "changed", "removed")
    counts = (len(part.added), len(part.changed), len(part.removed))
    done = ", ".join(f"{verb} {count:,}" for verb, count in zip(verbs, counts, strict=True))
    return f"{done}; {part.unchanged:,} stay as they are."


def _condition_like(message: str) -> Mapping[str, Any]:
    """The condition of a rule about mail such as this, which needs to be in the mailbox still."""

    async def run(app: App) -> Mapping[str, Any]:
        backend = app.archive.backend
        target = await find_target(app.database, backend, message)
        taken_in = target.message_id
        if taken_in is not None:
            facts = await app.database.read(lambda tx: facts_of_message(tx, taken_in))
        else:
            facts = await read_apart(backend, lambda archive: facts_in(archive, archive.find(message)))
        if facts is None:
            raise BadInput("--like", "the message was removed just now")
        return simple_like(facts).condition()

    return with_app(run)


def draft_from(
    name: str | None, file: Path | None, options: RuleOptions, condition: Mapping[str, Any] | None = None
) -> RuleDraft:
    """The rule that a command was given, from options or from a file; `condition` is used where none is given."""
    given = options.given()
    if condition is not None:
        given = {"condition": condition, **given}
    if file is not None:
        if given:
            raise BadInput("--file", "holds the whole rule; give either a file or options, not both")
        drafts = [draft for draft in files.read_file(file) if name is None or draft.name.lower() == name.lower()]
        if len(drafts) != 1:
            hint = "name one of them" if drafts else f"none named {name!r}" if name else "none"
            raise BadInput("--file", f"{file} holds {len(drafts)} rules; {hint}")
        return drafts[0]
    if "condition" not in given:
        raise BadInput("rule", "needs a condition, such as --from, --domain or --subject; see --help")
    if "actions" not in given:
        raise BadInput("rule", "needs an action, such as --do archive or --do apply_label=Receipts")
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
        "off_for": list(rule.off_for.values()),
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
        raise BadInput(f"rule {before.name}", f"{before.problem}. Replace it with --file, or remove it")
    if given:
        return parse_draft({**files.as_written(before.draft), **given})
    return _by_hand(before.draft)


def _by_hand(draft: RuleDraft) -> RuleDraft | None:
    """In the person's editor; None if it was left as it was."""
    text = click.edit(files.written(files.RulesDocument(rules=[draft]), files.RulesFileFormat.TOML), extension=".toml")
    if text is None:
        return None
    document = files.parse_text(text, files.RulesFileFormat.TOML)
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
            console.print(f"{wanted.type} will need your approval each time: {', '.join(why)}.", markup=False)


def _state(rule: StoredRule) -> str:
    if rule.problem is not None:
        return "broken"
    if not rule.enabled:
        return "off"
    return "partly on" if rule.off_for else "on"


def _print_rule(rule: StoredRule) -> None:
    if rule.draft is None:
        console.print(f"{rule.name} cannot be used. {rule.problem}", markup=False, soft_wrap=True)
        return
    console.print(files.written_rule(rule.draft), markup=False, end="", soft_wrap=True)
    if rule.disabled_reason:
        console.print(
            f"It is off: {rule.disabled_reason}. `postroom rules enable` switches it on.", markup=False, soft_wrap=True
        )
    for why in rule.off_for.values():
        text = f"It is off for one mailbox: {why}. `postroom rules enable` switches it on for all."
        console.print(text, markup=False, soft_wrap=True)


app.command("try")(rule_trying.try_)
app.command("apply")(rule_trying.apply)
app.command("applications")(rule_trying.applications)
app.command("stop")(rule_trying.stop)
app.command("resume")(rule_trying.resume)
app.add_typer(rule_guidance.directions, name="directions")
app.add_typer(rule_guidance.guidance, name="guidance")

"""`postroom rules import` and `export`: rules as a file under version control."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from postroom.accounts.store import list_accounts
from postroom.app import App
from postroom.audit import Actor
from postroom.cli.output import DryRunOption, JsonOption, console, errors, print_json
from postroom.cli.session import me, with_app
from postroom.db import Tx
from postroom.domain.errors import BadInput
from postroom.triage.rules import difference as differing
from postroom.triage.rules import store
from postroom.triage.rules.difference import Difference
from postroom.triage.rules.files import FileFormat, format_of, read_file, written
from postroom.triage.rules.model import RuleDraft, ScopeKind


def import_(
    file: Annotated[Path, typer.Argument(help="TOML or YAML, as `postroom rules export` writes it.")],
    dry_run: DryRunOption = False,
    json: JsonOption = False,
) -> None:
    """Make the rules equal a file: adds, changes and removes what it takes, all at once or nothing."""
    drafts = read_file(file)

    async def run(app: App) -> Difference:
        if dry_run:
            return await app.database.read(lambda tx: differing.compare(tx, drafts))
        who = Actor.of(me())
        return await app.database.write(lambda tx: differing.make_equal(tx, drafts, who, app.clock.now()))

    found = with_app(run)
    if json:
        print_json({"dry_run": dry_run, **_as_json(found)})
        return
    _print(found, dry_run=dry_run)


def export(
    file: Annotated[Path | None, typer.Argument(help="Where to write; the screen otherwise.")] = None,
    format: Annotated[FileFormat | None, typer.Option("--format", help="TOML unless the file's name says so.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
) -> None:
    """Write all rules to a file that `postroom rules import` reads."""
    wanted = format or (format_of(file) if file is not None else FileFormat.TOML)

    async def run(app: App) -> tuple[list[RuleDraft], list[str]]:
        return await app.database.read(_exported)

    drafts, unreadable = with_app(run)
    text = written(drafts, wanted)
    if file is None:
        typer.echo(text, nl=False)
    else:
        _write(file, text, force=force)
        console.print(f"Wrote {len(drafts):,} rules to {file}.", markup=False)
    for name in unreadable:
        errors.print(f"left out, because it cannot be read: {name}", markup=False)


def _exported(tx: Tx) -> tuple[list[RuleDraft], list[str]]:
    addresses = {account.id: account.email for account in list_accounts(tx, with_removed=True)}
    drafts, unreadable = [], []
    for rule in store.list_rules(tx):
        if rule.draft is None:
            unreadable.append(rule.name)
        elif rule.scope.kind is ScopeKind.ACCOUNT:
            drafts.append(rule.draft.with_scope(addresses.get(rule.scope.ref, rule.scope.ref)))
        else:
            drafts.append(rule.draft)
    return drafts, unreadable


def _write(file: Path, text: str, *, force: bool) -> None:
    try:
        with file.open("w" if force else "x", encoding="utf-8") as out:
            out.write(text)
    except FileExistsError:
        raise BadInput("file", f"{file} exists; --force writes over it") from None
    except OSError as error:
        raise BadInput("file", f"{file} cannot be written: {error.strerror}") from None


def _as_json(found: Difference) -> dict[str, Any]:
    return {
        "added": [draft.name for draft in found.added],
        "changed": [{"name": change.after.name, "fields": change.fields} for change in found.changed],
        "removed": [rule.name for rule in found.removed],
        "unchanged": found.unchanged,
    }


def _print(found: Difference, *, dry_run: bool) -> None:
    for draft in found.added:
        console.print(f"+ {draft.name}", markup=False)
    for change in found.changed:
        was = f" (was off: {change.before.disabled_reason})" if change.before.disabled_reason else ""
        console.print(f"~ {change.after.name}: {', '.join(change.fields)}{was}", markup=False)
    for rule in found.removed:
        console.print(f"- {rule.name}", markup=False)
    if found.is_empty:
        console.print(f"All {found.unchanged:,} rules are as in the file.")
        return
    verb = "Would add" if dry_run else "Added"
    console.print(
        f"{verb} {len(found.added):,}, {'change' if dry_run else 'changed'} {len(found.changed):,}, "
        f"{'remove' if dry_run else 'removed'} {len(found.removed):,}; {found.unchanged:,} stay as they are."
    )

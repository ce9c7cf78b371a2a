"""`postroom rules import` and `export`: rules, directions and guidance as a file under version control."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from postroom.app import App
from postroom.audit import Actor
from postroom.cli.session import change, with_app
from postroom.cli.terminal import DryRunOption, JsonOption, console, errors, print_json
from postroom.db import Tx
from postroom.domain.errors import BadInput
from postroom.triage.guidance import list_directions, list_model_rules
from postroom.triage.rules import store
from postroom.triage.rules import store as differing
from postroom.triage.rules.files import (
    DirectionDraft,
    GuidanceChanges,
    GuidanceDraft,
    RulesDocument,
    RulesFileFormat,
    format_of,
    make_directions_equal,
    make_guidance_equal,
    read_document,
    written,
)
from postroom.triage.rules.rows import account_addresses, draft_named, named
from postroom.triage.rules.store import RuleFileChange, RulesDifference


def import_(
    file: Annotated[Path, typer.Argument(help="TOML or YAML, as `postroom rules export` writes it.")],
    dry_run: DryRunOption = False,
    json: JsonOption = False,
) -> None:
    """Make rules, directions and guidance equal a file: adds, changes and removes what it takes, all or nothing.

    What the file does not speak of at all stays as it is.
    """
    document = read_document(file)
    found = change(lambda tx, who, now: _made_equal(tx, document, who, now), dry_run=dry_run)
    if json:
        print_json({"dry_run": dry_run, **{name: asdict(part) for name, part in found.items()}})
        return
    _print(found, dry_run=dry_run)


def _made_equal(tx: Tx, document: RulesDocument, who: Actor, now: datetime) -> dict[str, GuidanceChanges]:
    found: dict[str, GuidanceChanges] = {}
    if document.directions is not None:
        found["directions"] = make_directions_equal(tx, document.directions, who, now)
    if document.rules is not None:
        found["rules"] = _tally(differing.make_equal(tx, document.rules, who, now))
    if document.guidance is not None:
        found["guidance"] = make_guidance_equal(tx, document.guidance, who, now)
    return found


def _tally(found: RulesDifference) -> GuidanceChanges:
    return GuidanceChanges(
        tuple(draft.name for draft in found.added),
        tuple(map(_described, found.changed)),
        tuple(rule.name for rule in found.removed),
        found.unchanged,
    )


def _described(change: RuleFileChange) -> str:
    was = f" (was off: {change.before.disabled_reason})" if change.before.disabled_reason else ""
    return f"{change.after.name}: {', '.join(change.fields)}{was}"


def export(
    file: Annotated[Path | None, typer.Argument(help="Where to write; the screen otherwise.")] = None,
    format: Annotated[
        RulesFileFormat | None, typer.Option("--format", help="TOML unless the file's name says so.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
) -> None:
    """Write all rules, directions and guidance to a file that `postroom rules import` reads."""
    wanted = format or (format_of(file) if file is not None else RulesFileFormat.TOML)

    async def run(app: App) -> tuple[RulesDocument, list[str]]:
        return await app.database.read(_exported)

    document, unreadable = with_app(run)
    text = written(document, wanted)
    if file is None:
        typer.echo(text, nl=False)
    else:
        _write(file, text, force=force)
        console.print(f"Wrote {_counted(document)} to {file}.", markup=False)
    for name in unreadable:
        errors.print(f"left out, because it cannot be read: {name}", markup=False)


def _counted(document: RulesDocument) -> str:
    parts = {"rules": document.rules, "directions": document.directions, "guidance": document.guidance}
    return ", ".join(f"{len(part or ()):,} {name}" for name, part in parts.items())


def _exported(tx: Tx) -> tuple[RulesDocument, list[str]]:
    """Accounts by their addresses, which another installation knows as well; and the names of what cannot be read."""
    addresses = account_addresses(tx)
    stored = store.list_rules(tx)
    drafts = [rule.draft for rule in stored if rule.draft is not None]
    document = RulesDocument(
        rules=[draft_named(draft, addresses) for draft in drafts],
        directions=[DirectionDraft(each.text, each.enabled) for each in list_directions(tx)],
        guidance=[
            GuidanceDraft(each.name, each.text, named(each.scope, addresses), each.enabled)
            for each in list_model_rules(tx)
        ],
    )
    return document, [rule.name for rule in stored if rule.draft is None]


def _write(file: Path, text: str, *, force: bool) -> None:
    try:
        with file.open("w" if force else "x", encoding="utf-8") as out:
            out.write(text)
    except FileExistsError:
        raise BadInput("file", f"{file} exists; --force writes over it") from None
    except OSError as error:
        raise BadInput("file", f"{file} cannot be written: {error.strerror}") from None


def _print(found: Mapping[str, GuidanceChanges], *, dry_run: bool) -> None:
    for name, part in found.items():
        for mark, lines in (("+", part.added), ("~", part.changed), ("-", part.removed)):
            for line in lines:
                console.print(f"{mark} {line}", markup=False, soft_wrap=True)
        console.print(f"{name}: {_summary(part, dry_run=dry_run)}", markup=False)


def _summary(part: GuidanceChanges, *, dry_run: bool) -> str:
    if part.is_empty:
        return f"all {part.unchanged:,} are as in the file."
    verbs = ("would add", "change", "remove") if dry_run else ("added", "changed", "removed")
    counts = (len(part.added), len(part.changed), len(part.removed))
    done = ", ".join(f"{verb} {count:,}" for verb, count in zip(verbs, counts, strict=True))
    return f"{done}; {part.unchanged:,} stay as they are."

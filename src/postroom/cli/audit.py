"""`postroom audit`: who did what, when, and how it stood before and after."""

from __future__ import annotations

from typing import Annotated

import typer

from postroom.app import App
from postroom.audit import AuditFilter, Entry, list_entries
from postroom.cli.output import JsonOption, console, print_json, print_table
from postroom.cli.session import with_app


def audit(
    action: Annotated[str | None, typer.Option(help="Only this, for example backfill.pause.")] = None,
    subject: Annotated[str | None, typer.Option(help="Only about this, for example a job's id.")] = None,
    before: Annotated[str | None, typer.Option(metavar="ID", help="Only entries older than this one.")] = None,
    limit: Annotated[int, typer.Option(help="At most so many, 1 to 500.")] = 50,
    json: JsonOption = False,
) -> None:
    """List the audit log, newest first. Nobody can change it."""
    which = AuditFilter(action=action, subject_id=subject, before_id=before, limit=limit)

    async def run(app: App) -> None:
        page = await app.database.read(lambda tx: list_entries(tx, which))
        if json:
            print_json({"entries": page.entries, "next": page.next_before_id})
            return
        print_table(
            ["id", "when", "who", "action", "about", "change"],
            (_row(entry) for entry in page.entries),
            empty="Nothing was done yet.",
        )
        if page.next_before_id is not None:
            console.print(f"There is more: --before {page.next_before_id}", markup=False, soft_wrap=True)

    with_app(run)


def _row(entry: Entry) -> list[object]:
    who = f"{entry.actor.role} {entry.actor.name}"
    return [entry.id, entry.at, who, entry.action, f"{entry.subject_type} {entry.subject_id}", _change(entry)]


def _change(entry: Entry) -> str:
    """What is not the same any more, in a few words."""
    before, after = entry.before or {}, entry.after or {}
    names = [name for name in after if before.get(name) != after[name] and after[name] is not None]
    return ", ".join(
        f"{name} {before[name]} to {after[name]}" if name in before else f"{name} {after[name]}" for name in names
    )

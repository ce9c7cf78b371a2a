"""`postroom audit`: who did what, when, and how it stood before and after; and whether the log is what it was."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn
from rich.text import Text

from postroom.app import App
from postroom.audit import Actor, AuditEntry, AuditFilter, list_entries
from postroom.cli.session import me, with_app
from postroom.cli.terminal import JsonOption, age, console, print_json, printable, progress_bar, shown

if TYPE_CHECKING:
    from postroom.audit.chain import RecordedHead
    from postroom.audit.verifying import AuditVerification

app = typer.Typer(help="The audit log, newest first; `verify` checks it for tampering.")


@app.callback(invoke_without_command=True)
def audit(
    context: typer.Context,
    action: Annotated[str | None, typer.Option(help="Only this action, for example backfill.pause.")] = None,
    subject: Annotated[
        str | None, typer.Option(help="Only entries about this subject, for example a job's id.")
    ] = None,
    before: Annotated[str | None, typer.Option(metavar="ID", help="Only entries older than this one.")] = None,
    limit: Annotated[int, typer.Option(help="Show at most this many, 1 to 500.")] = 50,
    json: JsonOption = False,
) -> None:
    """List the audit log, newest first. `verify` checks it for tampering."""
    if context.invoked_subcommand is not None:
        return
    which = AuditFilter(action=action, subject_id=subject, before_id=before, limit=limit)

    async def run(app: App) -> None:
        page = await app.database.read(lambda tx: list_entries(tx, which))
        if json:
            print_json({"entries": page.entries, "next": page.next_before_id})
            return
        _print_entries(page.entries)
        if page.next_before_id is not None:
            console.print(f"There is more: --before {page.next_before_id}", markup=False, soft_wrap=True)

    with_app(run)


@app.command("verify")
def verify_command(
    heads: Annotated[
        list[Path] | None,
        typer.Option(
            help="Also compare with this copy of audit-heads.jsonl, or with the manifest.json of a backup. Repeatable."
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Check every entry against its seal, and name what was changed, removed, reordered or added.

    Exit code 0 if nothing is wrong, 1 if something is, or if a key to check with is missing.
    """
    from postroom.audit.chain import read_heads

    further = [each for path in heads or () for each in read_heads(path)]
    found, now = with_app(lambda app: _verify(app, further))
    if json:
        print_json({"sound": found.is_sound, **_summary(found)})
    else:
        _print_verification(found, now)
    if not found.is_sound:
        raise typer.Exit(1)


@app.command("new-key")
def new_key(yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False) -> None:
    """Seal new entries with a new key, because the old one is lost or should no longer be used.

    Entries under a key that the vault no longer holds can never be checked again.
    """
    if not yes:
        typer.confirm("Seal the audit log with a new key from now on?", abort=True)

    async def run(app: App) -> str:
        from postroom.audit.chain import KeyRing, begin_new_key

        key, now = KeyRing(app.vault).make(), app.clock.now()
        await app.database.write(lambda tx: begin_new_key(tx, key, Actor.of(me()), now))
        return key.id

    console.print(f"New entries are sealed with key {with_app(run)}. Back up the folder `vault` now.", markup=False)


async def _verify(app: App, further: list[RecordedHead]) -> tuple[AuditVerification, datetime]:
    from postroom.app.auditing import verify_audit
    from postroom.audit.chain import chain_status

    status = await app.database.read(chain_status)
    with progress_bar("verifying", BarColumn(), MofNCompleteColumn()) as bar:
        task = bar.add_task("", total=status.sealed + status.waiting)
        return await verify_audit(app, further, lambda done: bar.advance(task, done)), app.clock.now()


def _summary(found: AuditVerification) -> dict[str, object]:
    from postroom.audit.verifying import CANNOT_SEE

    return {
        "sealed": found.sealed,
        "waiting": found.waiting,
        "waiting_since": found.waiting_since,
        "head": found.head,
        "heads_compared": found.heads,
        "uncheckable": found.uncheckable,
        "missing_keys": found.missing_keys,
        "problems": found.problems,
        "more_problems": found.more_problems,
        "cannot_see": CANNOT_SEE,
    }


def _print_verification(found: AuditVerification, now: datetime) -> None:
    from postroom.audit.verifying import CANNOT_SEE

    for problem in found.problems:
        console.print(f"{problem.flaw}: {problem.message}", markup=False, soft_wrap=True)
    for line in _verdict(found, now):
        console.print(line, markup=False, soft_wrap=True)
    console.print("What this check cannot detect:", markup=False)
    for limit in CANNOT_SEE:
        console.print(f"- {limit}", markup=False, soft_wrap=True)


def _verdict(found: AuditVerification, now: datetime) -> Iterator[str]:
    oldest = "" if found.waiting_since is None else f", the oldest for {age(found.waiting_since, now)}"
    waiting = f"{found.waiting:,} wait to be sealed{oldest}" if found.waiting else "none waits to be sealed"
    yield f"{found.sealed:,} entries are sealed, {waiting}. {found.heads:,} recorded heads were compared."
    if found.uncheckable:
        yield (
            f"{found.uncheckable:,} entries could not be checked: they were sealed with key "
            f"{', '.join(found.missing_keys[:3])}, which the vault of this home folder does not hold. Run this on "
            "the host that holds it, or restore the folder `vault` from a backup. This is not a sign of tampering."
        )
    if found.problems:
        yield f"Problems found: {len(found.problems) + found.more_problems:,}."
    elif not found.uncheckable:
        yield "Every sealed entry is as it was when it was sealed."


def _print_entries(entries: Sequence[AuditEntry]) -> None:
    """Two lines each, so that both ids stand whole in a terminal of 100 columns; what is too long is cut at its end."""
    if not entries:
        console.print("No entries.")
    widest = max((len(entry.action) for entry in entries), default=0)
    for entry in entries:
        who = f"{entry.actor.role} {entry.actor.name}"
        about = f"{entry.subject_type} {entry.subject_id}"
        change = _change(entry)
        for line in (
            f"{entry.id}  {shown(entry.at)}  {entry.action:<{widest}}  {who}",
            f"    {about}: {change}" if change else f"    {about}",
        ):
            console.print(Text(printable(line)), no_wrap=True, overflow="ellipsis")


def _change(entry: AuditEntry) -> str:
    """What is not the same any more, in a few words."""
    before, after = entry.before or {}, entry.after or {}
    names = [name for name in after if before.get(name) != after[name] and after[name] is not None]
    return ", ".join(
        f"{name} {shown(before[name])} to {shown(after[name])}" if name in before else f"{name} {shown(after[name])}"
        for name in names
    )

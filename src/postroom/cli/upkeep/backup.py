"""`postroom backup`: copy an installation while it runs, and make a new home of such a copy."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, NamedTuple

import typer
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn

from postroom import settings
from postroom.app import backup
from postroom.app.backup.creating import DATABASE, DUMP, Manifest
from postroom.cli.terminal import JsonOption, console, errors, print_json, progress_bar, size
from postroom.domain.errors import Fatal
from postroom.settings import VAULT_KEY_VARIABLE
from postroom.telemetry import logs
from postroom.vault import KEY_FILE

app = typer.Typer(
    no_args_is_help=True, help="Back up everything while it runs; restore a backup into a new home folder."
)


@app.command()
def create(
    folder: Annotated[Path, typer.Argument(help="The folder to write; it must be new or empty.")],
    with_key: Annotated[
        bool, typer.Option("--with-key", help=f"Copy {KEY_FILE} too. Anyone who has the backup then has your logins.")
    ] = False,
    without_database: Annotated[
        bool, typer.Option("--without-database", help="PostgreSQL: you have just dumped the database yourself.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Copy database, mail, settings and sealed secrets to FOLDER, while everything keeps running.

    Ctrl-C leaves nothing behind.
    """
    loaded = settings.load()
    logs.configure(level="warning", format="console", secrets=loaded.secrets())
    with _ended_by_sigterm(), _bar("copying", 2 * backup.backup_size(loaded)) as shown:
        made = backup.create_backup(
            loaded,
            folder,
            with_key=with_key,
            with_database=not without_database,
            began=shown.began,
            copied=shown.done,
        )
    try:
        backup.note_backup(loaded.home, folder, made)
    except Fatal as error:  # the backup is good all the same
        errors.print(error.message, markup=False, soft_wrap=True)
    if json:
        print_json({"folder": folder, "bytes": made.size, "files": len(made.files), **_facts(made)})
        return
    _say(f"{len(made.files):,} files, {size(made.size)} in {folder}. Each is listed with its hash in manifest.json.")
    _say(_about_the_key(made, given=loaded.vault_key is not None))
    if not made.database:
        what = "database" if loaded.archive.store == "files" else "database, and with it all mail,"
        _say(f"The control {what} is not in it: keep your own dump of it, made just before, beside it.")
    _say(f"Try it: postroom backup restore {folder} --into NEW_FOLDER")


@app.command()
def restore(
    folder: Annotated[Path, typer.Argument(help="A backup that `postroom backup create` made.")],
    into: Annotated[Path, typer.Option(help="The home folder to make; it must be new or empty.")],
    json: JsonOption = False,
) -> None:
    """Restore a backup to a new home folder: every file is checked against its hash, then the archive is verified.

    The exit code is 1 if the archive has gaps. Stop the old installation first: two must not work on one mailbox.
    """
    with _ended_by_sigterm(), _bar("restoring", backup.manifest_of(folder).size) as shown:
        restored = backup.restore_backup(folder, into, copied=shown.done, verified=_counted(shown.began))
    report = restored.report
    if json:
        print_json(
            {
                "home": into,
                "sound": report.is_sound,
                "report": report,
                "letters": restored.letters,
                **_facts(restored.manifest),
            }
        )
    else:
        for line in _summary(folder, into, restored):
            _say(line)
    if not report.is_sound:
        sys.exit(1)


def _summary(folder: Path, home: Path, restored: backup.Restored) -> Iterator[str]:
    made, report = restored.manifest, restored.report
    yield f"Restored {len(made.files):,} files of {made.made_at} to {home}."
    for finding in report.findings:
        yield f"{finding.flaw}: {finding.shard} {finding.key or ''}\n    {finding.detail}"
    if report.shards or report.findings or made.database != DUMP:
        verdict = "Everything is sound." if report.is_sound else f"Problems found: {len(report.findings)}."
        yield f"{report.messages:,} messages in {report.shards} shards checked. {verdict}"
    if restored.lacks_key:
        yield (
            f"The key to the secrets is not in the backup. Copy your {KEY_FILE} to {home} (mode 0600) or set "
            f"{VAULT_KEY_VARIABLE}; if it is lost, delete {home / 'vault'} and log in again."
        )
    if restored.letters:
        yield (
            f"Mail that was waiting to be sent when the backup was made: {restored.letters}. Mail that was sent "
            "since then would be sent again: look at `postroom actions list --status queued` before you start Postroom "
            "on this home, and cancel those."
        )
    if made.audit_head is not None:
        yield "Check its audit log, once the key is there, with `postroom audit verify`."
    if made.database == DUMP:
        yield f"Now restore the database: pg_restore --no-owner --dbname=URL {folder / DUMP}"
        yield "Then check it with `postroom verify`."
    if made.database == DATABASE and backup.names_a_database(home):
        yield (
            f"The restored postroom.toml names a database of its own (database.url). Take that line out to use "
            f"{home / DATABASE}, or point it there."
        )
    yield f"Use it: POSTROOM_HOME={home} postroom doctor"


def _about_the_key(made: Manifest, *, given: bool) -> str:
    if made.has_key:
        return f"{KEY_FILE} is in it: anyone who has this folder can read your mail and use your logins. Lock it away."
    where = VAULT_KEY_VARIABLE if given else KEY_FILE
    return (
        f"The vault's key ({where}) is not in it, on purpose: a key is not kept next to what it unlocks. "
        "Keep a copy of it elsewhere, or log in again after a restore."
    )


def _facts(made: Manifest) -> dict[str, object]:
    return {"made_at": made.made_at, "database": made.database or None, "has_key": made.has_key}


def _say(line: str) -> None:
    console.print(line, markup=False, soft_wrap=True)


class _Shown(NamedTuple):
    began: Callable[[str], None]
    done: Callable[[int], None]


@contextmanager
def _bar(verb: str, total: int) -> Iterator[_Shown]:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with progress_bar(*columns) as bar:
        task = bar.add_task(verb, total=total or None)
        yield _Shown(
            lambda name: bar.update(task, description=f"{verb} {name}"), lambda count: bar.advance(task, count)
        )


def _counted(began: Callable[[str], None]) -> Callable[[int], None]:
    total = 0

    def verified(count: int) -> None:
        nonlocal total
        total += count
        began(f"(verified {total:,} messages)")

    return verified


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """As Ctrl-C does it: what was begun is taken back."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not the main thread, which alone gets signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)

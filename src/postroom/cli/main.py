"""The tree of commands, and the one place where an error becomes a message and an exit code."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from typing import Annotated

import typer

from postroom import __version__
from postroom.cli.terminal import errors, printable
from postroom.domain.errors import BadInput, PostroomError
from postroom.telemetry import logs
from postroom.telemetry.logs import clean

FAILED, BAD_USAGE = 1, 2

_COMMANDS = {
    "demo": "demo",
    "up": "services",
    "switchboard": "services",
    "connector": "connector",
    "worker": "services",
    "account": "mail.account",
    "import": "mail.importing",
    "export": "mail.exporting",
    "search": "mail.search",
    "show": "mail.search",
    "verify": "mail.verify",
    "sync": "mail.sync",
    "archive": "mail.archive",
    "backup": "backup",
    "backfill": "mail.backfill",
    "web": "web",
    "contacts": "mail.contacts",
    "policy": "mail.policy",
    "rules": "decisions.rules",
    "model": "decisions.model",
    "actions": "decisions.actions",
    "approvals": "decisions.approvals",
    "jobs": "jobs",
    "token": "token",
    "audit": "audit",
    "doctor": "doctor",
    "sim": "sim",
}
"""Each with its module in this package, which has either a tree of commands, `app`, or a function of that name."""


def tree(arguments: Sequence[str] = ()) -> typer.Typer:
    """The commands; only the one that the arguments name, if they do, because a module takes its time to import."""
    app = typer.Typer(
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        help="A self-hosted post room: all your mail kept, urgent mail first, nothing lost, nothing done twice.",
    )
    app.callback()(main)
    for name in _needed(arguments[0] if arguments else ""):
        module = import_module(f"postroom.cli.{_COMMANDS[name]}")
        if hasattr(module, "app"):
            app.add_typer(module.app, name=name)
        else:
            app.command(name, context_settings=getattr(module, "CONTEXT", None) if name == "search" else None)(
                getattr(module, name)
            )
    return app


def _needed(named: str) -> Iterable[str]:
    if named == "--version":
        return ()
    return [named] if named in _COMMANDS else _COMMANDS


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


def main(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Every command honours POSTROOM_HOME; `docs/settings.md` lists what else can be set."""


def run() -> None:
    os.umask(0o077)  # whatever a command writes holds mail, or the way to it
    logs.configure(level="warning", format="console")
    try:
        tree(sys.argv[1:])()
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        sys.exit(_report(error))


def _report(error: Exception) -> int:
    """Say what ended the command, and with which exit code it ends. Errors of tasks that ran together come as a group:
    where all of them are ours, the first is the cause; else what is not ours is a fault."""
    causes = list(_causes(error))
    faults = [cause for cause in causes if not isinstance(cause, PostroomError)]
    if not faults:
        message = str(causes[0].args[0])
        errors.print(f"error: {clean(printable(message))}", markup=False, emoji=False, soft_wrap=True)
        return BAD_USAGE if isinstance(causes[0], BadInput) else FAILED
    for fault in faults:
        lines = "".join(traceback.format_exception(fault))
        errors.print(clean(lines), markup=False, emoji=False, soft_wrap=True)
    errors.print("This is a fault in Postroom. Please report it with the lines above.")
    return FAILED


def _causes(error: Exception) -> Iterator[Exception]:
    if isinstance(error, ExceptionGroup):
        for inner in error.exceptions:
            yield from _causes(inner)
    else:
        yield error

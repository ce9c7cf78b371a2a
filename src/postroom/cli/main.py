"""The tree of commands, and the one place where an error becomes a message and an exit code.

A module of commands is imported when one of its commands runs. Until then the table below stands for it, with the
line that the list of commands shows.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
import time
from collections.abc import Iterator
from functools import wraps
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from postroom import __version__
from postroom.domain.errors import BadInput, PostroomError
from postroom.telemetry import logs

FAILED, BAD_USAGE = 1, 2
PROGRAM = "postroom"
COMPLETION_VARIABLE = "_POSTROOM_COMPLETE"
"""Set by the scripts of `postroom completion`: the process then prints what could come next, and ends."""


class _Entry(NamedTuple):
    module: str  # within this package
    attribute: str  # a function, or a `typer.Typer` with commands of its own
    help: str  # the first paragraph of its own help; a test compares them
    context: dict[str, Any] | None = None


COMMANDS = {
    "demo": _Entry("demo", "demo", "Try everything on a simulated mailbox, model and web site."),
    "up": _Entry("services", "up", "Run everything in one process: dashboard, MCP, archive and jobs. Ctrl-C stops it."),
    "switchboard": _Entry(
        "services", "switchboard", "Serve the dashboard, and MCP at /mcp. Prints one line of JSON when ready."
    ),
    "connector": _Entry("connector", "app", "Bring mail from a source to the Switchboard."),
    "worker": _Entry(
        "services", "worker", "Run jobs. SIGTERM or Ctrl-C lets running jobs finish and releases the others."
    ),
    "mcp": _Entry(
        "services", "assistants", "Serve MCP on standard input and output, for an assistant on this computer."
    ),
    "account": _Entry("mail.account", "app", "Mail accounts: add, list, check and remove them; list their labels."),
    "import": _Entry("mail.files", "imports", "Import mail from files into the archive: mbox, Maildir, .eml, Takeout."),
    "export": _Entry(
        "mail.files", "exports", "Export archived mail to files: mbox or .eml, byte for byte, or a table (CSV)."
    ),
    "search": _Entry(
        "mail.search", "search", "Search the archive.", {"ignore_unknown_options": True}
    ),  # so that `-invoice` is a query, not an option
    "ask": _Entry("mail.asking", "ask", "Answer a question about your mail, with quotes."),
    "show": _Entry("mail.search", "show", "Show one archived message."),
    "stats": _Entry(
        "mail.stats",
        "stats",
        "Show what is in the archive: messages, bytes and attachments, and the search that finds them.",
    ),
    "verify": _Entry(
        "mail.verify",
        "verify",
        "Check every byte of the archive against its hash, and every shard against the catalogue.",
    ),
    "sync": _Entry("mail.sync", "app", "Copy whole mailboxes into the archive: plan, run, status, bad messages."),
    "archive": _Entry(
        "mail.archive",
        "app",
        "Remove mail at the source once the archive holds it, with certificates; count what can be searched.",
    ),
    "restore": _Entry(
        "mail.restore", "app", "Put archived mail back into a mailbox, with a certificate; watch, stop and undo that."
    ),
    "backup": _Entry(
        "upkeep.backup", "app", "Back up everything while it runs; restore a backup into a new home folder."
    ),
    "backfill": _Entry(
        "mail.backfill", "app", "Recover old mail within a budget: estimate, create, watch and control."
    ),
    "web": _Entry("web", "app", "Web sources: follow them, fetch past pages, read the evidence."),
    "categories": _Entry("mail.categories", "app", "Categories of mail: what belongs where, and why."),
    "contacts": _Entry("mail.contacts", "app", "The people you know; their mail is served first."),
    "policy": _Entry(
        "mail.categories",
        "policy",
        "The tier policy: which mail is taken in whole, by its headers only, or not at all.",
    ),
    "rules": _Entry("decisions.rules", "app", "Rules that act on mail without a model; the first match decides."),
    "model": _Entry("decisions.model", "app", "The language model: check it, switch it off and on, limit its cost."),
    "actions": _Entry("decisions.actions", "app", "Actions on mail: list, show, undo, or act yourself."),
    "approvals": _Entry("decisions.approvals", "app", "Actions that need your approval."),
    "learning": _Entry(
        "decisions.learning", "app", "Local triage that learns: see its figures, switch it, correct a decision."
    ),
    "review": _Entry(
        "decisions.approvals", "reviews", "Mail that needs review: list it, mark it as done, judge it again."
    ),
    "jobs": _Entry("upkeep.jobs", "app", "The job queue: list, show, retry, cancel, stats."),
    "settings": _Entry("upkeep.settings", "app", "Settings: their values, and where each comes from."),
    "token": _Entry(
        "upkeep.token", "app", "Access tokens for dashboards, connectors and agents; a login link for a person."
    ),
    "audit": _Entry("upkeep.audit", "app", "The audit log, newest first; `verify` checks it for tampering."),
    "doctor": _Entry(
        "upkeep.doctor",
        "doctor",
        "Check home folder, disk, database, archive, vault, extras, model, audit log, digests and every account.",
    ),
    "completion": _Entry("completion", "completion", "Print the script that completes commands in your shell."),
    "sim": _Entry("sim", "app", "Simulators of outside services, for this machine only."),
}


def command(name: str) -> TyperCommand | TyperGroup:
    """The command of this name, imported."""
    entry = COMMANDS[name]
    found = getattr(import_module(f"postroom.cli.{entry.module}"), entry.attribute)
    holder = typer.Typer(add_completion=False)
    holder.callback()(lambda: None)  # so that a single command stays a command of a group
    if isinstance(found, typer.Typer):
        holder.add_typer(found, name=name)
    else:
        holder.command(name, context_settings=entry.context)(found)
    group = typer.main.get_command(holder)
    assert isinstance(group, TyperGroup)  # noqa: S101 - it has a callback
    loaded = group.commands[name]
    assert isinstance(loaded, TyperCommand | TyperGroup)  # noqa: S101 - what typer makes
    _naming_options(loaded)
    return loaded


_AS_TYPED = {
    "target_categories": "category",
    "endpoint_identity": "account",
    "rate_limit_per_hour": "rate",
    "daily_cost_cap_cents": "cap_cents",
    "date_from": "from",
    "date_to": "to",
}
"""Fields of the contract that an option has a shorter name for."""


def _naming_options(command: Any) -> None:
    """Let a refusal of a value name the option that gave it, as it was typed: `--for` instead of `for`. No command gets
    bytes that are no text."""
    for inner in getattr(command, "commands", {}).values():
        _naming_options(inner)
    flags = {flag.removeprefix("--"): flag for each in command.params for flag in each.opts if flag.startswith("--")}
    run = command.callback
    if run is None:
        return

    @wraps(run)
    def named(**values: Any) -> Any:
        from postroom.domain.validation import unstorable_place  # the list of commands needs no pydantic

        try:
            for name, value in values.items():
                if unstorable_place(value) is not None:
                    raise BadInput(name.strip("_"), "is not text in UTF-8")
            return run(**values)
        except BadInput as error:
            if flag := flags.get(_AS_TYPED.get(error.field, error.field).replace("_", "-")):
                error.rename(flag)
            raise

    command.callback = named


class _LazyGroup(TyperGroup):
    """Lists every command by its line in the table, and imports the one that is run."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = {name: TyperCommand(name, help=entry.help) for name, entry in COMMANDS.items()}

    def invoke(self, ctx: Any) -> Any:
        """What is wrong with an option in our words: typer shows the sentences of pydantic."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            from pydantic import ValidationError

            from postroom.domain.validation import problem_text

            if isinstance(error.__cause__, ValidationError):
                error.message = problem_text(error.__cause__.errors(include_url=False)[0])
            raise

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] in COMMANDS:
            self.commands[args[0]] = command(args[0])
        return super().resolve_command(ctx, args)


def tree() -> typer.Typer:
    app = typer.Typer(
        cls=_LazyGroup,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["--help", "-h"]},  # of every command below it too
        help="A self-hosted post room: all your mail kept, urgent mail first, nothing lost, nothing done twice.",
    )
    app.callback()(main)
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


def _show_utc(wanted: bool) -> None:
    if wanted:
        os.environ["TZ"] = "UTC"
        time.tzset()


def main(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
    utc: Annotated[
        bool, typer.Option("--utc", help="Show times in UTC, not in the local zone.", callback=_show_utc)
    ] = False,
) -> None:
    """Every command honours POSTROOM_HOME; `docs/settings.md` lists all settings."""


def run() -> None:
    os.umask(0o077)  # whatever a command writes holds mail, or the way to it
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # else it searches every installed package for them
    gc.set_threshold(200_000, 10, 10)  # imports make many objects, and no garbage
    atexit.register(gc.freeze)  # else Python looks through all of them once more before it ends
    logs.configure(level="warning", format="console")
    if COMPLETION_VARIABLE in os.environ:
        from typer._completion_classes import completion_init

        completion_init()  # typer does so only where it adds its own options for it
    try:
        tree()(prog_name=PROGRAM)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        sys.exit(_report(error))


def _report(error: Exception) -> int:
    """Print what ended the command and return its exit code.

    Errors of tasks that ran together come as a group: where all of them are ours, the first is the cause; any other
    is a fault."""
    import traceback

    from postroom.cli.terminal import errors, printable

    causes = list(_causes(error))
    faults = [cause for cause in causes if not isinstance(cause, PostroomError)]
    if not faults:
        message = str(causes[0].args[0])
        errors.print(f"error: {logs.clean(printable(message))}", markup=False, emoji=False, soft_wrap=True)
        return BAD_USAGE if isinstance(causes[0], BadInput) else FAILED
    for fault in faults:
        lines = "".join(traceback.format_exception(fault))
        errors.print(logs.clean(lines), markup=False, emoji=False, soft_wrap=True)
    errors.print("This is a fault in Postroom. Please report it with the lines above.")
    return FAILED


def _causes(error: Exception) -> Iterator[Exception]:
    if isinstance(error, ExceptionGroup):
        for inner in error.exceptions:
            yield from _causes(inner)
    else:
        yield error

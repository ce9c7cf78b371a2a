"""The tree of commands, and the one place where an error becomes a message and an exit code."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from postroom import __version__
from postroom.cli import account, exporting, importing, jobs, sim
from postroom.cli.demo import demo
from postroom.cli.doctor import doctor
from postroom.cli.output import errors
from postroom.cli.show import show
from postroom.cli.verify import verify
from postroom.cli.worker import worker
from postroom.domain.errors import BadInput, PostroomError
from postroom.telemetry.logs import clean

FAILED, BAD_USAGE = 1, 2

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="A self-hosted post room: all your mail kept, urgent mail first, nothing lost, nothing done twice.",
)
app.command()(demo)
app.command()(worker)
app.command()(verify)
app.command()(show)
app.command()(doctor)
app.add_typer(account.app, name="account")
app.add_typer(importing.app, name="import")
app.add_typer(exporting.app, name="export")
app.add_typer(jobs.app, name="jobs")
app.add_typer(sim.app, name="sim")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Every command honours POSTROOM_HOME; `docs/settings.md` lists what else can be set."""


def run() -> None:
    try:
        app()
    except BadInput as error:
        _fail(error, BAD_USAGE)
    except PostroomError as error:
        _fail(error, FAILED)
    except KeyboardInterrupt:
        sys.exit(130)


def _fail(error: PostroomError, code: int) -> None:
    errors.print(f"error: {clean(error.message)}", markup=False, soft_wrap=True)
    sys.exit(code)

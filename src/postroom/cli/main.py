"""The tree of commands, and the one place where an error becomes a message and an exit code."""

from __future__ import annotations

import sys
import traceback
from typing import Annotated

import typer

from postroom import __version__
from postroom.cli import account, archive, backfill, connector, contacts, exporting, importing, jobs, sim, sync, token
from postroom.cli.audit import audit
from postroom.cli.demo import demo
from postroom.cli.doctor import doctor
from postroom.cli.output import errors, printable
from postroom.cli.search import CONTEXT, search
from postroom.cli.show import show
from postroom.cli.switchboard import switchboard
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
app.command()(switchboard)
app.command()(worker)
app.command()(verify)
app.command(context_settings=CONTEXT)(search)
app.command()(show)
app.command()(audit)
app.command()(doctor)
app.add_typer(account.app, name="account")
app.add_typer(backfill.app, name="backfill")
app.add_typer(contacts.app, name="contacts")
app.add_typer(importing.app, name="import")
app.add_typer(exporting.app, name="export")
app.add_typer(sync.app, name="sync")
app.add_typer(archive.app, name="archive")
app.add_typer(jobs.app, name="jobs")
app.add_typer(sim.app, name="sim")
app.add_typer(connector.app, name="connector")
app.add_typer(token.app, name="token")


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
    except Exception:
        errors.print(clean(traceback.format_exc()), markup=False, emoji=False, soft_wrap=True)
        errors.print("This is a fault in Postroom. Please report it with the lines above.")
        sys.exit(FAILED)


def _fail(error: PostroomError, code: int) -> None:
    errors.print(f"error: {clean(printable(error.message))}", markup=False, emoji=False, soft_wrap=True)
    sys.exit(code)

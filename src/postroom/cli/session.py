"""From a command to an open installation and back: settings, app, one coroutine, and signals that end it cleanly.

`change` makes one change in one transaction in the name of the person at the terminal; with `--dry-run` it is
rolled back at its end, so that what would be refused is refused then too.
"""

from __future__ import annotations

import asyncio
import getpass
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from postroom import eventloop, settings
from postroom.app import App, open_app
from postroom.app.installation import DATABASE_WAIT_S
from postroom.cli.terminal import errors
from postroom.db import Tx
from postroom.domain.errors import NotFound
from postroom.domain.roles import Caller, Role
from postroom.telemetry import logs

if TYPE_CHECKING:
    from postroom.accounts.account import Account
    from postroom.audit import Actor

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stopped_by_signals(saying: str) -> Iterator[asyncio.Event]:
    """An event that the first signal sets; a second one ends the process at once, which loses nothing either.

    `saying` is shown to the person; empty if there is none."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def interrupt() -> None:
        stop.set()
        _give_back(loop)
        if saying:
            errors.print(saying, markup=False)

    if threading.current_thread() is not threading.main_thread():  # signals go to the main thread alone
        yield stop
        return
    for number in _SIGNALS:
        loop.add_signal_handler(number, interrupt)
    try:
        yield stop
    finally:
        _give_back(loop)


def _give_back(loop: asyncio.AbstractEventLoop) -> None:
    for number in _SIGNALS:
        loop.remove_signal_handler(number)


T = TypeVar("T")
log = logs.get(__name__)


def with_app(action: Callable[[App], Awaitable[T]], *, is_service: bool = False) -> T:
    """Run `action` on an open installation. A service logs as configured, and waits for a database that is away; a
    command logs only what is wrong, and ends."""
    loaded = settings.load()
    telemetry = loaded.telemetry
    level, form = (telemetry.log_level, telemetry.log_format) if is_service else ("warning", "console")
    logs.configure(level=level, format=form, secrets=loaded.secrets())

    async def run() -> T:
        async with open_app(loaded, patience_s=DATABASE_WAIT_S if is_service else 0.0) as app:
            return await action(app)

    return eventloop.run(run())


def log_model_problem(app: App) -> None:
    """A model that cannot be asked stops nothing: it is said once, when a service starts."""
    from postroom.triage.model import model_problem

    if problem := model_problem(app.settings.model, app.vault):
        log.warning("model.not_asked", problem=problem)


def me() -> Caller:
    """The person at this terminal, for the audit log."""
    try:
        return Caller(Role.DASHBOARD, f"cli {getpass.getuser()}")
    except (KeyError, OSError):  # a user id without a name, as containers have them
        return Caller(Role.DASHBOARD, "cli")


def read(transaction: Callable[[Tx], T]) -> T:
    """What a transaction reads from the control database."""

    async def run(app: App) -> T:
        return await app.database.read(transaction)

    return with_app(run)


class _Rehearsed(Exception):
    def __init__(self, result: Any) -> None:
        super().__init__()
        self.result = result


def change(transaction: Callable[[Tx, Actor, datetime], T], *, dry_run: bool) -> T:
    from postroom.audit import Actor

    who = Actor.of(me())

    async def run(app: App) -> T:
        def whole(tx: Tx) -> T:
            result = transaction(tx, who, app.clock.now())
            if dry_run:
                raise _Rehearsed(result)
            return result

        return await app.database.write(whole)

    try:
        return with_app(run)
    except _Rehearsed as rehearsed:
        result: T = rehearsed.result
        return result


AccountOption = Annotated[str | None, typer.Option("--account", help="Only this account; all accounts otherwise.")]


async def chosen_accounts(app: App, email: str | None) -> list[Account]:
    from postroom.accounts.account import get_account, list_accounts

    if email is not None:
        return [await app.database.read(lambda tx: get_account(tx, email))]
    accounts = await app.database.read(list_accounts)
    if not accounts:
        raise NotFound("account", "there are none yet; `postroom account add gmail --help` says how to add one")
    return accounts

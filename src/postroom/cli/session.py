"""From a command to an open installation and back: settings, app, one coroutine, and signals that end it cleanly.

`look` reads with hand-written SQL, and so without loading what the services need. `change` makes one change in one
transaction in the name of the person at the terminal; with `--dry-run` it is rolled back at its end, so that what would
be refused is refused then too.
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

from postroom import settings
from postroom.cli.terminal import errors
from postroom.db import Reader, Tx
from postroom.db.plain_sqlite import sqlite_reader
from postroom.domain.errors import NotFound
from postroom.domain.roles import Caller, Role
from postroom.telemetry import logs

if TYPE_CHECKING:
    from postroom.accounts.account import Account
    from postroom.app import App
    from postroom.audit import Actor
    from postroom.db import Database
    from postroom.queue import JobQueue

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


def with_app(
    action: Callable[[App], Awaitable[T]],
    *,
    is_service: bool = False,
    adjusted: Callable[[settings.Settings], settings.Settings] = lambda loaded: loaded,
) -> T:
    """Run `action` on an open installation. A service logs as configured, and waits for a database that is away; a
    command logs only what is wrong, and ends. `adjusted` puts the options of a command above its settings."""
    from postroom import eventloop
    from postroom.app import installation

    loaded = adjusted(settings.load())
    telemetry = loaded.telemetry
    level, form = (telemetry.log_level, telemetry.log_format) if is_service else ("warning", "console")
    logs.configure(level=level, format=form, secrets=loaded.secrets())

    async def run() -> T:
        patience_s = installation.DATABASE_WAIT_S if is_service else 0.0
        async with installation.open_app(loaded, patience_s=patience_s) as app:
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


def look(query: Callable[[Reader], T]) -> T:
    """What hand-written SQL reads from the control database. A SQLite file in its usual place is read through its
    driver alone; any other database, and one that has to be upgraded first, is opened as for every command."""
    loaded = settings.load()
    if loaded.database.url is None:
        with sqlite_reader(loaded.home / settings.DATABASE_NAME, loaded.database) as reader:
            if reader is not None:
                return query(reader)
    return read(query)


class _Rehearsed(Exception):
    def __init__(self, result: Any) -> None:
        super().__init__()
        self.result = result


def change(transaction: Callable[[Tx, Actor, datetime], T], *, dry_run: bool) -> T:
    return change_queue(lambda tx, queue, who: transaction(tx, who, queue.clock.now()), dry_run=dry_run)


def change_queue(transaction: Callable[[Tx, JobQueue, Actor], T], *, dry_run: bool) -> T:
    """A change that may enqueue jobs."""
    from postroom.audit import Actor

    who = Actor.of(me())

    async def run(app: App) -> T:
        def whole(tx: Tx) -> T:
            return transaction(tx, app.queue, who)

        return await (rehearse(app.database, whole) if dry_run else app.database.write(whole))

    return with_app(run)


async def rehearse(database: Database, transaction: Callable[[Tx], T]) -> T:
    """What a transaction would give; it is rolled back."""

    def whole(tx: Tx) -> T:
        raise _Rehearsed(transaction(tx))

    try:
        return await database.write(whole)
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

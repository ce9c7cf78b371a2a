"""From a command to a running installation and back: load the settings, open the app, run one coroutine."""

from __future__ import annotations

import getpass
from collections.abc import Awaitable, Callable
from typing import TypeVar

from postroom import eventloop, settings
from postroom.app import App, open_app
from postroom.app.patience import OF_A_SERVICE_S
from postroom.domain.roles import Caller, Role
from postroom.telemetry import logs

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
        async with open_app(loaded, patience_s=OF_A_SERVICE_S if is_service else 0.0) as app:
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

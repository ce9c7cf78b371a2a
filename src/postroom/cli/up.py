"""`postroom up`: everything in one process, until told to stop."""

from __future__ import annotations

import json as json_format
import sys
from functools import partial
from typing import Annotated

import typer

from postroom.accounts.store import list_accounts
from postroom.app import App
from postroom.audit import Actor
from postroom.cli.interrupt import stopped_by_signals
from postroom.cli.output import console
from postroom.cli.session import log_model_problem, me, with_app
from postroom.telemetry import logs, metrics

log = logs.get(__name__)

_STOPPING = "Stopping. What is under way is finished, or goes on at the next start."


def up(
    json: Annotated[
        bool, typer.Option("--json", help="Print one line of JSON when ready, and log as a service does.")
    ] = False,
) -> None:
    """Run everything in this process: dashboard, MCP, archive, jobs. Ctrl-C ends it.

    It asks for nothing. The first start prints a link for choosing a passphrase.
    Mailboxes are added while it runs: in the dashboard, under Settings, or with
    `postroom account add`. Where it listens: `switchboard` in docs/settings.md.
    """
    with_app(lambda app: _run(app, for_programs=json), is_service=json or not sys.stderr.isatty())


async def _run(app: App, *, for_programs: bool) -> None:
    # The web server and the readers of models take a second or two to import.
    from postroom.app.serving import RunningSwitchboard
    from postroom.app.up import run_everything
    from postroom.dashboard.entering import first_link
    from postroom.dashboard.server import Dashboard

    async def ready(running: RunningSwitchboard) -> None:
        link = await first_link(app, running.url, Actor.of(me()))
        if for_programs:
            welcome = {} if link is None else {"welcome": link}
            print(json_format.dumps({"url": running.url, "mcp": f"{running.url}/mcp", **welcome}), flush=True)
            log_model_problem(app)
        else:
            await _greet(app, running.url, link)
        log.info("up.serving", address=running.url)

    metrics.configure()
    with stopped_by_signals("" if for_programs else _STOPPING) as stop:
        await run_everything(app, Dashboard, stop, ready)
    log.info("up.stopped")


def _model(app: App) -> str:
    from postroom.triage.model import model_problem

    settings = app.settings.model
    problem = model_problem(settings, app.vault)
    if problem is not None:
        return f"is not asked, rules decide alone: {problem}"
    return "none: rules decide alone" if settings.provider is None else f"{settings.name} ({settings.provider})"


async def _greet(app: App, url: str, link: str | None) -> None:
    mailboxes = [account.email for account in await app.database.read(list_accounts)]
    say = partial(console.print, markup=False, soft_wrap=True)
    say(f"Postroom is running at {app.settings.dashboard.url or url}")
    if link is not None:
        say("\nOpen this link within the hour to choose your passphrase:")
        say(link)
    say("")
    say(f"  mailboxes  {', '.join(mailboxes) if mailboxes else 'none yet: Settings in the dashboard adds one'}")
    say(f"  model      {_model(app)}")
    say(f"  kept in    {app.settings.home}")
    say(f"  for MCP    {url}/mcp, with a token from `postroom token create`")
    say("\nCtrl-C stops it. Nothing is lost by that, nor by a power cut.")
    sys.stdout.flush()

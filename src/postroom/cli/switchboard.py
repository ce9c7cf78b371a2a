"""`postroom switchboard`: serve the tools over MCP and the dashboard, own the archive, until told to stop."""

from __future__ import annotations

import asyncio
import json
import signal

from postroom.app import App
from postroom.audit import Actor
from postroom.cli.output import errors
from postroom.cli.session import log_model_problem, me, with_app
from postroom.telemetry import logs, metrics

log = logs.get(__name__)


def switchboard() -> None:
    """Serve the dashboard, and MCP at /mcp; print a line of JSON when ready. SIGTERM or Ctrl-C finishes and ends.

    The first start prints a link for setting a passphrase. Programs need a token: `postroom token create`.
    Settings are under `switchboard` and `dashboard` in docs/settings.md.
    """

    async def run(app: App) -> None:
        # The web server takes a second to import.
        from postroom.app.auditing import sealing
        from postroom.app.serving import open_switchboard
        from postroom.dashboard.entering import first_link
        from postroom.dashboard.server import Dashboard

        metrics.configure()
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopped.set)
        async with sealing(app), open_switchboard(app, Dashboard) as running:
            link = await first_link(app, running.url, Actor.of(me()))
            welcome = {} if link is None else {"welcome": link}
            print(json.dumps({"url": running.url, "mcp": f"{running.url}/mcp", **welcome}), flush=True)
            if link is not None and errors.is_terminal:  # a log is no place for it
                errors.print(
                    f"Open this link within the hour to set your passphrase:\n{link}", markup=False, soft_wrap=True
                )
            log_model_problem(app)
            log.info("switchboard.serving", address=running.url)
            await stopped.wait()
            log.info("switchboard.stopping")

    with_app(run, is_service=True)

"""`postroom switchboard`: serve the tools over MCP, own the archive, until told to stop."""

from __future__ import annotations

import asyncio
import json
import signal

from postroom.app import App
from postroom.cli.session import with_app
from postroom.telemetry import logs, metrics

log = logs.get(__name__)


def switchboard() -> None:
    """Serve MCP at /mcp and print one line of JSON when ready. SIGTERM or Ctrl-C finishes what is under way and ends.

    Who calls needs a token: `postroom token create`. Settings are under `switchboard` in docs/settings.md.
    """

    async def run(app: App) -> None:
        from postroom.app.serving import open_switchboard  # the web server takes a second to import

        metrics.configure()
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopped.set)
        async with open_switchboard(app) as running:
            print(json.dumps({"url": running.url, "mcp": f"{running.url}/mcp"}), flush=True)
            log.info("switchboard.serving", address=running.url)
            await stopped.wait()
            log.info("switchboard.stopping")

    with_app(run, is_service=True)

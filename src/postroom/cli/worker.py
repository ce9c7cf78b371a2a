"""`postroom worker`: run jobs until told to stop."""

from __future__ import annotations

import asyncio
import signal
from contextlib import ExitStack
from typing import Annotated

import typer

from postroom.app import App
from postroom.cli.session import log_model_problem, with_app
from postroom.domain.errors import BadInput
from postroom.settings import TelemetrySettings
from postroom.telemetry import endpoint, logs, metrics

log = logs.get(__name__)


def worker(
    once: Annotated[bool, typer.Option("--once", help="Stop when no job is left that could run now.")] = False,
) -> None:
    """Run jobs. SIGTERM or Ctrl-C lets the running ones finish, hands the rest back, and ends."""

    async def run(app: App) -> None:
        from postroom.app.auditing import sealing
        from postroom.app.working import open_worker  # models take a second to import

        metrics.configure()
        with ExitStack() as stack:
            _serve_metrics(stack, app.settings.telemetry)
            log_model_problem(app)
            async with sealing(app), open_worker(app, until_idle=once) as worker:
                loop = asyncio.get_running_loop()
                for number in (signal.SIGTERM, signal.SIGINT):
                    loop.add_signal_handler(number, worker.stop)
                await worker.run()

    with_app(run, is_service=True)


def _serve_metrics(stack: ExitStack, settings: TelemetrySettings) -> None:
    if settings.metrics_port is None:
        return
    if settings.metrics_token is None:
        raise BadInput("telemetry.metrics_token", "is needed with telemetry.metrics_port; set 16 or more characters")
    try:
        port = stack.enter_context(endpoint.serve(settings.metrics_port, settings.metrics_token.get_secret_value()))
    except OSError as error:
        raise BadInput("telemetry.metrics_port", f"{settings.metrics_port} cannot be used: {error.strerror}") from error
    log.info("metrics.serving", address=f"127.0.0.1:{port}")

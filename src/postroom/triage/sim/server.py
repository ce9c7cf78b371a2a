"""Starts the model's stand-in: inside a test, or as a process of its own."""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass

from postroom.domain.clock import Clock, SystemClock
from postroom.gmail.sim.serving import HOST, serving, until_told_to_stop
from postroom.triage.sim.app import ModelApp
from postroom.triage.sim.desk import Desk
from postroom.webserver import listening


@dataclass(frozen=True)
class ModelSim:
    """A running stand-in, as its callers see it."""

    url: str
    """What to give an OpenAI client as its base address."""
    token: str
    control_token: str
    control_url: str
    desk: Desk


@contextlib.asynccontextmanager
async def running_model(
    seed: int = 0, *, port: int = 0, token: str | None = None, clock: Clock | None = None
) -> AsyncIterator[ModelSim]:
    """The stand-in on a free port, until the block ends."""
    clock = clock or SystemClock()
    desk = Desk(seed, clock)
    token, control_token = token or f"sk-simulated-{secrets.token_urlsafe(16)}", secrets.token_urlsafe(24)
    app = ModelApp(desk, token, control_token, clock)
    listener = listening(HOST, port)
    root = f"http://{HOST}:{listener.getsockname()[1]}"
    async with serving(app, listener, before_stop=app.release):
        yield ModelSim(f"{root}/v1", token, control_token, f"{root}/_sim", desk)


async def serve(*, port: int, seed: int) -> None:
    """Serve until SIGTERM or SIGINT; one line of JSON on standard output says when and where."""
    stopped = until_told_to_stop()
    async with running_model(seed, port=port) as sim:
        ready = {"url": sim.url, "token": sim.token, "control_token": sim.control_token}
        print(json.dumps(ready), flush=True)
        await stopped.wait()

"""Starts the stand-in: inside a test, or as a process of its own. Listens on the loopback address only."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from postroom.domain.clock import Clock, SystemClock
from postroom.domain.errors import BadInput
from postroom.gmail.quota import PROFILES, ProfileName
from postroom.gmail.sim import scopes
from postroom.gmail.sim.app import ABORT, SimApp
from postroom.gmail.sim.control import Control
from postroom.gmail.sim.faults import Faults
from postroom.gmail.sim.gateway import Gateway
from postroom.gmail.sim.grants import Grants
from postroom.gmail.sim.mailbox_state import MailboxState
from postroom.gmail.sim.meter import Limits, Meter
from postroom.gmail.sim.model import MailSource
from postroom.gmail.sim.oauth import OAuth

HOST = "127.0.0.1"
REQUESTS_IN_FLIGHT = 10
BATCH_PARTS_AT_ONCE = 50
_PATIENCE_S = 2.0
"""How long calls in progress may take to finish when the server stops."""


@dataclass(frozen=True)
class Sim:
    """A running stand-in, as its callers see it."""

    url: str
    token: str
    email: str
    control_token: str
    control: Control


def limits_named(quota: str) -> Limits:
    """`legacy` and `2026` as Google has them, `none` for no limit at all."""
    if quota == "none":
        return Limits()
    if quota not in list(ProfileName):
        raise BadInput("quota", f"{quota!r} is not known; choose one of {', '.join(ProfileName)}, none")
    return Limits(PROFILES[ProfileName(quota)], REQUESTS_IN_FLIGHT, BATCH_PARTS_AT_ONCE)


@contextlib.asynccontextmanager
async def running_sim(
    source: MailSource,
    *,
    quota: str | Limits = "none",
    clock: Clock | None = None,
    port: int = 0,
) -> AsyncIterator[Sim]:
    """The stand-in on a free port, until the block ends."""
    clock = clock or SystemClock()
    limits = limits_named(quota) if isinstance(quota, str) else quota
    box, grants, meter, faults = MailboxState(source, clock), Grants(clock), Meter(limits, clock), Faults()
    control, control_token = Control(box, grants, meter, faults), secrets.token_urlsafe(24)
    gateway = Gateway(box, grants, meter, faults)
    app = SimApp(gateway, OAuth(grants, source.email), control, control_token, clock)
    listener = _listener(port)
    url = f"http://{HOST}:{listener.getsockname()[1]}"
    async with _serving(app, listener, before_stop=app.release):
        yield Sim(url, grants.allow(scopes.ALL), source.email, control_token, control)


async def run_until_stopped(
    source: MailSource, *, quota: str | Limits, port: int, announce: Callable[[Sim], None], clock: Clock | None = None
) -> None:
    """Serve until SIGTERM or SIGINT; `announce` is called once, when the stand-in answers."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    async with running_sim(source, quota=quota, port=port, clock=clock) as sim:
        announce(sim)
        await stopped.wait()


def _listener(port: int) -> socket.socket:
    # Named as TCP so that asyncio turns off Nagle's delay: head and body are two writes, 40 ms apart otherwise.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
    except (OSError, OverflowError) as error:
        listener.close()
        raise BadInput("port", f"cannot listen on {HOST}:{port}: {error}") from error
    return listener


@contextlib.asynccontextmanager
async def _serving(app: SimApp, listener: socket.socket, before_stop: Callable[[], None]) -> AsyncIterator[None]:
    config = uvicorn.Config(
        app,
        http=_AbortableProtocol,
        loop="none",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        date_header=False,
        server_header=False,
        timeout_keep_alive=75,
    )
    server = _Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    ready = asyncio.create_task(server.ready.wait())
    try:
        await asyncio.wait({serving, ready}, return_when=asyncio.FIRST_COMPLETED)
        yield
    finally:
        ready.cancel()
        before_stop()
        server.stop.set()
        await serving


class _AbortableProtocol(HttpToolsProtocol):
    """Hands each request the means to cut its connection, which no well-behaved application needs."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {ABORT: {"abort": self.transport.abort}}


class _Server(uvicorn.Server):
    """Stops when told to, at once, and leaves the signals of the process to whoever runs it."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()
        self.stop = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    async def main_loop(self) -> None:
        await self.stop.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Like the original, but without its fixed pause, which a thousand tests would pay for."""
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        if tasks := set(self.server_state.tasks):
            _, late = await asyncio.wait(tasks, timeout=_PATIENCE_S)
            for task in late:
                task.cancel()
        for server in self.servers:
            await server.wait_closed()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

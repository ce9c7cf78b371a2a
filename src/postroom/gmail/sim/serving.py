"""A small web server on the loopback address for stand-ins: started and stopped within a block, at once."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from postroom.domain.errors import BadInput
from postroom.gmail.sim.asgi import Receive, Scope, Send

HOST = "127.0.0.1"
ABORT = "postroom.abort"
"""The ASGI extension by which the server lets the application cut a connection."""

App = Callable[[Scope, Receive, Send], Awaitable[None]]

_PATIENCE_S = 2.0
"""How long calls in progress may take to finish when the server stops."""


def until_told_to_stop() -> asyncio.Event:
    """An event that SIGTERM and SIGINT set."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    return stopped


def listening(port: int) -> socket.socket:
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
async def serving(app: App, listener: socket.socket, before_stop: Callable[[], None]) -> AsyncIterator[None]:
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

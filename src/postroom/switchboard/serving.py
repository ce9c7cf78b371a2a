"""An ASGI application on a port of this machine, until the block ends: what is under way then is finished first."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import AsyncIterator, Iterator

import uvicorn
from starlette.types import ASGIApp

from postroom.domain.errors import BadInput

_PATIENCE_S = 10
_REQUESTS_AT_ONCE = 256


@contextlib.asynccontextmanager
async def serving(app: ASGIApp, host: str, port: int) -> AsyncIterator[str]:
    """Serve; yields the address (port 0 asks the system for a free one)."""
    listener = _listener(host, port)
    address = f"[{host}]" if ":" in host else host
    config = uvicorn.Config(
        app,
        http="httptools",
        loop="none",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        date_header=False,
        server_header=False,
        limit_concurrency=_REQUESTS_AT_ONCE,
        timeout_keep_alive=75,
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]), name="http")
    ready = asyncio.create_task(server.ready.wait())
    try:
        await asyncio.wait({task, ready}, return_when=asyncio.FIRST_COMPLETED)
        yield f"http://{address}:{listener.getsockname()[1]}"
    finally:
        ready.cancel()
        server.stop.set()
        await task


class _Server(uvicorn.Server):
    """Stops when told to and leaves the signals of the process to whoever runs it."""

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
        """Take no more requests, let those under way finish, and cut off what takes too long."""
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


def is_loopback(host: str) -> bool:
    return ipaddress.ip_address(host).is_loopback


def _listener(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named as TCP so that asyncio turns off Nagle's delay: head and body are two writes, 40 ms apart otherwise.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise BadInput("switchboard.port", f"cannot listen on {host}:{port}: {error.strerror}") from error
    return listener

"""An ASGI application on a port of this machine, until the block ends: what is under way then is finished first."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from functools import partial
from typing import Any

import uvicorn

from postroom.domain.errors import BadInput, Fatal
from postroom.webserver.connection import ConnectionGuard, GuardedConnection
from postroom.webserver.limits import ConnectionLimits


def listening(host: str, port: int, field: str = "port") -> socket.socket:
    """A socket to serve on; port 0 asks the system for a free one. `field` names the setting in errors."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named as TCP so that asyncio turns off Nagle's delay: head and body are two writes, 40 ms apart otherwise.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            raise Fatal(
                f"Port {port} on {host} is in use by another program; stop that one, or choose another port with "
                "--port (0 picks a free one)."
            ) from error
        raise BadInput(field, f"cannot listen on {host}:{port}: {error}") from error
    return listener


@contextlib.asynccontextmanager
async def serving(
    app: Any,
    listener: socket.socket,
    *,
    patience_s: float,
    limits: ConnectionLimits | None = None,
    report: Callable[[Mapping[str, int]], None] | None = None,
    protocol: type[asyncio.Protocol] | None = None,
) -> AsyncIterator[None]:
    """Serve within `limits`; at the end, calls under way may take `patience_s` to finish.

    `report` is called about once a minute with the number of connections closed, by reason. `protocol` serves without
    limits, for stand-ins.
    """
    door = ConnectionGuard(limits or ConnectionLimits(), report)
    config = uvicorn.Config(
        app,
        http=protocol or partial(GuardedConnection, door=door),  # type: ignore[arg-type]
        loop="none",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        date_header=False,
        server_header=False,
        proxy_headers=False,  # a connection finds the client's address itself
        timeout_keep_alive=round(door.limits.idle_s) or 1,
    )
    server = _Server(config, door, patience_s)
    task = asyncio.create_task(server.serve(sockets=[listener]), name="http")
    watch = asyncio.create_task(door.watch(), name="http.limits")
    ready = asyncio.create_task(server.ready.wait())
    try:
        await asyncio.wait({task, ready}, return_when=asyncio.FIRST_COMPLETED)
        yield
    finally:
        ready.cancel()
        server.stop.set()
        await task
        watch.cancel()
        door.report(0.0)


class _Server(uvicorn.Server):
    """A server that stops at once when asked and leaves the process's signals alone."""

    def __init__(self, config: uvicorn.Config, door: ConnectionGuard, patience_s: float) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()
        self.stop = asyncio.Event()
        self._door = door
        self._patience_s = patience_s

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    async def main_loop(self) -> None:
        await self.stop.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Like the original without its fixed pause: take no more, let what is under way finish, cut off the rest."""
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        self._door.cut_unfinished()
        if tasks := set(self.server_state.tasks):
            _, late = await asyncio.wait(tasks, timeout=self._patience_s)
            for task in late:
                task.cancel()
        self._door.cut_all()  # a peer that does not read its answer would keep its connection open
        for server in self.servers:
            await server.wait_closed()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

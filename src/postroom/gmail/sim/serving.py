"""A small web server on the loopback address for stand-ins: started and stopped within a block, at once."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from postroom import webserver
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


@contextlib.asynccontextmanager
async def serving(app: App, listener: socket.socket, before_stop: Callable[[], None]) -> AsyncIterator[None]:
    async with webserver.serving(app, listener, patience_s=_PATIENCE_S, protocol=_AbortableProtocol):
        try:
            yield
        finally:
            before_stop()


class _AbortableProtocol(HttpToolsProtocol):
    """Hands each request the means to cut its connection, which no well-behaved application needs."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {ABORT: {"abort": self.transport.abort}}

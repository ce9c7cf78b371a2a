"""What all stand-ins share: requests and replies as plain values, the types of ASGI, and a small loopback server that
starts and stops within a block.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from postroom import webserver

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]


JSON_TYPE = "application/json; charset=UTF-8"


@dataclass(frozen=True, slots=True)
class SimRequest:
    verb: str
    path: str
    query_string: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Names in lower case."""
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class SimReply:
    status: int
    body: bytes = b""
    content_type: str = JSON_TYPE
    headers: tuple[tuple[str, str], ...] = ()
    announced_length: int | None = None
    """What Content-Length says, where that is a lie: the connection breaks off before so much was sent."""


def json_reply(value: object, status: int = 200) -> SimReply:
    return SimReply(status, json.dumps(value).encode())


HOST = "127.0.0.1"
ABORT = "postroom.abort"
"""The ASGI extension by which the server lets the application cut a connection."""

App = Callable[[Scope, Receive, Send], Awaitable[None]]

_PATIENCE_S = 2.0
"""How long calls in progress may take to finish when the server stops."""


def until_stopped() -> asyncio.Event:
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
    """Lets the application cut the connection of a request, so that a stand-in can play a broken server."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {ABORT: {"abort": self.transport.abort}}

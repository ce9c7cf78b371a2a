"""The Switchboard's application on its port, until the block ends."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import AsyncIterator

from starlette.types import ASGIApp

from postroom import webserver

_PATIENCE_S = 10.0
_REQUESTS_AT_ONCE = 256


def listening(host: str, port: int) -> socket.socket:
    """The port, taken; 0 asks the system for a free one."""
    return webserver.listening(host, port, "switchboard.port")


@contextlib.asynccontextmanager
async def serving(app: ASGIApp, listener: socket.socket) -> AsyncIterator[str]:
    """Serve; yields the address."""
    host, port = listener.getsockname()[:2]
    address = f"[{host}]" if ":" in host else host
    async with webserver.serving(app, listener, patience_s=_PATIENCE_S, limit_concurrency=_REQUESTS_AT_ONCE):
        yield f"http://{address}:{port}"


def is_loopback(host: str) -> bool:
    return ipaddress.ip_address(host).is_loopback

"""The Switchboard's application on its port, until the block ends."""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import AsyncIterator

from starlette.types import ASGIApp

from postroom import webserver

_PATIENCE_S = 10.0
_REQUESTS_AT_ONCE = 256


@contextlib.asynccontextmanager
async def serving(app: ASGIApp, host: str, port: int) -> AsyncIterator[str]:
    """Serve; yields the address (port 0 asks the system for a free one)."""
    listener = webserver.listening(host, port, "switchboard.port")
    address = f"[{host}]" if ":" in host else host
    async with webserver.serving(app, listener, patience_s=_PATIENCE_S, limit_concurrency=_REQUESTS_AT_ONCE):
        yield f"http://{address}:{listener.getsockname()[1]}"


def is_loopback(host: str) -> bool:
    return ipaddress.ip_address(host).is_loopback

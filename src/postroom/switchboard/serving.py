"""The Switchboard's application on its port, until the block ends."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import AsyncIterator, Mapping

from starlette.types import ASGIApp

from postroom import webserver
from postroom.settings import SwitchboardSettings
from postroom.telemetry import logs, metrics

log = logs.get(__name__)

_PATIENCE_S = 4.0
_closed = metrics.meter.create_counter(
    "postroom.http.closed", "{connection}", "connections closed because their peer was too slow, too large or too many"
)


def listening(host: str, port: int) -> socket.socket:
    """The port, taken; 0 asks the system for a free one."""
    return webserver.listening(host, port, "switchboard.port")


@contextlib.asynccontextmanager
async def serving(app: ASGIApp, listener: socket.socket, limits: webserver.Limits | None = None) -> AsyncIterator[str]:
    """Serve; yields the address."""
    host, port = listener.getsockname()[:2]
    address = f"[{host}]" if ":" in host else host
    async with webserver.serving(app, listener, patience_s=_PATIENCE_S, limits=limits, report=_report):
        yield f"http://{address}:{port}"


def limits_of(settings: SwitchboardSettings) -> webserver.Limits:
    return webserver.Limits(connections=settings.max_connections, trusted_proxies=settings.proxies)


def _report(closed: Mapping[str, int]) -> None:
    for reason, count in closed.items():
        _closed.add(count, {"reason": reason})
    log.warning("switchboard.connections_closed", **closed)


def is_loopback(host: str) -> bool:
    return ipaddress.ip_address(host).is_loopback

"""The Switchboard over HTTP: `/mcp` behind a token, `/health` open, `/metrics` behind its own token.

A caller is authenticated before a byte of the body is read. Other applications on the same port are mounted at
paths of their own and do their own authentication.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import json
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.types import ASGIApp, Receive, Scope, Send

from postroom import webserver
from postroom.db import Database, Tx
from postroom.domain.clock import Clock
from postroom.domain.errors import Fatal, PostroomError
from postroom.domain.roles import Caller, Role
from postroom.settings import SwitchboardSettings
from postroom.switchboard import tokens
from postroom.switchboard.request_limits import BodyTooLarge, RequestLimiter, TooManyRequests, limits_by_role
from postroom.switchboard.toolbox import Toolbox
from postroom.telemetry import logs, metrics

if TYPE_CHECKING:
    from postroom.switchboard.mcp_server import Context, HttpServer

    Servers = Mapping[Role, HttpServer]

log = logs.get(__name__)

_SHUTDOWN_S = 4.0
_closed = metrics.meter.create_counter(
    "postroom.http.closed", "{connection}", "connections closed because their peer was too slow, too large or too many"
)


def listening(host: str, port: int) -> socket.socket:
    """Binds the port; 0 asks the system for a free one."""
    return webserver.listening(host, port, "switchboard.port")


@contextlib.asynccontextmanager
async def serving(
    app: ASGIApp, listener: socket.socket, limits: webserver.ConnectionLimits | None = None
) -> AsyncIterator[str]:
    """Serve; yields the address."""
    host, port = listener.getsockname()[:2]
    address = f"[{host}]" if ":" in host else host
    async with webserver.serving(app, listener, patience_s=_SHUTDOWN_S, limits=limits, report=_report):
        yield f"http://{address}:{port}"


def limits_of(settings: SwitchboardSettings) -> webserver.ConnectionLimits:
    return webserver.ConnectionLimits(connections=settings.max_connections, trusted_proxies=settings.proxies)


def _report(closed: Mapping[str, int]) -> None:
    for reason, count in closed.items():
        _closed.add(count, {"reason": reason})
    log.warning("switchboard.connections_closed", **closed)


def is_loopback(host: str) -> bool:
    return ipaddress.ip_address(host).is_loopback


CALLER = "postroom.caller"
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_UNKNOWN = {
    "error": "A token is needed: send it as `Authorization: Bearer prt_...`. `postroom token create` makes one."
}


class LateServers:
    """What speaks MCP, made for the first call: its library takes half a second of a start and 30 MB, and is not
    needed where no assistant and no connector of another process calls."""

    def __init__(self, make: Callable[[], Servers]) -> None:
        self._make = make
        self._wanted = asyncio.Event()
        self._made: asyncio.Future[Servers] = asyncio.Future()

    async def of(self, role: Role) -> HttpServer:
        self._wanted.set()
        return (await asyncio.shield(self._made))[role]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        serving = asyncio.create_task(self._serve())
        try:
            yield
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    async def _serve(self) -> None:
        """Within one task, as what the library runs has to begin and end in the same."""
        await self._wanted.wait()
        try:
            servers = await asyncio.to_thread(self._make)
        except Exception as error:
            self._made.set_exception(error)
            raise
        async with AsyncExitStack() as stack:
            for server in servers.values():
                await stack.enter_async_context(server.run())
            self._made.set_result(servers)
            await asyncio.Event().wait()


class SwitchboardHttp:
    """An ASGI application. It serves within `running`."""

    def __init__(
        self,
        toolbox: Toolbox,
        database: Database,
        clock: Clock,
        *,
        request_bytes: int,
        agent_request_bytes: int = 262_144,
        is_loopback: bool = True,
        metrics_token: str | None = None,
        mounts: Mapping[str, ASGIApp] | None = None,
        front: ASGIApp | None = None,
    ) -> None:
        """`mounts` are applications at a path of their own, `front` is the one for every other path."""
        self._mounts = mounts or {}
        self._front = front or nothing_here
        self._database = database
        self._tokens = tokens.TokenVerifier(database, clock)
        self._metrics_token = metrics_token
        limits = limits_by_role(request_bytes, agent_request_bytes)
        self._intake = RequestLimiter(limits, toolbox.is_bulky)
        largest = {role: limits[role].bulky_bytes for role in Role}
        self._servers = LateServers(partial(_make_servers, toolbox, largest, _LOOPBACK if is_loopback else None))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with self._servers.running():
            yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        match scope["path"]:
            case "/mcp":
                await self._mcp(scope, receive, send)
            case "/health":
                await self._health(send)
            case "/metrics" if self._metrics_token is not None:
                await self._metrics(scope, send, self._metrics_token)
            case path:
                await self._mounts.get(path, self._front)(scope, receive, send)

    async def _mcp(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            text = _bearer(scope)
            token = None if text is None else await self._tokens.verified(text)
        except PostroomError as error:
            log.error("switchboard.token_not_checked", error=error.message)
            await _answer(send, 503, {"error": "The token cannot be checked now; try again."}, ("retry-after", "5"))
            return
        if token is None:
            await _answer(send, 401, _UNKNOWN, ("www-authenticate", 'Bearer realm="postroom"'))
            return
        webserver.mark_known(scope)
        if scope["method"] != "POST":
            # Nothing is ever sent unasked, so there is no stream to listen to and no session to end.
            await _answer(send, 405, {"error": "Only POST is served here."}, ("allow", "POST"))
            return
        scope[CALLER] = token.caller
        await self._handle(token, scope, receive, send)

    async def _handle(self, token: tokens.AccessToken, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with self._intake.body(token.id, token.role, receive) as body:
                server = await self._servers.of(token.role)
                await server.handle_request(scope, body, send)
        except BodyTooLarge as error:
            await _answer(send, 413, {"error": f"The {error.message}."})
        except TooManyRequests as error:
            await _answer(send, 429, {"error": error.message}, ("retry-after", "1"))

    async def _health(self, send: Send) -> None:
        try:
            await self._database.read(_ask)
        except PostroomError:
            await _answer(send, 503, {"status": "failing", "database": "unreachable"})
        else:
            await _answer(send, 200, {"status": "ok"})

    async def _metrics(self, scope: Scope, send: Send, token: str) -> None:
        if not hmac.compare_digest((_bearer(scope) or "").encode(), token.encode()):
            await _answer(send, 401, {"error": "The metrics token is needed."}, ("www-authenticate", "Bearer"))
            return
        webserver.mark_known(scope)
        await _send(send, 200, metrics.exposition(), "text/plain; version=0.0.4; charset=utf-8")


async def _caller_of(context: Context) -> Caller:
    caller = None if context.request is None else context.request.scope.get(CALLER)
    if not isinstance(caller, Caller):
        raise Fatal("A call arrived here without its caller.")
    return caller


def _make_servers(toolbox: Toolbox, largest: Mapping[Role, int], hosts: Sequence[str] | None) -> Servers:
    from postroom.switchboard.mcp_server import http_server

    return {role: http_server(toolbox, role, _caller_of, largest[role], hosts) for role in Role}


def _bearer(scope: Scope) -> str | None:
    """The token of the Authorization header; several such headers count as none."""
    values = [value for name, value in scope["headers"] if name == b"authorization"]
    if len(values) != 1:
        return None
    scheme, _, text = values[0].decode("latin-1").partition(" ")
    return text.strip() if scheme.lower() == "bearer" else None


def _ask(tx: Tx) -> None:
    tx.rows("SELECT 1")


async def nothing_here(scope: Scope, receive: Receive, send: Send) -> None:
    await _answer(send, 404, {"error": "Nothing is here; the tools are at /mcp."})


async def _answer(send: Send, status: int, content: dict[str, Any], *headers: tuple[str, str]) -> None:
    await _send(send, status, json.dumps(content).encode(), "application/json", *headers)


async def _send(send: Send, status: int, body: bytes, content_type: str, *headers: tuple[str, str]) -> None:
    named = [
        ("content-type", content_type),
        ("content-length", str(len(body))),
        ("cache-control", "no-store"),
        *headers,
    ]
    encoded = [(name.encode(), value.encode()) for name, value in named]
    await send({"type": "http.response.start", "status": status, "headers": encoded})
    await send({"type": "http.response.body", "body": body})

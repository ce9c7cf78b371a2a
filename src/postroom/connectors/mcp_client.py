"""Calls tools of a Switchboard in another process, over MCP, and maps what can go wrong to our errors.

Each call opens a client and closes it again, so no session can go stale while the Switchboard restarts.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol
from urllib.parse import urlsplit

import anyio
import httpx2
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolRequest, CallToolRequestParams, CallToolResult, TextContent
from pydantic import ValidationError

from postroom.connectors.switchboard_client import SwitchboardAway, TokenRefused
from postroom.contract.tool import A, Arguments, R, ToolSignature
from postroom.domain.errors import BadInput, Fatal, PostroomError, error_from_wire
from postroom.tls import trusted

_PROTOCOL = "2026-07-28"
_CALL_S = 60.0
_CONNECT_S = 5.0
_AWAY = timedelta(seconds=5)


class McpSession(Protocol):
    async def call_tool(self, tool: str, arguments: dict[str, Any]) -> CallToolResult: ...


Connect = Callable[[], AbstractAsyncContextManager[McpSession]]


class _HttpRefusal(Exception):
    """An HTTP status that means a certain error."""

    def __init__(self, status: int, retry_after: str | None) -> None:
        super().__init__(status)
        self.status = status
        self.retry_after = retry_after


class OverMcp:
    """Tools called with a session of its own for each call."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect

    async def call(self, tool: ToolSignature[A, R], arguments: A | Mapping[str, Any]) -> R:
        given = arguments.wire() if isinstance(arguments, Arguments) else dict(arguments)
        try:
            async with self._connect() as session:
                result = await session.call_tool(tool.name, given)
        except PostroomError:
            raise
        except Exception as error:
            raise _failure(error) from None  # the chain holds the request, and with it the token
        try:
            return tool.reply.model_validate(_content(result, tool.name))
        except ValidationError:
            raise Fatal(
                f"The Switchboard's answer to {tool.name} is not as agreed; the two may be of different versions."
            ) from None


def over_http(url: str, token: str, http: httpx2.AsyncClient) -> OverMcp:
    """Calls over HTTP; `http` comes from `http_client` and is shared by all."""
    _require_safe(url)

    @asynccontextmanager
    async def connect() -> AsyncIterator[McpSession]:
        transport = streamable_http_client(url, http_client=http, terminate_on_close=False)
        async with Client(transport, mode=_PROTOCOL, read_timeout_seconds=_CALL_S, cache=None) as client:
            yield _Unlisted(client)

    http.headers["Authorization"] = f"Bearer {token}"
    return OverMcp(connect)


@dataclass(frozen=True)
class _Unlisted:
    """The SDK's own `call_tool` asks for the list of all tools first, to check the answer. We check it ourselves, and
    a client that lives for one call would ask each time."""

    client: Client

    async def call_tool(self, tool: str, arguments: dict[str, Any]) -> CallToolResult:
        request = CallToolRequest(params=CallToolRequestParams(name=tool, arguments=arguments))
        return await self.client.session.send_request(request, CallToolResult)


def http_client() -> httpx2.AsyncClient:
    """Connections for `over_http`, which end with its block."""
    timeout = httpx2.Timeout(_CALL_S, connect=_CONNECT_S)
    hooks = {"response": [_raise_for_status]}
    return httpx2.AsyncClient(timeout=timeout, trust_env=False, verify=trusted(), event_hooks=hooks)


async def _raise_for_status(response: httpx2.Response) -> None:
    """The SDK drops the status of a refusal, so statuses with a meaning are caught before it sees them."""
    if response.status_code in (401, 403, 413, 429) or response.status_code >= 500:
        raise _HttpRefusal(response.status_code, response.headers.get("retry-after"))


def _require_safe(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadInput("switchboard", f"{url[:100]!r} is not an address such as http://127.0.0.1:8470/mcp")
    if parts.scheme == "http" and parts.hostname not in ("127.0.0.1", "::1", "localhost"):
        raise BadInput("switchboard", "the token would travel unencrypted; use https, or a Switchboard on this machine")


def _failure(error: BaseException) -> PostroomError:
    """Our error for a lost connection, a refusal by status, or an unusable answer."""
    if isinstance(error, BaseExceptionGroup):
        return _failure(error.exceptions[0])
    match error:
        case PostroomError():
            return error
        case _HttpRefusal():
            return _refusal(error)
        case httpx2.HTTPError() | OSError() | anyio.BrokenResourceError() | anyio.ClosedResourceError():
            return SwitchboardAway(f"The Switchboard cannot be reached ({type(error).__name__}).", retry_after=_AWAY)
        case MCPError():
            return SwitchboardAway(f"The Switchboard did not answer: {str(error.message)[:200]}", retry_after=_AWAY)
        case _:
            return Fatal(f"The Switchboard's answer cannot be understood ({type(error).__name__}).")


def _refusal(error: _HttpRefusal) -> PostroomError:
    if error.status in (401, 403):
        return TokenRefused()
    if error.status == 413:
        return BadInput("messages", "more bytes than the Switchboard takes at once")
    wait = float(error.retry_after) if error.retry_after and error.retry_after.isdecimal() else _AWAY.total_seconds()
    return SwitchboardAway(
        f"The Switchboard answered with status {error.status}.", retry_after=timedelta(seconds=min(wait, 3_600))
    )


def _content(result: CallToolResult, tool: str) -> dict[str, Any]:
    text = "".join(part.text for part in result.content if isinstance(part, TextContent))
    structured = result.structured_content
    if result.is_error:
        raise error_from_wire(structured if isinstance(structured, dict) else None, text)
    if structured is None:
        try:
            structured = json.loads(text or "{}")
        except ValueError:
            structured = None
    # The SDK wraps what is no object.
    if isinstance(structured, dict) and set(structured) == {"result"}:
        structured = structured["result"] or {}
    if not isinstance(structured, dict):
        raise Fatal(f"The Switchboard's answer to {tool} is not an object.")
    return structured

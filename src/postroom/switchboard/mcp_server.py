"""The tools over MCP: one server for each role, which lists only the tools that its caller may use. An agent's also has
resources and prompts, and its answers stand between fences.

Built on the SDK's low-level server: the decorated one accepts unknown arguments silently and rewords errors, and
both are part of our contract.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import mcp_types as types
from anyio import AsyncFile
from mcp.server import Server
from mcp.server.context import ServerRequestContext
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.exceptions import MCPError
from mcp_types import Tool as ListedTool

from postroom import __version__
from postroom.contract.tool import Reply
from postroom.domain.errors import BadInput, NotAllowed, PostroomError, error_to_wire
from postroom.domain.roles import Caller, Role
from postroom.switchboard.mcp_resources import NOTICE, AssistantLibrary, fenced
from postroom.switchboard.tokens import TokenVerifier
from postroom.switchboard.toolbox import Tool, Toolbox
from postroom.telemetry import logs

Context = ServerRequestContext[Any, Any]
HttpServer = StreamableHTTPSessionManager

INSTRUCTIONS = {
    Role.DASHBOARD: "Steer Postroom as its owner: answer approvals, undo actions, write rules, recover old mail with "
    "backfill jobs, follow web sources, manage tokens, mailboxes and jobs, and read the audit.",
    Role.CONNECTOR: "Bring mail: store raw messages with archive.store, hand each in with ingest, keep the history "
    "cursor, and work on backfill jobs.",
    Role.AGENT: "Read the owner's mail: search the archive, read messages, conversations and attached text, count what "
    "is there, look at jobs, decisions and what needs review, fetch more from the mailbox on demand, and have the "
    "owner's model answer questions with quotes. Propose "
    f"actions and rules; the owner approves or rejects them. {NOTICE}",
}


def role_server(toolbox: Toolbox, role: Role, caller_of: Callable[[Context], Awaitable[Caller]]) -> Server[Any]:
    @cache
    def listed(tool: Tool[Any, Any]) -> list[ListedTool]:
        """Made when first asked for: describing every tool takes longer than opening everything else."""
        return [_listed(tool, name) for name in tool.names]

    async def list_tools(context: Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        mine = toolbox.open_to(await caller_of(context))
        return types.ListToolsResult(tools=[each for tool in mine for each in listed(tool)])

    async def call_tool(context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        try:
            reply = await toolbox.call(await caller_of(context), params.name, params.arguments or {})
            return _success(reply, is_fenced=role is Role.AGENT)
        except PostroomError as error:
            return _failure(error)

    server: Server[Any] = Server(
        "postroom",
        version=__version__,
        title=f"Postroom Switchboard ({role})",
        instructions=INSTRUCTIONS[role],
        get_tool_input_schema=lambda name: None,  # no argument is repeated in a header, so none is compared with one
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )
    server.middleware.clear()  # it makes a trace of each request, and nothing here collects traces
    if role is Role.AGENT:
        _add_library(server, AssistantLibrary(toolbox), caller_of)
    return server


def http_server(
    toolbox: Toolbox,
    role: Role,
    caller_of: Callable[[Context], Awaitable[Caller]],
    most_bytes: int,
    hosts: Sequence[str] | None,
) -> HttpServer:
    """The server of a role behind HTTP. With `hosts` it refuses all other host names: a web page must not reach it
    through a name that resolves to loopback (DNS rebinding)."""
    return HttpServer(
        role_server(toolbox, role, caller_of),
        json_response=True,
        stateless=True,
        security_settings=None if hosts is None else _only(hosts),
        max_request_body_size=most_bytes,
    )


def _only(hosts: Sequence[str]) -> TransportSecuritySettings:
    return TransportSecuritySettings(
        enable_dns_rebinding_protection=True,
        allowed_hosts=[f"{host}:*" for host in hosts],
        allowed_origins=[f"http://{host}:*" for host in hosts],
    )


def _add_library(
    server: Server[Any], library: AssistantLibrary, caller_of: Callable[[Context], Awaitable[Caller]]
) -> None:
    """Serve resources and prompts too."""

    async def list_resources(
        context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        with _as_mcp_errors():
            return types.ListResourcesResult(resources=library.resources(await caller_of(context)))

    async def list_templates(
        context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourceTemplatesResult:
        with _as_mcp_errors():
            return types.ListResourceTemplatesResult(resource_templates=library.templates(await caller_of(context)))

    async def read_resource(context: Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        with _as_mcp_errors():
            return types.ReadResourceResult(contents=[await library.read(await caller_of(context), params.uri)])

    async def list_prompts(context: Context, params: types.PaginatedRequestParams | None) -> types.ListPromptsResult:
        with _as_mcp_errors():
            return types.ListPromptsResult(prompts=library.prompts(await caller_of(context)))

    async def get_prompt(context: Context, params: types.GetPromptRequestParams) -> types.GetPromptResult:
        with _as_mcp_errors():
            return await library.prompt(await caller_of(context), params.name, params.arguments or {})

    server.add_request_handler("resources/list", types.PaginatedRequestParams, list_resources)
    server.add_request_handler("resources/templates/list", types.PaginatedRequestParams, list_templates)
    server.add_request_handler("resources/read", types.ReadResourceRequestParams, read_resource)
    server.add_request_handler("prompts/list", types.PaginatedRequestParams, list_prompts)
    server.add_request_handler("prompts/get", types.GetPromptRequestParams, get_prompt)


@contextmanager
def _as_mcp_errors() -> Iterator[None]:
    """Resources and prompts have no answer that is an error, as tools have: they end in an error of the protocol."""
    try:
        yield
    except PostroomError as error:
        said = _said(error)
        is_callers = isinstance(error, BadInput)
        code = (
            types.INVALID_PARAMS
            if is_callers
            else types.INVALID_REQUEST
            if isinstance(error, NotAllowed)
            else types.INTERNAL_ERROR
        )
        raise MCPError(code, said["message"], {"error": said}) from None


async def serve_stdio(
    toolbox: Toolbox,
    tokens: TokenVerifier,
    text: str,
    stdin: AsyncFile[str] | None = None,
    stdout: AsyncFile[str] | None = None,
) -> None:
    """Serve the tools of a token on standard input and output (or the given files) until the input ends.

    The token is looked up for every request, so one that was revoked is refused at once.
    """

    async def caller() -> Caller:
        token = await tokens.verified(text)
        if token is None:
            raise NotAllowed("The token was revoked or has expired; `postroom mcp --new-token` makes another.")
        return token.caller

    server = role_server(toolbox, (await caller()).role, lambda context: caller())
    async with stdio_server(stdin, stdout) as (requests, answers):
        await server.run(requests, answers, server.create_initialization_options())


def _listed(tool: Tool[Any, Any], name: str) -> ListedTool:
    hint = "" if name == tool.names[0] else f" The same as {tool.name}."
    return ListedTool(
        name=name,
        description=tool.description + hint,
        input_schema=tool.schema,
        annotations=types.ToolAnnotations(read_only_hint=tool.reads_only, open_world_hint=False),
    )


def _success(reply: Reply, *, is_fenced: bool) -> types.CallToolResult:
    """As an object, and as text for clients that only know text, and for language models, which read it as it is."""
    answer = reply.wire()
    text = fenced(answer) if is_fenced else json.dumps(answer, ensure_ascii=False, separators=(",", ":"))
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], structured_content=answer)


def _said(error: PostroomError) -> dict[str, Any]:
    """Without secrets: a refused value may be one that was put into the wrong field."""
    return {
        name: logs.clean(value) if isinstance(value, str) else value
        for name, value in error_to_wire(error)["error"].items()
    }


def _failure(error: PostroomError) -> types.CallToolResult:
    said = _said(error)
    text = types.TextContent(type="text", text=said["message"])
    return types.CallToolResult(content=[text], structured_content={"error": said}, is_error=True)

"""A tool is the same tool however it is called: directly, over HTTP, or over pipes as `postroom mcp` serves it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.server.stdio import stdio_server

from postroom.audit import AuditFilter, list_entries
from postroom.connectors.mcp_client import McpSession, OverMcp, http_client, over_http
from postroom.contract import backfill, mail
from postroom.contract.tool import Tools
from postroom.domain.errors import BadInput, Fatal, NotAllowed, NotFound
from postroom.domain.roles import Caller, Permission, Role, default_permissions
from postroom.switchboard.mcp_server import serve_stdio
from postroom.switchboard.tokens import TokenVerifier
from postroom.switchboard.toolbox import Direct
from tests.support.mail import ME, envelope
from tests.support.switchboards import Bench, in_a_task, served

OTHER = "you@example.org"
WANTED = {"connector_type": "gmail", "endpoint_identity": ME, "date_from": "2025-01-01", "date_to": "2025-12-31"}
Opener = Callable[..., Awaitable[Tools]]


@pytest.fixture(params=["direct", "http", "stdio"])
async def tools_of(request: pytest.FixtureRequest, bench: Bench) -> AsyncIterator[Opener]:
    """Tools as a caller of this role reaches them, by each way."""
    if request.param == "direct":

        async def direct(role: Role, **caller: Any) -> Tools:
            return Direct(bench.toolbox, Caller(role, "someone", **_permitted(role, caller)))

        yield direct
        return
    if request.param == "stdio":

        @asynccontextmanager
        async def each(role: Role, caller: dict[str, Any]) -> AsyncIterator[Tools]:
            text = await bench.token(role, name="someone", **_permitted(role, caller))
            async with over_pipes(bench, text) as tools:
                yield tools

        async with AsyncExitStack() as stack:

            async def piped(role: Role, **caller: Any) -> Tools:
                return await stack.enter_async_context(in_a_task(each(role, caller)))

            yield piped
        return
    async with in_a_task(served(bench)) as url, AsyncExitStack() as stack:

        async def over(role: Role, **token: Any) -> Tools:
            text = await bench.token(role, name="someone", **_permitted(role, token))
            return over_http(url, text, await stack.enter_async_context(http_client()))

        yield over


@asynccontextmanager
async def over_pipes(bench: Bench, text: str) -> AsyncIterator[Tools]:
    """The SDK's client and our server, with two pipes between them. Lines of JSON are the same at both ends."""
    asked, asking = _pipe()
    answered, answering = _pipe()
    tokens = TokenVerifier(bench.database, bench.queue.clock)
    serving = asyncio.create_task(serve_stdio(bench.toolbox, tokens, text, asked, answering))
    async with Client(stdio_server(answered, asking)) as client:

        @asynccontextmanager
        async def connect() -> AsyncIterator[McpSession]:
            yield client

        yield OverMcp(connect)
        await asking.aclose()
        await serving
        await answering.aclose()
    for end in (asked, answered):
        await end.aclose()


def _pipe() -> tuple[anyio.AsyncFile[str], anyio.AsyncFile[str]]:
    reading, writing = os.pipe()
    return anyio.wrap_file(os.fdopen(reading)), anyio.wrap_file(os.fdopen(writing, "w"))


def _permitted(role: Role, given: dict[str, Any]) -> dict[str, Any]:
    return {"permissions": default_permissions(role), **given}


@pytest.mark.req("BF-3")
async def test_role_and_permission_are_asked_for(tools_of: Opener) -> None:
    with pytest.raises(NotAllowed, match="not allowed for role agent"):
        await (await tools_of(Role.AGENT)).call(backfill.SWITCH, {"enabled": False})
    looking = await tools_of(Role.DASHBOARD, permissions=frozenset({Permission.READ}))
    with pytest.raises(NotAllowed, match="permission `backfill`"):
        await looking.call(backfill.SWITCH, {"enabled": False})
    assert (await looking.call(backfill.SWITCH_STATE, {})).backfill_enabled


@pytest.mark.req("BF-3")
async def test_a_caller_is_kept_to_its_mailbox(bench: Bench, tools_of: Opener) -> None:
    await bench.account()
    mine = await tools_of(Role.CONNECTOR, endpoint_identity=ME)
    assert (await mine.call(mail.ARCHIVE_LOOKUP, {"endpoint_identity": ME, "gmail_ids": ["a"]})).known == {}
    with pytest.raises(NotAllowed, match=r"speaks for me@example\.org only"):
        await mine.call(mail.ARCHIVE_LOOKUP, {"endpoint_identity": OTHER, "gmail_ids": ["a"]})
    [result] = (await mine.call(mail.INGEST, {"envelopes": [envelope("a", identity=OTHER)]})).results
    assert (result.status, "speaks for" in result.why) == ("rejected", True)
    steering = await tools_of(Role.DASHBOARD, endpoint_identity=OTHER)
    with pytest.raises(NotAllowed):
        await steering.call(backfill.CREATE, WANTED)


@pytest.mark.req("PL-4")
async def test_arguments_are_checked_and_named(tools_of: Opener) -> None:
    connector = await tools_of(Role.CONNECTOR)
    for field, given in (
        ("surprise", {"endpoint_identity": ME, "gmail_ids": [], "surprise": 1}),
        ("gmail_ids.0", {"endpoint_identity": ME, "gmail_ids": ["not an id"]}),
        ("gmail_ids", {"endpoint_identity": ME, "gmail_ids": ["a"] * 501}),
        ("endpoint_identity", {"gmail_ids": []}),
    ):
        with pytest.raises(BadInput) as refused:
            await connector.call(mail.ARCHIVE_LOOKUP, given)
        assert refused.value.field == field
    with pytest.raises(BadInput) as refused:
        await connector.call(mail.INGEST, {"envelopes": [{}] * 101})
    assert refused.value.field == "envelopes"
    nothing = {"job_id": "0199a1c2-7e5b-7abc-8def-0123456789ab"}
    dashboard = await tools_of(Role.DASHBOARD)
    with pytest.raises(NotFound, match="there is no backfill job"):
        await dashboard.call(backfill.PAUSE, nothing)


@pytest.mark.req("WB-6")
async def test_a_change_is_audited_under_its_caller_and_felt_by_the_next_call(bench: Bench, tools_of: Opener) -> None:
    await bench.account()
    dashboard, connector = await tools_of(Role.DASHBOARD), await tools_of(Role.CONNECTOR)
    lookup = mail.LookupArguments(endpoint_identity=ME, gmail_ids=["a"])
    assert (await connector.call(mail.ARCHIVE_LOOKUP, lookup)).backfill_enabled is True
    job_id = (await dashboard.call(backfill.CREATE, WANTED)).job_id
    assert (await dashboard.call(backfill.SWITCH, {"enabled": False})).changed_by == "someone"
    assert (await connector.call(mail.ARCHIVE_LOOKUP, lookup)).backfill_enabled is False
    entries = (await bench.database.read(lambda tx: list_entries(tx, AuditFilter()))).entries
    told = [(entry.action, entry.actor.role, entry.actor.name) for entry in entries if entry.actor.name == "someone"]
    assert told == [("switch.change", "dashboard", "someone"), ("backfill.create", "dashboard", "someone")]
    assert job_id in {entry.subject_id for entry in entries}


@pytest.mark.req("PL-6")
async def test_a_failure_that_nobody_foresaw_is_fatal_and_tells_nothing(
    bench: Bench, tools_of: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*given: object) -> None:
        raise RuntimeError("a secret of the inside")

    monkeypatch.setattr(type(bench.backfill), "switch", broken)
    with pytest.raises(Fatal, match="its log says why") as failed:
        await (await tools_of(Role.DASHBOARD)).call(backfill.SWITCH_STATE, {})
    assert "secret" not in str(failed.value)

"""`postroom mcp`: an assistant starts it and talks to it over its standard input and output."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from tests.support.commands import command, environment
from tests.support.mail import letter

OWNER = "me@example.org"


@pytest.fixture
async def home(tmp_path: Path) -> Path:
    """With three letters in the archive."""
    mail = tmp_path / "mail"
    mail.mkdir()
    for number in range(3):
        (mail / f"{number}.eml").write_bytes(letter(f"Lunch number {number}?", to=OWNER))
    done = await command(tmp_path / "home", "import", "eml", str(mail), "--account", OWNER)
    assert done.code == 0, done.stderr
    return tmp_path / "home"


@asynccontextmanager
async def assistant(home: Path, *options: str) -> AsyncIterator[Client]:
    """The SDK's own client, which starts the command and ends it."""
    arguments = ["-m", "postroom", "mcp", *options]
    async with Client(
        stdio_client(StdioServerParameters(command=sys.executable, args=arguments, env=environment(home, {})))
    ) as client:
        yield client


async def found(client: Client, query: str) -> list[dict[str, Any]]:
    answer = await client.call_tool("search_archive", {"query": query})
    assert not answer.is_error, answer.content
    assert answer.structured_content is not None
    hits: list[dict[str, Any]] = answer.structured_content["messages"]
    return hits


async def test_an_assistant_searches_and_can_change_nothing(home: Path) -> None:
    async with assistant(home) as client:
        names = {tool.name for tool in (await client.list_tools()).tools}
        assert "search_archive" in names
        assert not {name for name in names if name.startswith(("approval", "rules", "token", "backfill"))}
        one, *others = await found(client, "lunch")
        assert len(others) == 2
        read = await client.call_tool("read_message", {"id": one["key"]})
        assert (read.structured_content or {})["subject"] == one["subject"]
        refused = await client.call_tool("backfill.switch", {"enabled": True})
        assert refused.is_error
    listed = await command(home, "token", "list", "--json")
    assert [(token["role"], token["name"]) for token in listed.json] == [("agent", "postroom mcp")]


async def test_the_same_token_is_used_again_and_a_revoked_one_is_refused_at_once(home: Path) -> None:
    async with assistant(home) as client:
        assert await found(client, "lunch")
        [token] = (await command(home, "token", "list", "--json")).json
        assert (await command(home, "token", "revoke", token["id"])).code == 0
        refused = await client.call_tool("search_archive", {"query": "lunch"})
        assert (refused.is_error, "--new-token" in str(refused.content)) == (True, True)
    ended = await command(home, "mcp")
    assert (ended.code, "--new-token" in ended.stderr, ended.stdout) == (1, True, "")
    async with assistant(home, "--new-token") as client:
        assert await found(client, "lunch")
    async with assistant(home) as client:
        assert await found(client, "lunch")
    states = [token["state"] for token in (await command(home, "token", "list", "--json")).json]
    assert sorted(states) == ["good", "revoked"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_it_ends_on_a_signal_while_it_waits_for_input(home: Path, number: signal.Signals) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "postroom", "mcp"),
        env=environment(home, {}),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n')
    await process.stdin.drain()
    await process.stdout.readline()  # the answer to it: the command is waiting for more
    process.send_signal(number)
    assert await process.wait() == -number

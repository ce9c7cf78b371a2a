"""What speaks MCP is made by the first call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from postroom.domain.roles import Role
from postroom.switchboard.http import LateServers


class Server:
    def __init__(self) -> None:
        self.runs = 0

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        self.runs += 1
        try:
            yield
        finally:
            self.runs -= 1


async def test_the_first_calls_make_them_once_and_the_end_stops_them() -> None:
    made: list[dict[Role, Any]] = []

    def make() -> dict[Role, Any]:
        made.append({role: Server() for role in Role})
        return made[-1]

    late = LateServers(make)
    async with late.running():
        assert made == []
        servers = await asyncio.gather(*(late.of(role) for role in Role), late.of(Role.AGENT))
        assert servers == [*made[0].values(), made[0][Role.AGENT]]
        assert [server.runs for server in made[0].values()] == [1] * len(Role)
    assert [server.runs for server in made[0].values()] == [0] * len(Role)
    assert len(made) == 1


async def test_where_they_cannot_be_made_every_call_is_told() -> None:
    def make() -> dict[Role, Any]:
        raise ImportError("no such library")

    late = LateServers(make)
    async with late.running():
        for _ in range(2):
            with pytest.raises(ImportError, match="no such library"):
                await late.of(Role.AGENT)


async def test_a_caller_that_gives_up_does_not_stop_the_making() -> None:
    servers: dict[Role, Any] = {role: Server() for role in Role}
    late = LateServers(lambda: servers)
    async with late.running():
        impatient = asyncio.create_task(late.of(Role.AGENT))
        await asyncio.sleep(0)
        impatient.cancel()
        await late.of(Role.AGENT)
        assert servers[Role.AGENT].runs == 1

"""A service and its database, started in the wrong order."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from postroom import settings
from postroom.app import open_app
from postroom.domain.clock import SystemClock
from postroom.domain.errors import Retryable
from tests.support.databases import PostgresFactory, PostgresServer, postgres_server


class Meanwhile(SystemClock):
    """While somebody waits, the server comes up."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self.waits = 0

    async def sleep(self, seconds: float) -> None:
        self.waits += 1
        await asyncio.to_thread(self._server.start)


@pytest.mark.req("PL-2", "PL-3")
async def test_a_service_waits_for_its_database_and_a_command_does_not(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with postgres_server() as server:
        url = await asyncio.to_thread(lambda: PostgresFactory(server.url).url())
        monkeypatch.setenv("POSTROOM_DATABASE__URL", url)
        monkeypatch.setenv("POSTROOM_ARCHIVE__STORE", "database")
        server.crash()
        with pytest.raises(Retryable, match="database"):
            async with open_app(settings.load()):
                pass
        clock = Meanwhile(server)
        async with open_app(settings.load(), clock, patience_s=60.0) as app:
            await app.declare_schedules()
        assert clock.waits > 0

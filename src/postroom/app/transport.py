"""How a worker's passes reach the Switchboard: in this process if it can own the archive, else over HTTP.

Passes call tools and nothing else, whichever transport carries the calls.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import datetime, timedelta
from typing import Any

import httpx2

from postroom.app.installation import App
from postroom.app.serving import running_address, toolbox_of
from postroom.archive.service import ArchiveService
from postroom.archive.status import OwnedElsewhere
from postroom.connectors.mcp_client import http_client, over_http
from postroom.contract.tool import A, R, ToolSignature
from postroom.domain.roles import Caller, Role
from postroom.switchboard.tokens import AccessToken, NewToken, create_token, revoke_token
from postroom.switchboard.toolbox import Direct

PURPOSE = "postroom worker"
_TOKEN_LIFE = timedelta(hours=12)


class SwitchboardTransport:
    """To be used in its block: it holds connections, and a token that ends with it."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._stack = AsyncExitStack()
        self._name = f"worker on {socket.gethostname()[:60]}"
        self._served: tuple[ArchiveService, Direct] | None = None
        self._token: tuple[AccessToken, str] | None = None
        self._one_token = asyncio.Lock()

    async def __aenter__(self) -> SwitchboardTransport:
        self._search = self._stack.enter_context(self._app.archive.backend.search(self._app.clock))
        self._http: httpx2.AsyncClient = await self._stack.enter_async_context(http_client())
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._give_token_back()
        await self._stack.aclose()

    async def call(self, tool: ToolSignature[A, R], arguments: A | Mapping[str, Any]) -> R:
        async with AsyncExitStack() as stack:
            try:
                archive = await stack.enter_async_context(self._app.archive.owned(PURPOSE))
            except OwnedElsewhere:
                address = self._app.settings.switchboard.url or running_address(self._app.settings.home)
                if address is None:
                    raise
                return await over_http(address, await self._token_text(), self._http).call(tool, arguments)
            return await self._direct(archive).call(tool, arguments)

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Own the archive for the length of a job, if this process can."""
        async with AsyncExitStack() as stack:
            with suppress(OwnedElsewhere):  # each call finds its way to the owner, or says who it is
                await stack.enter_async_context(self._app.archive.owned(PURPOSE))
            yield

    def _direct(self, archive: ArchiveService) -> Direct:
        if self._served is None or self._served[0] is not archive:
            toolbox = toolbox_of(self._app, archive, self._search)
            self._served = archive, Direct(toolbox, Caller(Role.CONNECTOR, self._name))
        return self._served[1]

    async def _token_text(self) -> str:
        """A token of this worker's own; renewed before it ends. Passes that begin together share it."""
        async with self._one_token:
            now = self._app.clock.now()
            if self._token is None or _age(self._token[0], now) > _TOKEN_LIFE:
                await self._give_token_back()
                wanted = NewToken(Role.CONNECTOR, self._name, expires_days=1)
                self._token = await self._app.database.write(lambda tx: create_token(tx, wanted, now))
            return self._token[1]

    async def _give_token_back(self) -> None:
        if self._token is not None:
            token, self._token = self._token[0], None
            await self._app.database.write(lambda tx: revoke_token(tx, token.id, self._app.clock.now()))


def _age(token: AccessToken, now: datetime) -> timedelta:
    return now - token.created_at

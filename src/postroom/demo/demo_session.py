"""How the steps act and look: through the services that commands and pages use, and over MCP as an agent does.

It needs only the installation and an address, so it works in the process that does the work or in another.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import select

from postroom.accounts.account import Account, get_account
from postroom.app import App
from postroom.audit import Actor
from postroom.connectors.mcp_client import http_client, over_http
from postroom.contract.tool import A, R, Tools, ToolSignature
from postroom.db import Tx
from postroom.db.tables.queue import jobs
from postroom.demo.stand_ins import DemoLetter, StandIns
from postroom.domain.errors import Fatal
from postroom.domain.roles import Caller, Role
from postroom.switchboard.tokens import NewToken, create_token, revoke_token

T = TypeVar("T")

DEMO_CALLER = Caller(Role.DASHBOARD, "the demonstration")
_LOOK_AGAIN_S = 0.1
_PATIENCE_S = 180.0
_MOST_LOOKED_AT, _MOST_REPORTED = 100, 2


@dataclass(frozen=True)
class SoFar:
    """Not there yet. As long as this changes, it is worth waiting for, on a slow computer too."""

    amount: object


@dataclass(frozen=True)
class DemoSession:
    app: App
    outside: StandIns
    url: str
    """Where the dashboard is."""
    _agent: Tools

    @property
    def email(self) -> str:
        return self.outside.gmail.email

    @property
    def who(self) -> Actor:
        return Actor.of(DEMO_CALLER)

    async def read(self, transaction: Callable[[Tx], T]) -> T:
        return await self.app.database.read(transaction)

    async def write(self, transaction: Callable[[Tx], T]) -> T:
        return await self.app.database.write(transaction)

    async def account(self) -> Account:
        return await self.read(lambda tx: get_account(tx, self.email))

    async def ask(self, tool: ToolSignature[A, R], **arguments: Any) -> R:
        """As an agent, over MCP."""
        return await self._agent.call(tool, arguments)

    def deliver(self, *letters: DemoLetter) -> list[str]:
        """They arrive in the mailbox now; their ids there."""
        return [self.outside.gmail.control.deliver(letter.raw(self.email)) for letter in letters]

    def labels_at_source(self, gmail_id: str) -> frozenset[str]:
        """As the mailbox has them, by name, asked behind Gmail's back."""
        return self.outside.gmail.control.labels_of(gmail_id)

    async def until(self, look: Callable[[], Awaitable[T | SoFar | None]], what: str) -> T:
        """Look until there is something to see. While nothing moves, patience ends; then something is broken."""
        seen: object = None
        try:
            async with asyncio.timeout(_PATIENCE_S) as patience:
                while True:
                    found = await look()
                    if found is not None and not isinstance(found, SoFar):
                        return found
                    if found != seen:
                        seen = found
                        patience.reschedule(asyncio.get_running_loop().time() + _PATIENCE_S)
                    await asyncio.sleep(_LOOK_AGAIN_S)
        except TimeoutError:
            troubles = await self.read(_troubles)
            said = f" Its jobs say: {'; '.join(troubles)}" if troubles else ""
            where = f"The demonstration waited for {what}, and nothing moved for {_PATIENCE_S:.0f} seconds."
            raise Fatal(f"{where}{said}") from None


def _troubles(tx: Tx) -> list[str]:
    """The last errors of jobs, each once: the reason why something does not come about."""
    with_error = select(jobs.c.type, jobs.c.last_error).where(jobs.c.last_error.is_not(None))
    rows = tx.execute(with_error.order_by(jobs.c.seq.desc()).limit(_MOST_LOOKED_AT)).all()
    return list(dict.fromkeys(f"{row.type}: {row.last_error}" for row in rows))[:_MOST_REPORTED]


@asynccontextmanager
async def open_demo_session(app: App, outside: StandIns, url: str) -> AsyncIterator[DemoSession]:
    """With a token of its own for MCP, which ends with the block."""
    new, now = NewToken(Role.AGENT, "the demonstration", expires_days=1), app.clock.now()
    async with AsyncExitStack() as stack:
        token, text = await app.database.write(lambda tx: create_token(tx, new, now))
        http = await stack.enter_async_context(http_client())
        yield DemoSession(app, outside, url, over_http(f"{url}/mcp", text, http))
        await app.database.write(lambda tx: revoke_token(tx, token.id, app.clock.now()))

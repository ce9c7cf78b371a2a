"""One request of a visitor that the gate let in, and what a page or an API route does with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, TypeVar

from fastapi import Depends
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse

from postroom.app.installation import App
from postroom.app.serving import House
from postroom.audit import Actor
from postroom.connectors.calling import call, in_memory
from postroom.dashboard.forms import Form
from postroom.dashboard.live.hub import Hub
from postroom.dashboard.logins import Logins
from postroom.dashboard.rendering import render
from postroom.dashboard.security import sessions
from postroom.dashboard.security.failed_logins import FailedLogins
from postroom.dashboard.security.hosts import Hosts
from postroom.dashboard.security.passphrase import Hashing
from postroom.dashboard.security.seal import Seal
from postroom.dashboard.security.throttle import Slowing
from postroom.dashboard.security.visitor import Visitor, require_visitor, visitor_of
from postroom.db import Tx
from postroom.switchboard.protocol import server_for

T = TypeVar("T")

LIVE_HEADER = "x-live"
"""Sent by the script that renews a part of a page: what is said once is not said to it."""


@dataclass(frozen=True)
class Desk:
    """What the dashboard has for all requests together."""

    house: House
    hub: Hub
    hosts: Hosts
    hashing: Hashing
    failures: FailedLogins
    slowing: Slowing = field(default_factory=Slowing)
    seal: Seal = field(default_factory=Seal)
    trials: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    """One rule is tried over the archive at a time: it keeps a core busy for seconds."""
    logins: Logins = field(default_factory=Logins)


class Visit:
    def __init__(self, request: Request) -> None:
        self.request = request
        self.desk: Desk = request.app.state.desk
        self.now: datetime = self.app.clock.now()

    @property
    def app(self) -> App:
        return self.desk.house.app

    @property
    def visitor(self) -> Visitor:
        return require_visitor(self.request.scope)

    @property
    def actor(self) -> Actor:
        """For the audit log."""
        return self.visitor.actor

    async def read(self, transaction: Callable[[Tx], T]) -> T:
        return await self.app.database.read(transaction)

    async def write(self, transaction: Callable[[Tx], T]) -> T:
        return await self.app.database.write(transaction)

    async def form(self) -> Form:
        return Form.sent(await self.request.form())

    async def call(self, tool: str, arguments: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """A tool of the Switchboard, as the dashboard's role; its refusal is raised as our error."""
        server = server_for(self.desk.house.toolbox, self.visitor.caller)
        return await call(in_memory(server), tool, arguments or {})

    async def page(self, template: str, section: str | None, status: int = 200, **values: Any) -> HTMLResponse:
        """A page of a section of the navigation. `form` and `notice` are always there for the template."""
        shown = {"form": Form(), "notice": await self._notice(), "visitor": visitor_of(self.request.scope), **values}
        html = render(template, section=section, now=self.now, path=self.request.url.path, **shown)
        return HTMLResponse(html, status)

    async def go(self, path: str, said: str | None = None, level: str = "done") -> RedirectResponse:
        """After a change: to the page that shows it, which says once what was done."""
        session = self.visitor.session
        if said is not None and session is not None:
            notice = {"level": level, "text": said}
            await self.write(lambda tx: sessions.leave_notice(tx, session.id, notice))
        return RedirectResponse(path, 303)

    async def _notice(self) -> Mapping[str, Any] | None:
        visitor = visitor_of(self.request.scope)
        session = None if visitor is None else visitor.session
        if session is None or session.notice is None or LIVE_HEADER in self.request.headers:
            return None
        await self.write(lambda tx: sessions.leave_notice(tx, session.id, None))
        return session.notice


Here = Annotated[Visit, Depends(Visit)]
"""`async def page(here: Here) -> Response` is how every route begins."""

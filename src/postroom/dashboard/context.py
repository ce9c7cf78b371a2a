"""The request context: one request that passed the gate, the services of the dashboard, and what a route does with
them (read, write, call a tool, render a page, redirect with a notice).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from fastapi import Depends
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse

from postroom.app.installation import App
from postroom.app.serving import SharedServices
from postroom.audit import Actor
from postroom.contract.tool import A, R, ToolSignature
from postroom.dashboard.display.rendering import render
from postroom.dashboard.forms import Form
from postroom.dashboard.live_updates import LiveHub
from postroom.dashboard.security import sessions
from postroom.dashboard.security.gate import Hosts
from postroom.dashboard.security.passphrase import FailedLogins, LoginDelay, PassphraseHasher
from postroom.dashboard.security.sessions import Signer, Visitor, require_visitor, visitor_of
from postroom.db import Tx
from postroom.domain.roles import Caller
from postroom.switchboard.toolbox import Direct

if TYPE_CHECKING:
    from postroom.dashboard.accounts import GoogleLogins

T = TypeVar("T")

LIVE_HEADER = "x-live"
"""Sent by the script that refreshes a part of a page; such a request must not use up the notice."""


@dataclass(frozen=True)
class DashboardServices:
    """What all requests of the dashboard share."""

    shared: SharedServices
    hub: LiveHub
    hosts: Hosts
    failed_logins: FailedLogins
    google_logins: GoogleLogins
    hasher: PassphraseHasher = field(default_factory=PassphraseHasher)
    login_delay: LoginDelay = field(default_factory=LoginDelay)
    signer: Signer = field(default_factory=Signer)
    trial_slot: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    """One rule is tried over the archive at a time: it keeps a core busy for seconds."""


class RequestContext:
    def __init__(self, request: Request) -> None:
        self.request = request
        self.services: DashboardServices = request.app.state.services
        self.now: datetime = self.app.clock.now()
        self.is_proved = False
        """The passphrase came with this request."""

    @property
    def app(self) -> App:
        return self.services.shared.app

    @property
    def visitor(self) -> Visitor:
        return require_visitor(self.request.scope)

    @property
    def caller(self) -> Caller:
        """For tools: the visitor, who may have given the passphrase a short time ago."""
        visitor, minutes = self.visitor, self.app.settings.dashboard.proof_minutes
        was_proved = visitor.session is not None and visitor.session.is_proved(minutes, self.now)
        return replace(visitor.caller, is_proved=was_proved or self.is_proved)

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

    async def call(self, tool: ToolSignature[A, R], arguments: A | Mapping[str, Any]) -> R:
        """Call a tool as this visitor; a refusal is raised as our error."""
        return await Direct(self.services.shared.toolbox, self.caller).call(tool, arguments)

    async def page(self, template: str, section: str | None, status: int = 200, **values: Any) -> HTMLResponse:
        """A page in a section of the navigation. Templates can always use `form` and `notice`."""
        shown = {"form": Form(), "notice": await self._notice(), "visitor": visitor_of(self.request.scope), **values}
        html = render(template, section=section, now=self.now, path=self.request.url.path, **shown)
        return HTMLResponse(html, status)

    async def go(self, path: str, message: str | None = None, level: str = "done") -> RedirectResponse:
        """After a change: redirect to the page that shows it, with a message that it shows once."""
        session = self.visitor.session
        if message is not None and session is not None:
            notice = {"level": level, "text": message}
            await self.write(lambda tx: sessions.leave_notice(tx, session.id, notice))
        return RedirectResponse(path, 303)

    async def _notice(self) -> Mapping[str, Any] | None:
        visitor = visitor_of(self.request.scope)
        session = None if visitor is None else visitor.session
        if session is None or session.notice is None or LIVE_HEADER in self.request.headers:
            return None
        await self.write(lambda tx: sessions.leave_notice(tx, session.id, None))
        return session.notice


Here = Annotated[RequestContext, Depends(RequestContext)]
"""`async def page(here: Here) -> Response` is how every route begins."""

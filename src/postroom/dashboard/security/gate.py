"""Every request passes here before any page sees it: known host and visitor, no forgery, bounded, text.

What is open to strangers is listed; everything else needs a login or a token, whether or not there is such a page, so
that no page can forget to ask.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, nullcontext

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from postroom.dashboard import problems
from postroom.dashboard.security import bodies, characters, cookies, forgery, sessions
from postroom.dashboard.security.headers import dressed
from postroom.dashboard.security.hosts import Hosts
from postroom.dashboard.security.visitor import KEY, OWNER, Visitor
from postroom.db import Database
from postroom.domain.clock import Clock
from postroom.domain.errors import NotAllowed, PostroomError
from postroom.domain.roles import Role
from postroom.settings import DashboardSettings
from postroom.switchboard import tokens
from postroom.switchboard.intake import Turns
from postroom.telemetry import logs
from postroom.webserver import mark_known

log = logs.get(__name__)

OPEN = frozenset({"/login", "/welcome"})
STATIC = "/static/"
API = "/api/"
SENDER = "postroom.sender"
_AT_ONCE = 8
"""Requests of one login or token that change something."""


class Gate:
    def __init__(
        self, inner: ASGIApp, database: Database, clock: Clock, settings: DashboardSettings, hosts: Hosts
    ) -> None:
        self._inner = inner
        self._database = database
        self._clock = clock
        self._settings = settings
        self._hosts = hosts
        self._turns = Turns()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        send = dressed(send, is_secure=self._hosts.is_secure)
        try:
            visitor = await self._identified(scope)
            async with self._turn(scope):
                await self._pass(visitor, scope, receive, send)
        except PostroomError as error:
            await problems.answer(scope, error)(scope, receive, send)

    async def _pass(self, visitor: Visitor | None, scope: Scope, receive: Receive, send: Send) -> None:
        receive = await self._checked_body(visitor, scope, receive)
        try:
            await self._inner(scope, receive, send)
        except Exception:  # it was answered with a page, and is told to the log and not to the server
            log.exception("dashboard.failed", path=scope["path"])

    def _turn(self, scope: Scope) -> AbstractAsyncContextManager[None]:
        """Only what changes something waits its turn: an open page keeps a request open for its stream."""
        sender = scope.get(SENDER)
        if sender is None or scope["method"] in forgery.SAFE:
            return nullcontext()
        return self._turns.taken(sender, _AT_ONCE)

    async def _identified(self, scope: Scope) -> Visitor | None:
        request = Request(scope)
        if not self._hosts.knows(request.headers.get("host", "")):
            raise problems.UnknownHost()
        visitor = await self._visitor(request)
        scope[KEY] = visitor
        if visitor is None and not is_open(scope["path"]):
            raise problems.Unknown()
        if visitor is not None:
            mark_known(scope)
        characters.check_address(scope)
        return visitor

    async def _checked_body(self, visitor: Visitor | None, scope: Scope, receive: Receive) -> Receive:
        if scope["method"] in forgery.SAFE:
            return receive
        forgery.check_origin(Request(scope), self._hosts)
        body = await bodies.read_body(receive, bodies.STRANGERS_BYTES if visitor is None else bodies.MOST_BYTES)
        characters.check_body(body)
        bodies.check_values(body)
        if visitor is not None and visitor.session is not None:
            await forgery.check_token(Request(scope, bodies.again(body, receive)), visitor.secret)
        return bodies.again(body, receive)

    async def _visitor(self, request: Request) -> Visitor | None:
        """A token counts alone, and only for the API: pages are for people."""
        if "authorization" in request.headers:
            return await self._program(request)
        secret = cookies.read(request, self._hosts)
        if secret is None:
            return None
        now = self._clock.now()
        session = await self._database.read(lambda tx: sessions.find_session(tx, secret, self._settings, now))
        if session is None:
            return None
        if session.needs_noting(now):
            await self._database.write(lambda tx: sessions.note_seen(tx, session.id, now))
        request.scope[SENDER] = session.id
        return Visitor(OWNER, session, secret)

    async def _program(self, request: Request) -> Visitor | None:
        scheme, _, text = request.headers["authorization"].partition(" ")
        if scheme.lower() != "bearer" or not request.url.path.startswith(API):
            return None
        now = self._clock.now()
        token = await self._database.read(lambda tx: tokens.verify_token(tx, text.strip(), now))
        if token is None:
            return None
        if token.role is not Role.DASHBOARD:
            raise NotAllowed(f"A token of role {token.role} does not open the dashboard's API.")
        if tokens.needs_noting(token, now):
            await self._database.write(lambda tx: tokens.note_use(tx, token.id, now))
        request.scope[SENDER] = token.id
        return Visitor(token.caller)


def is_open(path: str) -> bool:
    return path in OPEN or path.startswith(STATIC)

"""Every request passes here before any page sees it: known host and visitor, no forgery, bounded, text.

What is open to strangers is listed; everything else needs a login or a token, whether or not there is such a page, so
that no page can forget to ask.
"""

from __future__ import annotations

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
from postroom.telemetry import logs

log = logs.get(__name__)

OPEN = frozenset({"/login", "/welcome"})
STATIC = "/static/"
API = "/api/"


class Gate:
    def __init__(
        self, inner: ASGIApp, database: Database, clock: Clock, settings: DashboardSettings, hosts: Hosts
    ) -> None:
        self._inner = inner
        self._database = database
        self._clock = clock
        self._settings = settings
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        send = dressed(send, is_secure=self._hosts.is_secure)
        try:
            receive = await self._admitted(scope, receive)
        except PostroomError as error:
            await problems.answer(scope, error)(scope, receive, send)
            return
        try:
            await self._inner(scope, receive, send)
        except Exception:  # it was answered with a page, and is told to the log and not to the server
            log.exception("dashboard.failed", path=scope["path"])

    async def _admitted(self, scope: Scope, receive: Receive) -> Receive:
        request = Request(scope)
        if not self._hosts.knows(request.headers.get("host", "")):
            raise problems.UnknownHost()
        visitor = await self._visitor(request)
        scope[KEY] = visitor
        if visitor is None and not is_open(scope["path"]):
            raise problems.Unknown()
        characters.check_address(scope)
        if scope["method"] in forgery.SAFE:
            return receive
        forgery.check_origin(request, self._hosts)
        body = await bodies.read_body(receive)
        characters.check_body(body)
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
        return Visitor(token.caller)


def is_open(path: str) -> bool:
    return path in OPEN or path.startswith(STATIC)

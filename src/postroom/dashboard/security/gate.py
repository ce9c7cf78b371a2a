"""Every request passes here before a page sees it: known host, known visitor, no forgery, a bounded body of text.

What is open to strangers is listed; everything else needs a login or a token, whether or not such a page exists, so
that no page can forget to ask.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, nullcontext

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from postroom.dashboard import problems
from postroom.dashboard.security import request_checks, sessions
from postroom.dashboard.security.request_checks import Hosts, with_security_headers
from postroom.dashboard.security.sessions import OWNER, VISITOR_KEY, Visitor
from postroom.db import Database
from postroom.domain.clock import Clock
from postroom.domain.errors import NotAllowed, PostroomError
from postroom.domain.roles import Role
from postroom.settings import DashboardSettings
from postroom.switchboard import tokens
from postroom.switchboard.request_limits import RequestSlots
from postroom.telemetry import logs
from postroom.webserver import mark_known

log = logs.get(__name__)

OPEN = frozenset({"/login", "/welcome"})
STATIC = "/static/"
API = "/api/"
SENDER = "postroom.sender"
_AT_ONCE = 8
"""Requests of one login or token that change something."""


class RequestGate:
    def __init__(
        self, inner: ASGIApp, database: Database, clock: Clock, settings: DashboardSettings, hosts: Hosts
    ) -> None:
        self._inner = inner
        self._database = database
        self._clock = clock
        self._settings = settings
        self._hosts = hosts
        self._turns = RequestSlots()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        send = with_security_headers(send, is_secure=self._hosts.is_secure)
        try:
            visitor = await self._identified(scope)
            async with self._turn(scope):
                await self._pass(visitor, scope, receive, send)
        except PostroomError as error:
            await problems.error_response(scope, error)(scope, receive, send)

    async def _pass(self, visitor: Visitor | None, scope: Scope, receive: Receive, send: Send) -> None:
        receive = await self._checked_body(visitor, scope, receive)
        try:
            await self._inner(scope, receive, send)
        except Exception:  # it was answered with a page, and is told to the log and not to the server
            log.exception("dashboard.failed", path=scope["path"])

    def _turn(self, scope: Scope) -> AbstractAsyncContextManager[None]:
        """Only what changes something waits its turn: an open page keeps a request open for its stream."""
        sender = scope.get(SENDER)
        if sender is None or scope["method"] in request_checks.SAFE_METHODS:
            return nullcontext()
        return self._turns.taken(sender, _AT_ONCE)

    async def _identified(self, scope: Scope) -> Visitor | None:
        request = Request(scope)
        if not self._hosts.knows(request.headers.get("host", "")):
            raise problems.UnknownHost()
        visitor = await self._visitor(request)
        scope[VISITOR_KEY] = visitor
        if visitor is None and not is_open(scope["path"]):
            raise problems.NotLoggedIn()
        if visitor is not None:
            mark_known(scope)
        request_checks.check_address(scope)
        return visitor

    async def _checked_body(self, visitor: Visitor | None, scope: Scope, receive: Receive) -> Receive:
        if scope["method"] in request_checks.SAFE_METHODS:
            return receive
        request_checks.check_origin(Request(scope), self._hosts)
        body = await request_checks.read_body(
            receive, request_checks.STRANGERS_BYTES if visitor is None else request_checks.MOST_BYTES
        )
        request_checks.check_body(body)
        request_checks.check_values(body)
        if visitor is not None and visitor.session is not None:
            await request_checks.check_csrf_token(
                Request(scope, request_checks.replay_body(body, receive)), visitor.secret
            )
        return request_checks.replay_body(body, receive)

    async def _visitor(self, request: Request) -> Visitor | None:
        """A token counts alone, and only for the API: pages are for people."""
        if "authorization" in request.headers:
            return await self._program(request)
        secret = request_checks.read_session_cookie(request, self._hosts)
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

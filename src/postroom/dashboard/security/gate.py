"""The gate that every request passes before a page sees it: known host, known visitor, no forgery, a bounded body.

What is open to strangers is listed; everything else needs a login or a token, whether or not such a page exists, so
that no page can forget to ask. Cookie names contain the port: browsers share cookies among all ports of a machine. A
NUL character is refused wherever it is sent, because PostgreSQL cannot store it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from postroom.dashboard.security import sessions
from postroom.dashboard.security.sessions import OWNER, VISITOR_KEY, Visitor
from postroom.db import Database
from postroom.domain.clock import Clock
from postroom.domain.errors import BadInput, NotAllowed, PostroomError, Retryable
from postroom.domain.roles import Role
from postroom.settings import DashboardSettings, Settings
from postroom.switchboard import tokens
from postroom.switchboard.http import is_loopback
from postroom.switchboard.request_limits import RequestSlots, ValueCounter
from postroom.telemetry import logs
from postroom.webserver import mark_known, mark_stream

_LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})


@dataclass(frozen=True, slots=True)
class Hosts:
    names: frozenset[str]
    """With any port: it may be forwarded."""
    public: str | None = None
    """Host, with its port, of the address that people use."""
    is_secure: bool = False

    @classmethod
    def of(cls, settings: Settings) -> Hosts:
        listening = settings.switchboard.host
        own = f"[{listening}]" if ":" in listening else listening
        names = _LOOPBACK if is_loopback(listening) else frozenset({own})
        if settings.dashboard.url is None:
            return cls(names)
        public = urlsplit(settings.dashboard.url)
        return cls(names, public.netloc.lower(), public.scheme == "https")

    def knows(self, host: str) -> bool:
        return host.lower() == self.public or _host_name(host) in self.names


def _host_name(host: str) -> str:
    """Without its port."""
    name, colon, port = host.lower().rpartition(":")
    return name if colon and port.isdecimal() else host.lower()


def port_of(host: str) -> int | None:
    _, colon, port = host.rpartition(":")
    return int(port) if colon and port.isdecimal() and len(port) <= 5 else None


CONTENT_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "manifest-src 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "frame-src 'self'",
        "base-uri 'none'",
    )
)
_HEADERS = {
    "content-security-policy": CONTENT_POLICY,
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "cache-control": "no-store",
    # A DNS lookup for a link would tell the owner of its host that the mail was opened.
    "x-dns-prefetch-control": "off",
}
_ONLY_TLS = "max-age=31536000"


def with_security_headers(send: Send, *, is_secure: bool) -> Send:
    wanted = _HEADERS | ({"strict-transport-security": _ONLY_TLS} if is_secure else {})

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in wanted.items():
                headers.setdefault(name, value)
        await send(message)

    return sending


MOST_BYTES = 1_048_576
STRANGERS_BYTES = 16_384
"""Enough for the login form."""
UPLOAD_BYTES = 20 << 20
"""Mail with its attachments, where a person writes it."""
UPLOADS = ("/write/reply", "/write/forward")
STREAMED = "/archive/upload"
"""Files to import. The page reads them from the stream, checks the token and keeps to the limit (`uploads.py`)."""
MOST_VALUES = 50_000
_PATIENCE_S = 30.0


class RequestTooLarge(BadInput):
    """The request is too large."""

    def __init__(self, most: int) -> None:
        super().__init__("body", f"is larger than {most:,} bytes, the maximum here")


async def read_body(receive: Receive, most: int) -> bytes:
    try:
        async with asyncio.timeout(_PATIENCE_S):
            return await _read_chunks(receive, most)
    except TimeoutError:
        raise Retryable("The request did not arrive in time.") from None


def check_values(body: bytes) -> None:
    """JSON of many small values takes far more memory than its size suggests."""
    if body.lstrip()[:1] in (b"{", b"["):
        ValueCounter(MOST_VALUES).feed(body)


async def _read_chunks(receive: Receive, most: int) -> bytes:
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise Retryable("The request was interrupted.")
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
        if size > most:
            raise RequestTooLarge(most)
        if not message.get("more_body", False):
            return b"".join(chunks)


def replay_body(body: bytes, receive: Receive) -> Receive:
    """The body as the first message, then the remaining messages."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receiving() -> Message:
        return messages.pop() if messages else await receive()

    return receiving


_NUL_PROBLEM = "has a NUL character"
_IN_JSON = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")


def check_address(scope: Scope) -> None:
    if "\0" in scope["path"]:
        raise BadInput("path", _NUL_PROBLEM)
    if b"%00" in scope["query_string"]:
        raise BadInput("query", _NUL_PROBLEM)


def check_body(body: bytes) -> None:
    """Finds NUL in JSON, written as an escape; forms are checked field by field."""
    if _IN_JSON.search(body):
        raise BadInput("body", _NUL_PROBLEM)


_DAY_S = 86_400
_DEVICE_DAYS = 365


def read_session_cookie(request: Request, hosts: Hosts) -> str | None:
    return request.cookies.get(_cookie_name(request, hosts))


def set_session_cookie(
    response: Response, request: Request, hosts: Hosts, settings: DashboardSettings, secret: str
) -> None:
    response.set_cookie(
        _cookie_name(request, hosts),
        secret,
        max_age=settings.session_days * _DAY_S,
        httponly=True,
        samesite="lax",
        secure=hosts.is_secure,
    )


def clear_session_cookie(response: Response, request: Request, hosts: Hosts) -> None:
    response.delete_cookie(_cookie_name(request, hosts), httponly=True, samesite="lax", secure=hosts.is_secure)


def read_device_cookie(request: Request, hosts: Hosts) -> str | None:
    return request.cookies.get(_cookie_name(request, hosts, "device"))


def set_device_cookie(response: Response, request: Request, hosts: Hosts, secret: str) -> None:
    """Stays after a logout."""
    response.set_cookie(
        _cookie_name(request, hosts, "device"),
        secret,
        max_age=_DEVICE_DAYS * _DAY_S,
        httponly=True,
        samesite="lax",
        secure=hosts.is_secure,
    )


def _cookie_name(request: Request, hosts: Hosts, kind: str = "") -> str:
    kind = kind and f"_{kind}"
    if hosts.is_secure:
        return f"__Host-postroom{kind}"
    return f"postroom{kind}_{port_of(request.headers.get('host', '')) or 80}"


CSRF_FIELD, CSRF_HEADER = "csrf", "x-csrf-token"
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_OWN = ("same-origin", "none")
_FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")


class ForgedRequest(NotAllowed):
    """The request did not come from a page of this session. Nothing was changed; reload the page and try again."""


def check_origin(request: Request, hosts: Hosts) -> None:
    """Checks what the browser reports about the page that sent the request; programs report nothing.

    The origin is `null` if our referrer policy hides it; such browsers send `sec-fetch-site` instead.
    """
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None:
        if site not in _OWN:
            raise ForgedRequest()
    elif origin is not None and origin != "null":
        netloc = urlsplit(origin).netloc.lower()
        if netloc not in (request.headers.get("host", "").lower(), hosts.public):
            raise ForgedRequest()


async def check_csrf_token(request: Request, session_secret: str) -> None:
    offered = request.headers.get(CSRF_HEADER)
    if offered is None and request.headers.get("content-type", "").partition(";")[0].strip().lower() in _FORMS:
        offered = await _csrf_field(request)
    if offered is None or not sessions.is_csrf_token(offered, session_secret):
        raise ForgedRequest()


async def _csrf_field(request: Request) -> str | None:
    try:
        async with request.form() as form:  # files that came with it are closed
            value = form.get(CSRF_FIELD)
    except (HTTPException, MultiPartException):
        raise BadInput("body", "is not a valid form") from None
    return value if isinstance(value, str) else None


log = logs.get(__name__)

OPEN = frozenset({"/login", "/welcome", "/manifest.webmanifest"})
STATIC = "/static/"
API = "/api/"
SENDER = "postroom.sender"
_AT_ONCE = 8
"""Requests of one login or token that change something."""


class NotLoggedIn(NotAllowed):
    """Log in first. A program sends a token of role dashboard in its Authorization header."""


class HostNotServed(NotAllowed):
    """The dashboard is not known by this name. Use the address that it listens on, or set `dashboard.url`."""


class RequestGate:
    def __init__(
        self,
        inner: ASGIApp,
        database: Database,
        clock: Clock,
        settings: DashboardSettings,
        hosts: Hosts,
        refuse: Callable[[Scope, Exception], Response],
    ) -> None:
        """`refuse` makes the reply to a request that raised an error here."""
        self._inner = inner
        self._refuse = refuse
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
            await self._refuse(scope, error)(scope, receive, send)

    async def _pass(self, visitor: Visitor | None, scope: Scope, receive: Receive, send: Send) -> None:
        receive = await self._checked_body(visitor, scope, receive)
        try:
            await self._inner(scope, receive, send)
        except Exception:  # already answered with a page; it belongs in our log, not in the web server's
            log.exception("dashboard.failed", path=scope["path"])

    def _turn(self, scope: Scope) -> AbstractAsyncContextManager[None]:
        """Only changes are limited: an open page keeps a request open for its stream."""
        sender = scope.get(SENDER)
        if sender is None or scope["method"] in SAFE_METHODS:
            return nullcontext()
        return self._turns.taken(sender, _AT_ONCE)

    async def _identified(self, scope: Scope) -> Visitor | None:
        request = Request(scope)
        if not self._hosts.knows(request.headers.get("host", "")):
            raise HostNotServed()
        visitor = await self._visitor(request)
        scope[VISITOR_KEY] = visitor
        if visitor is None and not is_open(scope["path"]):
            raise NotLoggedIn()
        if visitor is not None:
            mark_known(scope)
        check_address(scope)
        return visitor

    async def _checked_body(self, visitor: Visitor | None, scope: Scope, receive: Receive) -> Receive:
        if scope["method"] in SAFE_METHODS:
            return receive
        check_origin(Request(scope), self._hosts)
        if _is_upload(visitor, scope):
            mark_stream(scope)  # it takes as long as the file is large; the rate is watched all the same
            return receive
        body = await read_body(receive, _most_bytes(visitor, scope["path"]))
        if not Request(scope).headers.get("content-type", "").startswith(_FORMS[1]):
            check_body(body)
        check_values(body)
        if visitor is not None and visitor.session is not None:
            await check_csrf_token(Request(scope, replay_body(body, receive)), visitor.secret)
        return replay_body(body, receive)

    async def _visitor(self, request: Request) -> Visitor | None:
        """A token counts alone, and only for the API: pages are for people."""
        if "authorization" in request.headers:
            return await self._program(request)
        secret = read_session_cookie(request, self._hosts)
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
            raise NotAllowed(f"A token of role {token.role} cannot use the dashboard's API.")
        if tokens.needs_noting(token, now):
            await self._database.write(lambda tx: tokens.note_use(tx, token.id, now))
        request.scope[SENDER] = token.id
        return Visitor(token.caller)


def _most_bytes(visitor: Visitor | None, path: str) -> int:
    if visitor is None:
        return STRANGERS_BYTES
    is_writing = visitor.session is not None and path.startswith("/mail/") and path.endswith(UPLOADS)
    return UPLOAD_BYTES if is_writing else MOST_BYTES


def _is_upload(visitor: Visitor | None, scope: Scope) -> bool:
    """A form with files, where they are read from the stream."""
    kind = Request(scope).headers.get("content-type", "")
    is_person = visitor is not None and visitor.session is not None
    return scope["path"] == STREAMED and is_person and kind.startswith(_FORMS[1])


def is_open(path: str) -> bool:
    return path in OPEN or path.startswith(STATIC)

"""What the gate checks and sets on a request: host names, cross-site forgery, size and characters of the body,
cookies, and the security headers of the response.

Cookie names contain the port: browsers share cookies among all ports of a machine. A NUL character is refused
wherever it is sent, because PostgreSQL cannot store it.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from postroom.dashboard.security import sessions
from postroom.domain.errors import BadInput, NotAllowed, Retryable
from postroom.settings import DashboardSettings, Settings
from postroom.switchboard.http import is_loopback
from postroom.switchboard.request_limits import ValueCounter

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
    # Looking up the host of a link that nobody clicked would tell its owner that the mail was opened.
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
"""A passphrase and what a form has beside it."""
MOST_VALUES = 50_000
_PATIENCE_S = 30.0


class RequestTooLarge(BadInput):
    """The request is too large."""

    def __init__(self, most: int) -> None:
        super().__init__("body", f"is larger than {most:,} bytes, the most that is taken here")


async def read_body(receive: Receive, most: int) -> bytes:
    try:
        async with asyncio.timeout(_PATIENCE_S):
            return await _read_chunks(receive, most)
    except TimeoutError:
        raise Retryable("The request did not arrive within its time.") from None


def check_values(body: bytes) -> None:
    """JSON of many small values costs far more memory than its size tells."""
    if body.lstrip()[:1] in (b"{", b"["):
        ValueCounter(MOST_VALUES).feed(body)


async def _read_chunks(receive: Receive, most: int) -> bytes:
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise Retryable("The request broke off.")
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
        if size > most:
            raise RequestTooLarge(most)
        if not message.get("more_body", False):
            return b"".join(chunks)


def replay_body(body: bytes, receive: Receive) -> Receive:
    """The body as a first message, then whatever comes after it."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receiving() -> Message:
        return messages.pop() if messages else await receive()

    return receiving


_NUL_PROBLEM = "holds a character that no text has"
_IN_JSON = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")


def check_address(scope: Scope) -> None:
    if "\0" in scope["path"]:
        raise BadInput("path", _NUL_PROBLEM)
    if b"%00" in scope["query_string"]:
        raise BadInput("query", _NUL_PROBLEM)


def check_body(body: bytes) -> None:
    """Of JSON, where it is written as an escape; forms are looked at field by field."""
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
    """This did not come from a page of this session. Nothing was changed: open the page again and repeat it."""


def check_origin(request: Request, hosts: Hosts) -> None:
    """By what the browser says of the page that sent it; a program says nothing.

    The origin is `null` where our own policy keeps browsers from naming it; those name the kind of site instead.
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
        raise BadInput("body", "is not a form that can be read") from None
    return value if isinstance(value, str) else None

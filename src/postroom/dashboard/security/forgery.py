"""Whether a request that changes something comes from one of our own pages."""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException
from starlette.requests import Request

from postroom.dashboard.security import browser_secrets
from postroom.dashboard.security.hosts import Hosts
from postroom.domain.errors import BadInput, NotAllowed

FIELD, HEADER = "csrf", "x-csrf-token"
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_OWN = ("same-origin", "none")
_FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")


class Forged(NotAllowed):
    """This did not come from a page of this session. Nothing was changed: open the page again and repeat it."""


def check_origin(request: Request, hosts: Hosts) -> None:
    """By what the browser says of the page that sent it; a program says nothing.

    The origin is `null` where our own policy keeps browsers from naming it; those name the kind of site instead.
    """
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None:
        if site not in _OWN:
            raise Forged()
    elif origin is not None and origin != "null":
        netloc = urlsplit(origin).netloc.lower()
        if netloc not in (request.headers.get("host", "").lower(), hosts.public):
            raise Forged()


async def check_token(request: Request, session_secret: str) -> None:
    offered = request.headers.get(HEADER)
    if offered is None and request.headers.get("content-type", "").partition(";")[0].strip().lower() in _FORMS:
        offered = await _field(request)
    if offered is None or not browser_secrets.is_csrf_token(offered, session_secret):
        raise Forged()


async def _field(request: Request) -> str | None:
    try:
        async with request.form() as form:  # files that came with it are closed
            value = form.get(FIELD)
    except (HTTPException, MultiPartException):
        raise BadInput("body", "is not a form that can be read") from None
    return value if isinstance(value, str) else None

"""The dashboard as an ASGI application: the gate in front, pages and API behind it, errors as pages or JSON; also
`/static/` (style, script and pictures, open without a login), `/live` (the stream of changes for an open page), and the
manifest and icons by which it is installed on a phone or a desktop. There is no service worker and no push: installed,
it is the same pages in a window of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from typing import Annotated

from fastapi import APIRouter, FastAPI, Query
from fastapi.exceptions import RequestValidationError
from fastapi.responses import StreamingResponse
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from postroom import __version__
from postroom.app.serving import SharedServices
from postroom.dashboard import audit, checklist, connectors, digest, overview, queue, review, series
from postroom.dashboard.actions import approvals
from postroom.dashboard.actions import routes as actions
from postroom.dashboard.archive import contents, imports, restores
from postroom.dashboard.archive import routes as archive
from postroom.dashboard.backfill import routes as backfill
from postroom.dashboard.context import DashboardServices, Here, pages_router
from postroom.dashboard.display import rendering
from postroom.dashboard.display.icons import draw_icon, icon_url
from postroom.dashboard.filters import editors, why
from postroom.dashboard.filters import routes as filters
from postroom.dashboard.live_updates import MEDIA_TYPE, TOPICS, LiveHub, live_events
from postroom.dashboard.mail import acting, asking, outside
from postroom.dashboard.mail import routes as mail
from postroom.dashboard.problems import error_response
from postroom.dashboard.rules import guidance, learning
from postroom.dashboard.rules import routes as rules
from postroom.dashboard.security import login
from postroom.dashboard.security.gate import Hosts, RequestGate
from postroom.dashboard.security.passphrase import FailedLogins
from postroom.dashboard.security.sessions import find_session
from postroom.dashboard.settings import accounts, configuration, imap_accounts
from postroom.dashboard.settings import routes as settings
from postroom.dashboard.settings.accounts import GoogleLogins
from postroom.dashboard.web import routes as web
from postroom.domain.errors import NotFound, PostroomError
from postroom.webserver import mark_stream

MANIFEST = "/manifest.webmanifest"
_ICONS = {
    "180.png": (180, False),
    "192.png": (192, True),
    "512.png": (512, True),
    "maskable-512.png": (512, False),
}
"""Pixels, and whether the corners are rounded here. 180 is for Apple's home screen."""
_KEPT = "public, max-age=31536000, immutable"
_SHORTCUTS = (("Mail", "/mail"), ("Approvals", "/approvals"), ("Review", "/review"))

own_pages = pages_router()


@own_pages.get("/static/{name}")
async def static_file(request: Request, name: str) -> Response:
    return rendering.serve_asset(request, name)


def manifest() -> dict[str, object]:
    return {
        "id": "/",
        "name": "Postroom",
        "short_name": "Postroom",
        "description": "Your mail archive, triage and approvals.",
        "start_url": "/",
        "scope": "/",
        "display": "standalone",
        "background_color": "#f5f6f8",
        "theme_color": "#1f5fbf",
        "icons": [_described(name) for name in _ICONS if name != "180.png"],
        "shortcuts": [{"name": name, "url": path} for name, path in _SHORTCUTS],
    }


def _described(name: str) -> dict[str, str]:
    size, is_rounded = _ICONS[name]
    purpose = "any" if is_rounded else "maskable"
    return {"src": icon_url(name), "sizes": f"{size}x{size}", "type": "image/png", "purpose": purpose}


@own_pages.get(MANIFEST)
async def web_manifest() -> Response:
    return JSONResponse(manifest(), media_type="application/manifest+json", headers={"cache-control": "no-cache"})


@own_pages.get("/static/icons/{name}")
async def icon(name: str) -> Response:
    if name not in _ICONS:
        raise NotFound("file", f"there is no {name!r}")
    content = await asyncio.to_thread(_drawn, name)
    return Response(content, media_type="image/png", headers={"cache-control": _KEPT})


@cache
def _drawn(name: str) -> bytes:
    size, is_rounded = _ICONS[name]
    return draw_icon(size, is_rounded=is_rounded)


@own_pages.get("/keyboard")
async def keyboard_page(here: Here) -> Response:
    """`?` shows the same above any page."""
    return await here.page("keyboard.html", None)


@own_pages.get("/live")
async def live_stream(here: Here, topics: Annotated[str, Query(max_length=200)] = "") -> StreamingResponse:
    secret, lifetimes = here.visitor.secret, here.app.settings.dashboard

    async def is_welcome() -> bool:
        now = here.app.clock.now()
        return await here.read(lambda tx: find_session(tx, secret, lifetimes, now)) is not None

    here.services.hub.require_room()
    wanted = frozenset(topics.split(","))
    mark_stream(here.request.scope)
    return StreamingResponse(live_events(here.services.hub, wanted, is_welcome), media_type=MEDIA_TYPE)


ROUTERS: tuple[APIRouter, ...] = (
    own_pages,
    login.pages,
    overview.pages,
    overview.api,
    digest.pages,
    digest.api,
    checklist.pages,
    checklist.api,
    series.api,
    mail.pages,
    asking.pages,
    asking.api,
    acting.pages,
    acting.api,
    outside.pages,
    outside.api,
    outside.senders_api,
    outside.lists_api,
    mail.api,
    approvals.always_pages,
    approvals.pages,
    approvals.api,
    review.pages,
    review.api,
    actions.pages,
    actions.api,
    learning.pages,
    learning.suggestions_api,
    rules.pages,
    rules.api,
    learning.api,
    guidance.pages,
    guidance.directions_api,
    guidance.guidance_api,
    backfill.pages,
    backfill.api,
    connectors.pages,
    connectors.api,
    filters.pages,
    filters.api,
    filters.contacts_api,
    editors.pages,
    editors.policy_api,
    editors.definitions_api,
    why.pages,
    why.api,
    why.corrections_api,
    queue.pages,
    queue.api,
    web.pages,
    web.api,
    archive.pages,
    archive.api,
    restores.pages,
    restores.api,
    imports.pages,
    imports.api,
    contents.pages,
    contents.api,
    audit.pages,
    audit.api,
    settings.pages,
    settings.api,
    configuration.pages,
    configuration.api,
    imap_accounts.pages,
    imap_accounts.api,
    accounts.pages,
    accounts.api,
)
"""Pages and API of every feature, in the order of the navigation."""


class Dashboard:
    """The ASGI application for every path that the Switchboard does not serve itself."""

    def __init__(self, shared: SharedServices) -> None:
        app = shared.app
        hosts = Hosts.of(app.settings)
        self._services = DashboardServices(
            shared=shared,
            hub=LiveHub(app.database, TOPICS),
            hosts=hosts,
            failed_logins=FailedLogins(app.database, app.clock),
            google_logins=GoogleLogins(),
        )
        self.pages = _application(self._services)
        self._gate = RequestGate(
            self.pages, app.database, app.clock, app.settings.dashboard, hosts, refuse=error_response
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._gate(scope, receive, send)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        services = self._services
        async with services.hub.running(), services.google_logins.running(), services.failed_logins.running():
            yield


def _application(services: DashboardServices) -> FastAPI:
    app = FastAPI(
        title="Postroom",
        version=__version__,
        description="Everything that the dashboard does. Log in and send the session's token as `X-CSRF-Token` with "
        "every change, or send a token of role dashboard as a bearer token.",
        openapi_url="/api/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        # As they are: `include_router` would build each of them once more, at the first request, which then takes a
        # second.
        routes=[route for router in ROUTERS for route in router.routes],
    )
    app.state.services = services
    for kind in (PostroomError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, _refuse)
    return app


async def _refuse(request: Request, error: Exception) -> Response:
    return error_response(request.scope, error)

"""The dashboard as an application: the gate before it, pages and API within, refusals as pages or JSON."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from postroom import __version__
from postroom.app.serving import House
from postroom.dashboard import api, pages, problems
from postroom.dashboard.live.hub import Hub
from postroom.dashboard.security.failed_logins import FailedLogins
from postroom.dashboard.security.gate import Gate
from postroom.dashboard.security.hosts import Hosts
from postroom.dashboard.security.passphrase import Hashing
from postroom.dashboard.visit import Desk
from postroom.domain.errors import PostroomError


class Dashboard:
    """An ASGI application for every path that the Switchboard leaves to it."""

    def __init__(self, house: House) -> None:
        app = house.app
        hosts = Hosts.of(app.settings)
        self.hub = Hub(app.database)
        self._desk = Desk(house, self.hub, hosts, Hashing(), FailedLogins(app.database, app.clock))
        self.pages = _application(self._desk)
        self._gate = Gate(self.pages, app.database, app.clock, app.settings.dashboard, hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._gate(scope, receive, send)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with self.hub.running(), self._desk.logins.running(), self._desk.failures.running():
            yield


def _application(desk: Desk) -> FastAPI:
    app = FastAPI(
        title="Postroom",
        version=__version__,
        description="Everything that the dashboard does. Log in and send the session's token as `X-CSRF-Token` with "
        "what changes something, or send a token of role dashboard as a bearer token.",
        openapi_url="/api/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.desk = desk
    for package in (pages, api):
        for router in _routers(package):
            app.include_router(router)
    for kind in (PostroomError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, _refuse)
    return app


def _routers(package: ModuleType) -> list[APIRouter]:
    modules = (import_module(f"{package.__name__}.{found.name}") for found in iter_modules(package.__path__))
    return [module.router for module in modules if hasattr(module, "router")]


async def _refuse(request: Request, error: Exception) -> Response:
    return problems.answer(request.scope, error)

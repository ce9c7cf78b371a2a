"""A dashboard on a real port, as `postroom switchboard` serves it, and visitors: logged in, programs,
unauthenticated.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx2
from pydantic import SecretStr

from postroom.app import App, open_app
from postroom.app.serving import open_switchboard
from postroom.dashboard.security.sessions import begin_session, csrf_token
from postroom.dashboard.server import Dashboard
from postroom.db import Tx
from postroom.domain.clock import Clock
from postroom.domain.roles import Role, all_permissions
from postroom.settings import DashboardSettings, DatabaseSettings, Settings, SwitchboardSettings
from postroom.switchboard.tokens import NewToken, create_token
from tests.support.databases import install

T = TypeVar("T")

_PATIENCE_S = 60.0
"""A machine at work on other things answers late; how late is not what these tests are about."""


@dataclass
class Site:
    """A running dashboard. `http` is logged in and follows no redirect; its changes carry their CSRF token."""

    app: App
    url: str
    dashboard: Dashboard
    secret: str
    http: httpx2.AsyncClient

    @property
    def csrf(self) -> str:
        return csrf_token(self.secret)

    @property
    def cookie(self) -> dict[str, str]:
        return {f"postroom_{self.url.rpartition(':')[2]}": self.secret}

    async def get(self, path: str, **options: Any) -> httpx2.Response:
        return await self.http.get(path, **options)

    async def post(self, path: str, **fields: Any) -> httpx2.Response:
        """A form of a page, as a browser sends it."""
        return await self.http.post(path, data={"csrf": self.csrf, **fields}, headers={"sec-fetch-site": "same-origin"})

    async def api(self, method: str, path: str, **options: Any) -> httpx2.Response:
        return await self.http.request(method, f"/api{path}", headers={"x-csrf-token": self.csrf}, **options)

    def stranger(self, **options: Any) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(base_url=self.url, timeout=_PATIENCE_S, **options)

    async def token(self, role: Role, **new_token: Any) -> str:
        """With every permission of its role, unless others are named."""
        new = NewToken(role, f"a {role}", **{"permissions": all_permissions(role), **new_token})
        _, text = await self.write(lambda tx: create_token(tx, new, self.app.clock.now()))
        return text

    async def write(self, transaction: Callable[[Tx], T]) -> T:
        return await self.app.database.write(transaction)

    async def read(self, transaction: Callable[[Tx], T]) -> T:
        return await self.app.database.read(transaction)


@asynccontextmanager
async def open_site(
    home: Path, database_url: str | None = None, clock: Clock | None = None, **groups: Any
) -> AsyncIterator[Site]:
    """With a session that was begun in the database: logging in is tested by itself."""
    settings = _settings(home, database_url, groups)
    made: list[Dashboard] = []

    def front(house: Any) -> Dashboard:
        made.append(Dashboard(house))
        return made[0]

    async with open_app(settings, clock) as app, open_switchboard(app, front) as running:
        secret = await log_in(app)
        site = Site(app, running.url, made[0], secret, httpx2.AsyncClient(base_url=running.url, timeout=_PATIENCE_S))
        site.http.cookies.update(site.cookie)
        async with site.http:
            yield site


async def log_in(app: App, client: str = "a test") -> str:
    now, settings = app.clock.now(), app.settings.dashboard
    return await app.database.write(lambda tx: begin_session(tx, settings, client, "127.0.0.1", now))


def _settings(home: Path, database_url: str | None, groups: dict[str, Any]) -> Settings:
    if database_url is None:
        install(home)
    home.mkdir(exist_ok=True, parents=True)
    database = DatabaseSettings(url=None if database_url is None else SecretStr(database_url), synchronous="normal")
    given = {"switchboard": SwitchboardSettings(port=0), "dashboard": DashboardSettings(), **groups}
    return Settings(home=home, database=database, **given)


def text_of(html: str) -> str:
    """What a page says, without its tags."""
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())

"""A guard at a browser's window: whatever a page asks for, opens, says or saves that it should not, it notices."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from playwright.async_api import Browser, Request

from tests.support.dashboards import Site
from tests.support.windows import Window, open_window

_LISTEN = "addEventListener('message', (event) => { window.heard = String(event.data) })"


class Guard:
    """Listens to everything that a page asks for, opens or says."""

    def __init__(self, window: Window) -> None:
        self.window = window
        self.strays: list[str] = []
        context = window.page.context
        self.outside: list[Request] = []
        context.on("request", self._asked)
        context.on("page", lambda page: self.strays.append(f"opened {page.url}"))
        window.page.on("dialog", lambda dialog: self.strays.append(f"said {dialog.message}"))
        window.page.on("download", lambda download: self.strays.append(f"saved {download.url}"))

    def _asked(self, request: Request) -> None:
        """Even what the policy then stops."""
        if not request.url.startswith(f"{self.window.site.url}/"):
            self.outside.append(request)

    async def nothing_happened(self, where: str) -> None:
        page = self.window.page
        assert self.strays == [], where
        assert [request.url for request in self.outside] == [], where
        assert await page.evaluate("window.heard") is None, where
        assert await page.title() != "ran", where
        assert page.url == f"{self.window.site.url}{where}"
        assert len(page.frames) <= 2, where

    async def nothing_sticks_out(self, where: str) -> None:
        wide = await self.window.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert wide[0] <= wide[1], (where, wide)


@asynccontextmanager
async def guarded(browser: Browser, site: Site, **options: Any) -> AsyncIterator[Guard]:
    """A window with a guard; at its end, the content policy may have had nothing to refuse."""
    async with open_window(browser, site, **options) as window:
        await window.page.add_init_script(_LISTEN)
        yield Guard(window)
    assert window.complaints == []

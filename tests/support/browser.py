"""A browser's window on a dashboard: logged in, collecting the browser's complaints; and a guard that records
everything a page requests, opens, says or saves that it should not.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Locator, Page, Request, expect

from tests.support.dashboards import Site

PATIENCE_MS = 60_000
"""A machine at work on other things shows a page late; the five seconds of `expect` are too few for it."""
expect.set_options(timeout=PATIENCE_MS)


@dataclass
class Window:
    page: Page
    site: Site
    complaints: list[str] = field(default_factory=list)

    async def open(self, path: str) -> Page:
        await self.page.goto(path)
        return self.page

    async def watched(self) -> None:
        """Until the page hears of changes."""
        await self.page.locator("html[data-watched]").wait_for()

    async def barriers(self) -> list[str]:
        """The accessibility violations that axe finds on this page."""
        found = await Axe().run(self.page)
        return [
            f"{violation['id']}: {node['html']}"
            for violation in found.response["violations"]
            if violation["impact"] in ("serious", "critical", "moderate")
            for node in violation["nodes"]
        ]


@asynccontextmanager
async def open_window(browser: Browser, site: Site, *, script: bool = True, **options: Any) -> AsyncIterator[Window]:
    context = await browser.new_context(base_url=site.url, java_script_enabled=script, **options)
    context.set_default_timeout(PATIENCE_MS)
    host = urlsplit(site.url).hostname or ""
    for name, value in site.cookie.items():
        await context.add_cookies([{"name": name, "value": value, "domain": host, "path": "/"}])
    window = Window(await context.new_page(), site)
    window.page.on("console", lambda said: window.complaints.append(said.text) if said.type == "error" else None)
    window.page.on("pageerror", lambda error: window.complaints.append(str(error)))
    try:
        yield window
    finally:
        await context.close()


async def look_at(browser: Browser, site: Site, *paths: str) -> None:
    """Light on a wide screen and dark on a phone: no barriers, nothing beyond the edge, nothing hostile ran."""
    for scheme, width in (("light", 1280), ("dark", 360)):
        view: dict[str, Any] = {"color_scheme": scheme, "viewport": {"width": width, "height": 800}}
        async with open_window(browser, site, **view) as window:
            for path in paths:
                page = await window.open(path)
                assert await window.barriers() == [], path
                assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
                assert await page.evaluate("window.hit === undefined"), path
        assert window.complaints == []


async def tab_to(page: Page, wanted: Locator) -> None:
    """Reach it by keyboard."""
    for _ in range(60):
        await page.keyboard.press("Tab")
        if await wanted.evaluate("element => element === document.activeElement"):
            return
    raise AssertionError("the Tab key does not lead there")


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

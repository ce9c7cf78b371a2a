"""Windows of the system's Chromium on a running dashboard. Where there is no Chromium, these tests say so and skip."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, async_playwright

from tests.support.browser import Guard, Window, guarded, open_window
from tests.support.dashboards import Site, open_site
from tests.support.switchboards import in_a_task

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    if CHROMIUM is None and not os.environ.get("CI"):
        pytest.skip("no Chromium is installed; the browser tests need one")
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=sandbox)
        yield browser
        await browser.close()


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with in_a_task(open_site(tmp_path / "home")) as opened:
        yield opened


@pytest.fixture
async def window(browser: Browser, site: Site) -> AsyncIterator[Window]:
    """Logged in, with script; at the end, nothing may have been refused by the content policy or failed in script."""
    async with open_window(browser, site) as opened:
        yield opened
    assert opened.complaints == []


@pytest.fixture
async def plain_page(browser: Browser, site: Site) -> AsyncIterator[Page]:
    """Logged in, with script off."""
    async with open_window(browser, site, script=False) as opened:
        yield opened.page


@pytest.fixture
async def guard(browser: Browser, site: Site) -> AsyncIterator[Guard]:
    async with guarded(browser, site) as opened:
        yield opened

"""Windows of the system's Chromium on a running dashboard. Where there is no Chromium, these tests say so and skip.

One browser serves all tests of a process, each in a profile of its own: starting it takes longer than most of them. It
lives in the event loop of the session, so these tests and their fixtures run in that loop too.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, async_playwright

from tests.support.browser import Guard, Window, guarded, open_window
from tests.support.dashboards import Site, open_site
from tests.support.switchboards import in_a_task

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent) and pytest_asyncio.is_async_test(item):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    if CHROMIUM is None and not os.environ.get("CI"):
        pytest.skip("no Chromium is installed; the browser tests need one")
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=sandbox)
        yield browser
        await browser.close()


@pytest_asyncio.fixture(loop_scope="session")
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with in_a_task(open_site(tmp_path / "home")) as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="session")
async def window(browser: Browser, site: Site) -> AsyncIterator[Window]:
    """Logged in, with script; at the end, nothing may have been refused by the content policy or failed in script."""
    async with open_window(browser, site) as opened:
        yield opened
    assert opened.complaints == []


@pytest_asyncio.fixture(loop_scope="session")
async def plain_page(browser: Browser, site: Site) -> AsyncIterator[Page]:
    """Logged in, with script off."""
    async with open_window(browser, site, script=False) as opened:
        yield opened.page


@pytest_asyncio.fixture(loop_scope="session")
async def guard(browser: Browser, site: Site) -> AsyncIterator[Guard]:
    async with guarded(browser, site) as opened:
        yield opened

"""Hostile words in every field that any page shows: nothing runs, nothing is loaded, nothing sticks out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser

from tests.support.backfills import BACKFILL_ON
from tests.support.browser import guarded
from tests.support.dashboards import Site, open_site
from tests.support.furnished_dashboards import FurnishedDashboard, furnish
from tests.support.hostile_mail import RAN, TRAP
from tests.support.switchboards import in_a_task

pytestmark = pytest.mark.req("PL-7")

WORDS = (
    f"\u202e{'unbroken' * 10}"
    f"</title></textarea></script></style><script>{RAN}</script><img src=http://{TRAP}/i onerror={RAN}>"
    f"<svg onload={RAN}><style>@import 'http://{TRAP}/s';*{{position:fixed;inset:0}}</style>"
    f"<a href=javascript:{RAN} ping=http://{TRAP}/p>'\"`{{{{7*7}}}} https://{TRAP}/link \u2066\u200f"
    f"<iframe src=http://{TRAP}/f></iframe>{'unbroken' * 60}"
)


@pytest_asyncio.fixture(loop_scope="session")
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with in_a_task(open_site(tmp_path / "home", **BACKFILL_ON)) as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="session")
async def furnished(site: Site) -> FurnishedDashboard:
    return await furnish(site, WORDS)


@pytest.mark.parametrize("width", [360, 1280])
async def test_hostile_words_do_nothing_on_any_page(
    browser: Browser, furnished: FurnishedDashboard, width: int
) -> None:
    async with guarded(browser, furnished.site, viewport={"width": width, "height": 800}) as guard:
        paths = furnished.paths()
        assert len(paths) > 25
        for path in paths:
            page = await guard.window.open(path)
            await guard.nothing_happened(page.url.removeprefix(furnished.site.url))
            await guard.nothing_sticks_out(path)
            assert await page.locator("main h1").count() == 1, path
        guard.window.complaints[:] = [said for said in guard.window.complaints if "status of 4" not in said]


async def test_hostile_words_are_there_to_be_read(furnished: FurnishedDashboard) -> None:
    """The test above would be no proof if the pages showed nothing of them."""
    shows = [path for path in furnished.paths() if "unbrokenunbroken" in (await furnished.site.get(path)).text]
    rooms = {path.split("/")[1].partition("?")[0] for path in shows}
    assert rooms >= {"", "mail", "approvals", "queue", "backfill", "connectors", "archive", "web", "settings"}

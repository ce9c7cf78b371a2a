"""The Web pages in a browser: live, by keyboard, without script, without barriers, and hostile pages do nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest_asyncio
from playwright.async_api import Page, expect

from tests.support import dashboard_data as scene
from tests.support.backfills import BACKFILL_ON
from tests.support.browser import Window
from tests.support.dashboards import Site, open_site
from tests.support.switchboards import in_a_task

OLD, NEW = "The tax is 20 %.\nSince May.", "The tax is 25 %.\nSince May."


@pytest_asyncio.fixture(loop_scope="session")
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with in_a_task(open_site(tmp_path / "home", **BACKFILL_ON)) as opened:
        scene.follow_sources(opened)
        yield opened


async def test_a_run_is_made_by_keyboard_alone_and_its_progress_shows_itself(window: Window) -> None:
    page = await window.open("/web/runs/new")
    await page.get_by_role("button", name="Start").focus()
    await page.keyboard.press("Enter")
    await expect(page.locator("#e-sources")).to_contain_text("name at least one")
    await page.get_by_label("The Gazette").focus()
    await page.keyboard.press("Space")
    await page.get_by_label("Maximum addresses").focus()
    await page.keyboard.type("90")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("status")).to_have_text("The run is created. It starts as soon as a worker is free.")
    window.complaints.clear()  # of the form that was refused
    await window.watched()
    await scene.start_run(window.site, page.url.rpartition("/")[2], found=42)
    await expect(page.locator("#web-run")).to_contain_text("42 of up to 90")
    await expect(page.get_by_role("heading", level=1)).to_contain_text("Running")


async def test_versions_are_compared_without_script(plain_page: Page, site: Site) -> None:
    await scene.add_kept_page(site, OLD, OLD, age=timedelta(days=3))
    await scene.add_kept_page(site, NEW, NEW)
    await plain_page.goto("/web/evidence?query=25")
    await plain_page.get_by_role("link", name="A title").click()
    await plain_page.get_by_role("link", name="See changes").click()
    await expect(plain_page.locator("del")).to_have_text("20")
    await expect(plain_page.locator("ins")).to_have_text("25")


async def test_nothing_on_them_is_a_barrier(window: Window) -> None:
    run = await scene.add_run(window.site)
    await scene.start_run(window.site, run.id, found=3)
    await scene.fail_run(window.site, run.id, "no answer", (f"{scene.SITE_URL}/x", "503"))
    await scene.add_items(window.site, {"FETCHED": 2, "FAILED": 1}, error="503")
    await scene.add_look(window.site, "the sitemap is not XML")
    old = await scene.add_kept_page(window.site, OLD, OLD, age=timedelta(days=3))
    new = await scene.add_kept_page(window.site, f"<p>{NEW}</p>", NEW)
    item = f"/web/evidence/{new}"
    for path in (
        *("/web", "/web/runs", "/web/runs/new", f"/web/runs/{run.id}", "/web/evidence", item),
        *(f"{item}?view=page", f"{item}?view=source", f"{item}/compare/{old}"),
    ):
        await window.open(path)
        assert await window.barriers() == [], path

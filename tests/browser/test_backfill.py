"""The Backfill pages in a browser: a job made by keyboard alone, progress that moves by itself, and no barriers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from tests.support.archives import ME
from tests.support.backfills import BACKFILL_ON, add_history, make_job, report_progress, take_job
from tests.support.browser import Window, tab_to
from tests.support.dashboards import Site, open_site
from tests.support.switchboards import in_a_task


@pytest_asyncio.fixture(loop_scope="session")
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with in_a_task(open_site(tmp_path / "home", **BACKFILL_ON)) as opened:
        await add_history(opened)
        yield opened


@pytest.mark.req("BF-19")
async def test_a_job_is_made_paused_and_cancelled_by_keyboard_alone(window: Window) -> None:
    page = await window.open("/backfill")
    page.on("dialog", lambda dialog: dialog.accept())
    await tab_to(page, page.get_by_role("link", name="New job"))
    await page.keyboard.press("Enter")
    await tab_to(page, page.get_by_role("checkbox", name="Finance"))
    await page.keyboard.press("Space")
    await tab_to(page, page.get_by_role("checkbox", name="Health"))
    await page.keyboard.press("Space")
    await tab_to(page, page.get_by_label("Maximum messages per hour"))
    await page.keyboard.type("60")
    await tab_to(page, page.get_by_label("Maximum dollars per day"))
    await page.keyboard.type("too much")
    await page.keyboard.press("Enter")
    await expect(page.get_by_label("Maximum dollars per day")).to_be_focused()
    await expect(page.locator("#e-daily_cost_cap")).to_contain_text("is not an amount in dollars")
    await page.keyboard.press("Control+A")
    await page.keyboard.type("2")
    await page.keyboard.press("Enter")

    await expect(page.get_by_role("heading", level=1)).to_have_text("Estimate")
    assert await window.barriers() == []
    await tab_to(page, page.get_by_role("button", name="Continue"))
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Confirm the backfill")
    assert await window.barriers() == []
    await tab_to(page, page.get_by_role("checkbox"))
    await page.keyboard.press("Space")
    await page.keyboard.press("Enter")

    await expect(page.get_by_role("status")).to_have_text(
        "The job is created. It starts when its connector asks for work."
    )
    await expect(page.get_by_role("heading", level=1)).to_contain_text("Finance, health")
    await tab_to(page, page.get_by_role("button", name="Pause"))
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", level=1)).to_contain_text("Paused")
    await tab_to(page, page.get_by_role("button", name="Cancel"))
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", level=1)).to_contain_text("Cancelled")
    window.complaints.clear()  # of the form that was refused


async def test_progress_and_the_kill_switch_show_themselves_without_a_reload(window: Window) -> None:
    job_id = await make_job(window.site)
    page = await window.open(f"/backfill/{job_id}")
    await window.watched()
    work = await take_job(window.site)
    await report_progress(window.site, work, rows_processed=50)
    await expect(page.locator("#backfill-progress")).to_contain_text("50 of about 200")
    await expect(page.locator("#backfill-head")).to_contain_text("Running: gmail-one")
    await window.site.api("POST", "/backfill/switch", json={"enabled": False})
    await expect(page.locator("#backfill-switch")).to_contain_text("All backfill is off")
    await window.open("/backfill")
    assert await window.barriers() == []
    await window.open(f"/backfill/{job_id}")
    assert await window.barriers() == []


async def test_a_job_is_made_without_script(plain_page: Page, site: Site) -> None:
    await plain_page.goto("/backfill/new")
    await plain_page.get_by_label("All mail").check()
    await plain_page.get_by_role("button", name="Estimate").click()
    await plain_page.get_by_role("button", name="Continue").click()
    await plain_page.get_by_role("checkbox").check()
    await plain_page.get_by_role("button", name="Start").click()
    await expect(plain_page.get_by_role("status")).to_have_text(
        "The job is created. It starts when its connector asks for work."
    )
    assert ME in await plain_page.locator("main").inner_text()

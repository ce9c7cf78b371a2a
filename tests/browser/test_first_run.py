"""The first run in a browser: the checklist from an empty home to a triaged inbox, and the bar of a phone."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from postroom.app.backup import create_backup, note_backup
from postroom.settings import SyncSettings
from postroom.sim.gmail.generated import GeneratedMailbox
from postroom.sim.gmail.server import running_sim
from tests.support.browser import open_window
from tests.support.dashboards import Site
from tests.support.first_day import everything_up, first_settings, new_owner, newsletters_in, triage_the_inbox

GUIDE = Path(__file__).parents[2] / "docs" / "guide.md"
PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 760}}
FAST = SyncSettings(rps_start=50, rps_max=100)


@pytest.mark.req("UX-1", "UX-2")
async def test_the_checklist_leads_from_an_empty_home_to_a_triaged_inbox(browser: Browser, tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with (
        running_sim(GeneratedMailbox(60, 3, "owner@example.com")) as sim,
        everything_up(first_settings(home, FAST)) as (app, link),
        new_owner(browser) as owner,
    ):
        assert newsletters_in(sim) > 0
        await triage_the_inbox(owner, link, sim)
        counted = re.search(r"(\d+) clicks and (\d+) fields", GUIDE.read_text("utf-8"))
        assert counted is not None
        assert (int(counted[1]), int(counted[2])) == (owner.clicks, owner.fields)
        await _rest_of_the_list(owner.page)
        made = await asyncio.to_thread(create_backup, app.settings, tmp_path / "backup")
        note_backup(home, tmp_path / "backup", made)
        await owner.page.reload()
        await expect(owner.page.get_by_role("heading", name="Getting started")).to_have_count(0)


async def _rest_of_the_list(page: Page) -> None:
    """A model is not wanted now, which can be taken back; a backup is left, and its page says how."""
    await page.goto("/".join(page.url.split("/")[:3]) + "/")
    steps = page.locator(".checklist")
    await steps.get_by_role("button", name="Not now").click()
    await expect(steps.get_by_role("listitem").filter(has_text="Connect a model")).to_have_class("done")
    await page.get_by_role("form", name="Undo").get_by_role("button").click()
    await steps.get_by_role("button", name="Not now").click()
    await expect(page.locator(".first-run")).to_contain_text("5 of 6 steps done.")
    await steps.get_by_role("link", name="Make a backup").click()
    await expect(page.locator("main")).to_contain_text("postroom backup create")
    await page.go_back()


@pytest.mark.req("UX-1")
@pytest.mark.parametrize("script", [True, False], ids=["with script", "without script"])
async def test_on_a_phone_a_bar_at_the_bottom_has_the_pages_of_every_day(
    browser: Browser, site: Site, script: bool
) -> None:
    async with open_window(browser, site, script=script, **PHONE) as window:
        page = await window.open("/")
        bar = page.get_by_role("navigation", name="Quick")
        await expect(bar.get_by_role("listitem")).to_have_text(["Mail", "Approvals", "Review", "Search", "More"])
        box = await bar.bounding_box()
        assert box is not None
        assert (box["x"], round(box["y"] + box["height"]), box["width"]) == (0, 760, 390)
        await expect(page.get_by_role("navigation", name="Main")).to_be_hidden()
        for name in ("Approvals", "Review", "Mail"):
            await bar.get_by_role("link", name=name).click()
            await expect(bar.locator("[aria-current]")).to_have_text(name)
        await bar.get_by_role("link", name="Search").click()
        await expect(page.get_by_label("Search", exact=True)).to_be_focused()
        await bar.get_by_role("button", name="More").click()
        whole = page.get_by_role("navigation", name="Main")
        await expect(whole).to_be_visible()
        if script:
            assert await window.barriers() == []
        await page.keyboard.press("Escape")
        await expect(whole).to_be_hidden()
        await bar.get_by_role("button", name="More").click()
        await whole.get_by_role("link", name="Archive").click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("Archive")
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert window.complaints == []


@pytest.mark.req("UX-3")
async def test_what_was_said_about_a_change_goes_after_ten_seconds(browser: Browser, site: Site) -> None:
    async with open_window(browser, site) as window:
        # Installed alone, the clock goes on with the machine's, so that a slow machine is late for the tenth second.
        await window.page.clock.install(time=0)
        await window.page.clock.pause_at(1)
        await site.post("/settings/sessions/end-others")
        page = await window.open("/queue")
        said = page.locator(".notice.flash")
        await expect(said).to_contain_text("0 other logins ended.")
        await page.clock.run_for(9_000)
        await expect(said).to_be_visible()
        await page.clock.run_for(3_000)
        await expect(said).to_have_count(0)
        await site.post("/checklist", step="model", shown="no")
        await window.open("/")
        await page.clock.run_for(12_000)
        await expect(page.get_by_role("form", name="Undo")).to_be_visible()
    assert window.complaints == []

"""Every page of the navigation in a browser: without barriers, light and dark, from a phone to a wide screen."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from postroom.audit import SYSTEM
from postroom.dashboard.security.passphrase import fresh_link
from postroom.domain.roles import Role
from postroom.domain.terms import Tier
from tests.support import dashboard_data as scene
from tests.support.browser import Window, open_window
from tests.support.dashboards import Site
from tests.support.mail import ME

PAGES = ("/", "/connectors", f"/connectors/gmail/{ME}", "/filters", "/audit", "/settings", "/queue")
LONG = "unbroken" * 40
HOSTILE = f"<script>window.hit=1</script><img src=x onerror='window.hit=1'>\u202e{LONG}"


@pytest_asyncio.fixture(loop_scope="session")
async def furnished(site: Site) -> Site:
    """Something in every corner, all of it written by somebody who means harm."""
    owner = await scene.add_mailbox(site)
    await scene.add_live_mail(
        site, {Tier.HIGH_PRIORITY: 2, Tier.INTERACTIVE: 3, Tier.DEFAULT: 5}, assignment_rule=HOSTILE
    )
    await scene.add_heartbeat(
        site, status=HOSTILE, instance=HOSTILE, checkpoint={HOSTILE: HOSTILE, "contacts": HOSTILE}
    )
    await scene.add_heartbeat(site, HOSTILE, ago=timedelta(hours=2))
    await scene.add_failed_jobs(site, 2, HOSTILE)
    await scene.add_alert(site, owner, HOSTILE)
    await scene.add_backfill_job(site, spent=1_000_000, endpoint_identity=HOSTILE)
    await site.token(Role.AGENT)
    return site


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 1280), ("light", 360), ("dark", 360)])
async def test_no_page_has_barriers_overflows_or_runs_what_it_shows(
    browser: Browser, furnished: Site, scheme: str, width: int
) -> None:
    view: dict[str, Any] = {"color_scheme": scheme, "viewport": {"width": width, "height": 800}}
    async with open_window(browser, furnished, **view) as window:
        for path in PAGES:
            page = await window.open(path)
            assert await window.barriers() == [], path
            assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
            assert await page.evaluate("window.hit === undefined"), path
    assert window.complaints == []


async def test_every_room_is_reached_from_the_navigation_without_script(plain_page: Page, furnished: Site) -> None:
    await plain_page.goto("/")
    names = "links => links.map((link) => link.firstChild.textContent.trim())"  # without the badge
    titles = await plain_page.locator(".sections a").evaluate_all(names)
    for title in titles:
        link = re.compile(rf"^{title}\b")
        await plain_page.get_by_role("navigation", name="Main").get_by_role("link", name=link).click()
        opens_on = {"Mail": "Inbox"}.get(title, title)
        await expect(plain_page.get_by_role("heading", level=1)).to_contain_text(opens_on)
        await expect(plain_page.locator(".sections a[aria-current]")).to_contain_text(title)


async def test_a_token_is_made_by_keyboard_and_shown_once(window: Window) -> None:
    page = await window.open("/settings")
    await page.get_by_text("Create a token").focus()
    await page.keyboard.press("Enter")
    await page.get_by_label("Name").focus()
    await page.keyboard.type("my script")
    await page.keyboard.press("Enter")
    await expect(page.locator(".secret")).to_contain_text("prt_")
    await window.open("/settings")
    await expect(page.locator(".secret")).to_have_count(0)
    await expect(page.get_by_role("row", name="my script")).to_be_visible()


async def test_a_wrong_field_is_named_and_gets_the_focus(window: Window) -> None:
    page = await window.open("/settings")
    await page.get_by_text("Create a token").click()
    await page.get_by_label("Name").fill("an agent")
    too_long = "m" * 400 + "@example.org"
    await page.get_by_label("Only for this mailbox").fill(too_long)
    await page.get_by_role("button", name="Create token").click()
    wrong = page.get_by_label("Only for this mailbox")
    await expect(wrong).to_be_focused()
    await expect(wrong).to_have_attribute("aria-invalid", "true")
    await expect(wrong).to_have_value(too_long)
    window.complaints.clear()  # of the status 422


async def test_the_overview_renews_itself(window: Window) -> None:
    page = await window.open("/")
    await window.watched()
    await expect(page.locator("#overview")).to_contain_text("Nothing needs your attention")
    await scene.add_failed_jobs(window.site, 2)
    await expect(page.locator("#overview")).to_contain_text("2 jobs failed")


async def test_a_person_sets_a_passphrase_logs_out_and_in_again(browser: Browser, site: Site) -> None:
    context = await browser.new_context(base_url=site.url)
    page = await context.new_page()
    await page.goto(await fresh_link(site.app, site.url, SYSTEM))
    await page.get_by_label("Passphrase", exact=True).fill("correct horse battery staple")
    await page.get_by_label("Repeat the passphrase").fill("correct horse battery staple")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    await page.get_by_role("button", name="Log out").click()
    await expect(page.get_by_role("status")).to_have_text("You are logged out.")
    await page.goto("/audit")
    await page.get_by_label("Passphrase", exact=True).fill("correct horse battery staple")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Audit")
    await context.close()


@pytest.mark.req("UX-3")
async def test_times_are_in_the_readers_zone_with_utc_behind_them(browser: Browser, furnished: Site) -> None:
    zone: dict[str, Any] = {"timezone_id": "Asia/Tokyo", "locale": "en-GB"}
    async with open_window(browser, furnished, **zone) as window:
        page = await window.open(f"/connectors/gmail/{ME}")
        shown = page.locator("time.exact").first
        await expect(shown).not_to_contain_text("UTC")
        # At once: the page may be renewed meanwhile.
        stamp, utc, text = await shown.evaluate("time => [time.dateTime, time.title, time.textContent]")
        there = datetime.fromisoformat(stamp).astimezone(ZoneInfo("Asia/Tokyo"))
        assert f"{there:%H:%M:%S}" in text
        assert utc == f"{datetime.fromisoformat(stamp):%Y-%m-%d %H:%M:%S} UTC"
    async with open_window(browser, furnished, script=False, **zone) as window:
        page = await window.open(f"/connectors/gmail/{ME}")
        await expect(page.locator("time.exact").first).to_contain_text("UTC")

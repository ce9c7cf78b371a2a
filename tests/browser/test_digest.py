"""The digest in a browser: by keyboard, without script, without barriers, from a phone to a wide screen."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from playwright.async_api import Browser, expect

from postroom.domain.terms import Tier
from tests.support import dashboard_data as scene
from tests.support.browser import open_window
from tests.support.dashboards import Site

pytestmark = pytest.mark.req("UX-3")


@pytest.mark.parametrize(("script", "width"), [(True, 1280), (False, 390)])
async def test_a_day_and_a_week_are_walked_by_keyboard(browser: Browser, site: Site, script: bool, width: int) -> None:
    await scene.add_live_mail(site, {Tier.HIGH_PRIORITY: 2, Tier.DEFAULT: 5}, sender_identity="long" * 40)
    await scene.add_live_mail(site, {Tier.DEFAULT: 3}, timedelta(days=1), category="finance")
    await scene.add_decided_mail(site, "18f1", action="archive")
    view: dict[str, Any] = {"viewport": {"width": width, "height": 800}, "color_scheme": "light" if script else "dark"}
    async with open_window(browser, site, script=script, **view) as window:
        page = await window.open("/digest")
        await expect(page.locator(".figures")).to_contain_text("8 received")
        previous = page.get_by_role("link", name="Previous day")
        await previous.focus()
        await page.keyboard.press("Enter")
        await expect(page.locator(".figures")).to_contain_text("3 received")
        await expect(page.get_by_role("row", name="Finance")).to_contain_text("3")
        await page.get_by_role("link", name="Week", exact=True).click()
        await expect(page.get_by_role("heading", level=1)).to_contain_text(" to ")
        await page.get_by_label("A day of the week").fill("2020-02-05")
        await page.get_by_role("button", name="Show").press("Enter")
        await expect(page.get_by_role("heading", level=1)).to_have_text("Digest: 3 to 9 February 2020")
        for path in ("/digest", "/digest?period=week"):
            await window.open(path)
            assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            if script:
                assert await window.barriers() == []
    assert window.complaints == []

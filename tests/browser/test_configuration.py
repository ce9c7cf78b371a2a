"""Setting up in a browser: a model with a test call that shows its price, and the policy with its changes."""

from __future__ import annotations

import pytest
from playwright.async_api import Page, expect

from postroom.sim.model.server import running_model
from tests.support.browser import Window, look_at

pytestmark = pytest.mark.req("UX-2")


async def test_a_model_is_set_and_a_test_call_shows_its_price(window: Window) -> None:
    async with running_model() as sim:
        page = await window.open("/settings")
        await page.get_by_role("link", name="Set up a model").click()
        await page.get_by_label("Provider").select_option("compatible")
        await page.get_by_role("textbox", name="Model", exact=True).fill("simulated-small")
        await page.get_by_label("Address").fill(sim.url)
        await page.get_by_label("Price of a million tokens in").fill("0.30")
        await page.get_by_label("Price of a million tokens out").fill("2.50")
        await page.locator("section", has=page.locator("#model")).get_by_role("button", name="Save").click()
        await expect(page.get_by_role("status")).to_contain_text("Saved model.provider, model.name")
        await page.get_by_label("Key of the model").fill(sim.token)
        await page.get_by_role("button", name="Store in the vault").click()
        await expect(page.get_by_role("status")).to_contain_text("Saved in the vault")
        await expect(page.get_by_label("Key of the model")).to_have_value("")
        await page.get_by_role("button", name="Test the model").click()
        await expect(page.get_by_role("status")).to_contain_text("$0.30 in, $2.50 out for a million tokens")
        await expect(page.get_by_role("status")).to_contain_text("answered in")
        await expect(page.locator("#restart")).to_have_count(0)
        assert window.site.app.settings.model.name == "simulated-small"
        await page.get_by_label("Time zone of the day").fill("Europe/Zagreb")
        await page.locator("section", has=page.locator("#limits")).get_by_role("button", name="Save").click()
        await expect(page.get_by_role("status")).to_contain_text("Restart Postroom to use backfill.day_zone")
        await expect(page.locator("#restart")).to_contain_text("backfill.day_zone")
    assert await window.barriers() == []


async def test_the_policy_is_changed_without_script_after_its_difference_was_shown(plain_page: Page) -> None:
    await plain_page.goto("/filters")
    await plain_page.get_by_role("link", name="Edit the rules").click()
    text = await plain_page.get_by_label("Rules").input_value()
    rule = '[[rule]]\nnote = "Offers"\ntier = 3\n\n[rule.condition]\nsender_domain = ["shop.example"]\n\n'
    await plain_page.get_by_label("Rules").fill(rule + text)
    await plain_page.get_by_role("button", name="Review changes").click()
    await expect(plain_page.locator("#changes")).to_contain_text("shop.example")
    await plain_page.get_by_role("button", name="Save").click()
    await expect(plain_page.get_by_role("status")).to_contain_text("in force")
    await expect(plain_page.get_by_role("row", name="1 Offers Skip")).to_be_visible()


async def test_nothing_on_them_is_a_barrier_or_beyond_the_edge(window: Window) -> None:
    browser = window.page.context.browser
    assert browser is not None
    await look_at(browser, window.site, "/settings/edit", "/filters/policy", "/filters/categories", "/settings")
